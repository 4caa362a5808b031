"""A running engine in a process of its own: started, asked, and ended with its log."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from deepstack_harness.errors import MachineError
from deepstack_harness.live_engine.environment import EngineHome
from deepstack_harness.live_engine.facts import ServedSchedule, StartFacts, checked
from deepstack_harness.live_engine.installer import clean_environment
from deepstack_harness.live_engine.models.tiny import TinyModel
from deepstack_harness.live_engine.schedules import ReplayMode, Schedule, Start
from deepstack_harness.workers.limits import BY_VARIABLE, MIB, Limits
from deepstack_harness.workers.outcomes import Answered, CallResult, FinishedCall, RaisedInWorker, WorkerEnd
from deepstack_harness.workers.worker import Worker

CHILD = Path(__file__).parent / "child"

ENGINE_LIMITS = Limits(
    start_s=120.0, call_s=None, step_s=900.0, memory=16384 * MIB, output=256 * MIB, open_files=4096,
    file_size=4096 * MIB, processes=256, raised_by=BY_VARIABLE,
)  # fmt: skip
"""A start takes 30 to 60 s on an idle machine, and 263 s were seen on a busy one; a step milliseconds."""

_ENVIRONMENT: Mapping[str, str] = {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",  # the engine in this very process, where it can be watched
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_DISABLE_COMPILE_CACHE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_LOGGING_LEVEL": "WARNING",
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
}

_LAST_LINES = 6


class EngineFailed(MachineError):
    """An engine that did not start, or ended, or raised: with the end of what it printed."""


@dataclass(frozen=True)
class StartOrder:
    """An order to start an engine: on which model folder, in which way, with which methods put in."""

    model: TinyModel
    folder: Path
    start: Start = Start.PLAIN
    compiled: bool = False
    methods: Mapping[str, str] = field(default_factory=dict)

    @property
    def arm(self) -> str:
        """The name of the way to run."""
        return "engine/compile" if self.compiled else "engine/eager"

    def job(self) -> dict[str, Any]:
        """Return the order as the child takes it."""
        model = self.model
        return {
            "module": model.module, "model_class": model.model_class, "driven": model.driven,
            "main_features": model.main_features, "methods": dict(self.methods), "logprobs": model.logprobs,
            "settings": {**_settings(model, self.start), "model": str(self.folder),
                         "enforce_eager": not self.compiled},
        }  # fmt: skip


class EngineSession:
    """One engine that serves schedule after schedule."""

    def __init__(self, home: EngineHome, order: StartOrder) -> None:
        """Start it; raises `EngineFailed` where it does not start, or lacks the model class."""
        self._home, self.order = home, order
        self._worker = child_worker(home)
        try:
            value = self._call("start", {"job": order.job()}, f"starting {order.arm} of {home.label}")
            self.facts = _with_class(checked(value, StartFacts), home)
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Self:
        """Return this session, to be closed."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End the engine."""
        self.close()

    def serve(
        self, schedule: Schedule, *, zero: bool = False, replay: ReplayMode | None = None
    ) -> ServedSchedule:
        """Serve one schedule; `zero` takes the payload away, `replay` emulates a graph mode.

        Raises `EngineFailed` where the engine raises, ends or hangs.
        """
        told = {
            "requests": [request.job(self.order.model) for request in schedule.requests],
            "budget": schedule.budget, "zero_payload": zero, "replay": replay and replay.job(),
        }  # fmt: skip
        return checked(self._call("serve", {"schedule": told}, f"serving {schedule.name}"), ServedSchedule)

    def close(self) -> None:
        """End the engine and all that it started."""
        self._worker.close()

    def _call(self, function: str, arguments: Mapping[str, Any], doing: str) -> Any:  # noqa: ANN401  # JSON
        return answer_of(self._worker.call(f"{CHILD / 'engine.py'}:{function}", arguments), doing)


def _with_class(facts: StartFacts, home: EngineHome) -> StartFacts:
    if facts.missing is not None:
        raise MachineError(f"{home.label} ({facts.vllm}) has no {facts.missing}")
    return facts


def child_worker(home: EngineHome) -> Worker:
    """Start a worker under the interpreter of an engine, with nothing of ours on its path."""
    return Worker(
        ENGINE_LIMITS, interpreter=str(home.python), environment={**clean_environment(), **_ENVIRONMENT}
    )


def answer_of(result: CallResult, doing: str) -> Any:  # noqa: ANN401  # JSON
    """Return the value of an answered call; raise `EngineFailed`, with the end of the log, for any other."""
    match result:
        case Answered():
            return result.value
        case RaisedInWorker() | WorkerEnd():
            raise EngineFailed(f"{doing}: {result.sentence}{_end_of_log(result)}")


def _end_of_log(result: FinishedCall) -> str:
    lines = [line.rstrip() for line in result.output.splitlines() if line.strip()]
    if not lines:
        return ""
    return "; printed at the end:" + "".join(f"\n    {line}" for line in lines[-_LAST_LINES:])


def _settings(model: TinyModel, start: Start) -> dict[str, Any]:
    settings: dict[str, Any] = {
        "dtype": "float32", "max_model_len": 512, "max_num_batched_tokens": 64, "max_num_seqs": 8, "seed": 0,
        "max_logprobs": 400, "mm_processor_cache_gb": 0.1, "async_scheduling": False,
        "limit_mm_per_prompt": dict(model.limits), "enable_prefix_caching": False,
    }  # fmt: skip
    if start is Start.PRESSED:
        # CPU attention has blocks of multiples of 32 tokens only (16: "No common block size").
        settings |= {
            "enable_prefix_caching": True, "block_size": 32, "num_gpu_blocks_override": 7,
            "max_model_len": 128,  # one request has to fit into the blocks
            "speculative_config": {"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_max": 2,
                                   "prompt_lookup_min": 1},
        }  # fmt: skip
    return settings
