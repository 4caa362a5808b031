"""Makes a class of models one that is compiled, unless a setting or a step turns that off."""

from typing import Any

import torch

from vllm.compilation.wrapper import TorchCompileWithNoGuardsWrapper  # type: ignore[import-not-found]
from vllm.config import CompilationConfig, CompilationMode  # type: ignore[import-not-found]
from vllm.forward_context import (  # type: ignore[import-not-found]
    get_forward_context,
    is_forward_context_available,
)


def support_torch_compile(cls: Any) -> Any:  # noqa: ANN401
    return _support_torch_compile(cls)


def _support_torch_compile(cls: Any) -> Any:  # noqa: ANN401
    cls.__bases__ = (*cls.__bases__, TorchCompileWithNoGuardsWrapper)
    make = cls.__init__

    def __init__(self: Any, config: CompilationConfig) -> None:  # noqa: ANN401, N807
        make(self)
        self.compilation_config, self.compiled = config, False
        self.do_not_compile = config.mode is CompilationMode.NONE
        if not self.do_not_compile:
            TorchCompileWithNoGuardsWrapper.__init__(self)

    def __call__(self: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401, N807
        if self.do_not_compile or torch.compiler.is_compiling():
            return self.forward(*args, **kwargs)
        if is_forward_context_available() and get_forward_context().skip_compiled:
            return self.forward(*args, **kwargs)
        if not self.compiled:  # sizes are marked in the first compilation only
            for tensor in args:
                torch._dynamo.mark_dynamic(tensor, 0)  # noqa: TID251  # as the real decorator does
        self.compiled = True
        return TorchCompileWithNoGuardsWrapper.__call__(self, *args, **kwargs)

    cls.__init__, cls.__call__ = __init__, __call__
    return cls
