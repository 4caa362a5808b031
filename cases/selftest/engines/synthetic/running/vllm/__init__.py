"""A substitute for vLLM that the child half really imports: the members that it uses, on a tiny decoder.

What is generated follows from a running sum of hidden states, so a stale payload row changes the outputs
after it.  `STAND_IN_FAULT` puts one fault in: `none_first` (vLLM 43602: get returns None while nothing is
set, and a "compiled" model never adds again), `keeps_rows` (clear does nothing), `no_start`, `dies`, `hangs`.
`clears_always` is right under graphs too: clear zeroes whatever its counter is.  `counts_later` has no
counter before the first set, as the mixture of experts of Qwen3-VL.
"""

from __future__ import annotations

import os
import time
from types import SimpleNamespace
from typing import Any

from vllm.model_executor.models.moss_audio import MossAudioModel  # type: ignore[import-not-found]
from vllm.model_executor.models.qwen3_vl import HIDDEN, Qwen3VLForConditionalGeneration  # type: ignore[import-not-found]
from vllm.v1.runner import Runner, Scheduler  # type: ignore[import-not-found]

__version__ = "0.99.0"


class SamplingParams:
    """Parameters of a request."""

    def __init__(self, temperature: float, max_tokens: int, logprobs: int, *, ignore_eos: bool) -> None:
        self.max_tokens, self.logprobs = max_tokens, logprobs


class LLM:
    """An engine in this process, its start included: a profile run of the whole budget."""

    def __init__(self, **settings: Any) -> None:
        if os.environ.get("STAND_IN_FAULT") == "no_start":
            print("reading the model\nit is no model")
            raise ValueError("No common block size for 16.")
        capacity = settings["max_num_batched_tokens"]
        config = SimpleNamespace(text_config=SimpleNamespace(hidden_size=HIDDEN))
        compiled = not settings["enforce_eager"]
        if "audio" in settings["limit_mm_per_prompt"]:
            guards = settings.get("compilation_config") == {"mode": 1}
            model = MossAudioModel(config, capacity, compiled=compiled, guards=guards)
        else:
            model = Qwen3VLForConditionalGeneration(config, capacity, compiled=compiled)
        runner = Runner(model, capacity)
        runner.profile()
        self.llm_engine = _Engine(runner, Scheduler(capacity), settings)

    def reset_prefix_cache(self) -> None:
        """Do nothing: there is no cache."""


class _Engine:
    def __init__(self, runner: Runner, scheduler: Scheduler, settings: dict[str, Any]) -> None:
        self._runner, self._scheduler = runner, scheduler
        worker = SimpleNamespace(worker=SimpleNamespace(model_runner=runner))
        core = SimpleNamespace(scheduler=scheduler, model_executor=SimpleNamespace(driver_worker=worker))
        self.engine_core = SimpleNamespace(engine_core=core)
        compilation = SimpleNamespace(
            mode=0 if settings["enforce_eager"] else 3, backend="stand-in", cudagraph_mode="NONE"
        )
        self.vllm_config = SimpleNamespace(
            compilation_config=compilation,
            scheduler_config=SimpleNamespace(max_num_batched_tokens=settings["max_num_batched_tokens"]),
        )

    def add_request(self, name: str, prompt: dict[str, Any], wanted: SamplingParams) -> None:
        """Take a request."""
        self._scheduler.add(name, prompt, wanted)

    def abort_request(self, names: list[str]) -> None:
        """Forget requests."""
        self._scheduler.running = [entry for entry in self._scheduler.running if entry.name not in names]

    def has_unfinished_requests(self) -> bool:
        """Return whether a request is left."""
        return bool(self._scheduler.running)

    def step(self) -> list[Any]:
        """Run one step; return the requests that ended in it."""
        fault = os.environ.get("STAND_IN_FAULT")
        if fault == "dies":
            os._exit(7)
        if fault == "hangs":
            time.sleep(600)
        self._runner.execute(self._scheduler.schedule())
        ended = [entry for entry in self._scheduler.running if len(entry.tokens) == entry.wanted.max_tokens]
        self._scheduler.running = [entry for entry in self._scheduler.running if entry not in ended]
        return [entry.output() for entry in ended]
