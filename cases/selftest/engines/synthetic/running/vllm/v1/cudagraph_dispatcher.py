"""The mode of each batch: that of decodes for uniform ones, that of mixed batches for the others."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from vllm.config import CUDAGraphMode  # type: ignore[import-not-found]


class CudagraphDispatcher:
    """A dispatcher that knows capture sizes and one mode."""

    def __init__(self, vllm_config: Any) -> None:  # noqa: ANN401
        self._config = vllm_config.compilation_config
        self._mode = CUDAGraphMode.NONE

    def initialize_cudagraph_keys(self, mode: CUDAGraphMode, _query_length: int) -> None:
        """Take the mode."""
        self._mode = mode

    def dispatch(self, num_tokens: int, *, uniform_decode: bool) -> tuple[CUDAGraphMode, SimpleNamespace]:
        """Return the mode of a batch, and its number of rows."""
        fitting = [size for size in self._config.cudagraph_capture_sizes if size >= num_tokens]
        mixed, decode = self._mode.value
        name = decode if uniform_decode else mixed
        mode = CUDAGraphMode[name] if fitting else CUDAGraphMode.NONE
        return mode, SimpleNamespace(num_tokens=min(fitting, default=num_tokens))
