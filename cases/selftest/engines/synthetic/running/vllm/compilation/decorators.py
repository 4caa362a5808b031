"""The decorator of a compiled model, as vLLM's in mode DYNAMO_TRACE_ONCE: marked dimensions, no guards."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch


def support_torch_compile(*, dynamic_arg_dims: dict[str, int]) -> Callable[[Any], Any]:
    """Compile the forward of a class in mode 2; `dynamic_arg_dims` are the dimensions that change."""

    def decorate(cls: Any) -> Any:  # noqa: ANN401
        made, plain = cls.__init__, cls.forward

        def init(self: Any, *, vllm_config: Any, prefix: str = "") -> None:  # noqa: ANN401
            made(self, vllm_config=vllm_config, prefix=prefix)
            self.compiled = None
            if vllm_config.compilation_config.mode == 2:
                self.compiled = torch.compile(
                    plain.__get__(self),
                    fullgraph=True,
                    dynamic=False,
                    backend=vllm_config.compilation_config.backend,
                    options={"guard_filter_fn": torch.compiler.skip_all_guards_unsafe},
                )

        def call(self: Any, **arguments: Any) -> Any:  # noqa: ANN401
            if self.compiled is None:
                return plain(self, **arguments)
            for name, dim in dynamic_arg_dims.items():
                found = arguments[name]
                tensors = found.tensors.values() if hasattr(found, "tensors") else [found]
                for tensor in tensors:
                    if tensor is not None:
                        torch._dynamo.mark_dynamic(tensor, dim % tensor.ndim)  # noqa: TID251
            return self.compiled(**arguments)

        cls.__init__, cls.__call__ = init, call
        return cls

    return decorate
