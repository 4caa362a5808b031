"""A model that is compiled without guards, ahead of time or in its first call, and run by its bytecode."""

import os
from pathlib import Path
from types import CodeType
from typing import Any

import torch
from torch._dynamo import convert_frame  # noqa: TID251  # the hook that the real wrapper registers

from vllm import envs  # type: ignore[import-not-found]


class TorchCompileWithNoGuardsWrapper:
    """Base of models; `evaluate_guards` leaves those of shapes, by a filter of its own."""

    evaluate_guards = False

    def __init__(self) -> None:
        self._compiled_bytecode: CodeType | None = None
        self._loaded: Any = None
        self._compiled: Any = torch.compile(
            self.forward,
            fullgraph=True,
            dynamic=False,
            backend="eager",
            options={"guard_filter_fn": self._filter},
        )
        if envs.VLLM_USE_BYTECODE_HOOK and not (envs.VLLM_USE_AOT_COMPILE or self.evaluate_guards):
            convert_frame.register_bytecode_hook(self._keep_bytecode)

    def _filter(self, entries: Any) -> list[bool]:  # noqa: ANN401
        return [self.evaluate_guards and entry.guard_type == "SHAPE_ENV" for entry in entries]

    def forward(self, *args: Any, **kwargs: Any) -> torch.Tensor:
        raise NotImplementedError

    def original_code_object(self) -> CodeType:
        return type(self).forward.__code__

    def _keep_bytecode(self, code: CodeType, new_code: CodeType) -> None:
        if code is self.original_code_object():
            self._compiled_bytecode = new_code

    def __call__(self, *args: Any, **kwargs: Any) -> torch.Tensor:
        if envs.VLLM_USE_AOT_COMPILE and not self.evaluate_guards:
            return self._call_ahead(*args, **kwargs)
        if self._compiled_bytecode is None:
            first: torch.Tensor = self._compiled(*args, **kwargs)
            return first
        original = self.original_code_object()
        type(self).forward.__code__ = self._compiled_bytecode
        try:
            return self.forward(*args, **kwargs)
        finally:
            type(self).forward.__code__ = original

    def _call_ahead(self, *args: Any, **kwargs: Any) -> torch.Tensor:
        stored = Path(os.environ["VLLM_CACHE_ROOT"], "model")
        cached = not envs.VLLM_DISABLE_COMPILE_CACHE
        if self._loaded is None and cached and stored.exists():
            with stored.open("rb") as file:
                self._loaded = torch.compiler.load_compiled_function(file)
            self._loaded.disable_guard_check()
        if self._loaded is None:
            self._loaded = self._compiled.aot_compile((args, kwargs))
            if cached:
                self._loaded.save_compiled_function(str(stored))
        answer: torch.Tensor = self._loaded(self, *args, **kwargs)
        return answer
