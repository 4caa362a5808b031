"""The emulated replay of CUDA graphs: which steps the engine's own dispatcher would replay.

The dispatcher is the engine's class, and the rule for uniform batches is the runner's: both run on this
runner's own batches.  What is emulated is the graph alone, and capture sizes as an engine of 256 requests
has them.
Rows of padding are not: an uncompiled step on a CPU has none.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import Any


class Replay:
    """The dispatcher of one graph mode, asked before every step; without a mode no step is a replay."""

    def __init__(self, runner: Any) -> None:  # noqa: ANN401
        """Take the runner whose rule for uniform batches is used."""
        self._runner = runner
        self._dispatcher: Any = None
        self._outer = False
        self._now = False

    def use(self, rule: Mapping[str, Any] | None) -> None:
        """Take the graph mode that is emulated from now on, None for none.

        `mode` is its name, `most` the largest capture size; with `outer` the graph is taken around the
        whole model, so that a replay of pieces skips the Python of the model class too.
        """
        self._dispatcher = None if rule is None else _dispatcher(self._runner, rule["mode"], rule["most"])
        self._outer = rule is not None and rule["outer"]
        self._now = False

    def is_replayed(self) -> bool:
        """Return whether the step that runs is a replay that skips the Python of the model class."""
        return self._now

    def observe(self, told: Mapping[str, Any]) -> dict[str, Any]:
        """Decide about the next step from what the runner was told; return it as facts."""
        runner = self._runner
        uniform = runner._is_uniform_decode(  # noqa: SLF001  # the rule itself
            max_num_scheduled_tokens=told["max_num_scheduled_tokens"],
            uniform_decode_query_len=runner.uniform_decode_query_len,
            num_tokens=told["num_tokens"],
            num_reqs=told["num_reqs"],
        )
        facts: dict[str, Any] = {"uniform": bool(uniform), "replayed": False}
        if self._dispatcher is not None:
            mode, batch = self._dispatcher.dispatch(num_tokens=told["num_tokens"], uniform_decode=uniform)
            self._now = mode.name == "FULL" or (self._outer and mode.name == "PIECEWISE")
            facts |= {"mode": mode.name, "padded": batch.num_tokens, "replayed": self._now}
        return facts


def _dispatcher(runner: Any, mode: str, most: int) -> Any:  # noqa: ANN401
    """Return the engine's dispatcher as it is on a GPU in this mode."""
    config = runner.vllm_config
    modes = import_module("vllm.config").CUDAGraphMode
    compilation = _Overlaid(
        config.compilation_config,
        cudagraph_mode=modes[mode],
        cudagraph_capture_sizes=[size for size in _SIZES if size <= most],
        max_cudagraph_capture_size=max(size for size in _SIZES if size <= most),
        compile_sizes=[],
        is_attention_compiled_piecewise=lambda: True,
    )
    found = import_module("vllm.v1.cudagraph_dispatcher").CudagraphDispatcher(
        _Overlaid(config, compilation_config=compilation)
    )
    found.initialize_cudagraph_keys(modes[mode], runner.uniform_decode_query_len)
    return found


# vLLM's default capture sizes (vllm/config/vllm.py, 0.32.0).
_SIZES = [1, 2, 4, *range(8, 256, 8), *range(256, 513, 16)]


class _Overlaid:
    """A configuration with some values replaced: the engine's own stays as it is."""

    def __init__(self, base: Any, **replaced: Any) -> None:  # noqa: ANN401
        self._base = base
        self.__dict__.update(replaced)

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401
        return getattr(self._base, name)
