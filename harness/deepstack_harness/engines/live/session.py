"""A running engine in a process of its own, and the model folders that it loads.

`EngineSession` starts the engine, sends it schedules, and ends it with its log.  The facts that the child
sends (tokens, steps, starts) are checked when they arrive.  `model_folder` makes a model folder on the
disk under the interpreter of the engine that loads it.  `methods_text` is the text of methods of another
source that are put into an engine's class.
"""

import ast
import hashlib
import json
import os
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, TypeVar

import msgspec
from typing_extensions import override

from deepstack_harness import files
from deepstack_harness.compile.watch_process import reaching
from deepstack_harness.contract.observation import Answer, Rows
from deepstack_harness.engines.class_facts import STORAGE
from deepstack_harness.engines.known import engine_of
from deepstack_harness.engines.live.environment import EngineHome
from deepstack_harness.engines.live.models import TinyModel
from deepstack_harness.engines.live.schedules import Control, EngineRequest, ReplayMode, Schedule, Start
from deepstack_harness.engines.syntax import NoBuffer, class_named, members_of
from deepstack_harness.errors import MachineError, unknown_name
from deepstack_harness.files import write_atomically
from deepstack_harness.sources.environments import clean_environment
from deepstack_harness.sources.source import Source
from deepstack_harness.workers.limits import BY_VARIABLE, MIB, Limits
from deepstack_harness.workers.outcomes import Answered, CallResult, RaisedInWorker, WorkerEnd
from deepstack_harness.workers.worker import Closing, Worker

T = TypeVar("T")


@dataclass(frozen=True)
class EngineAnswer:
    """The generated tokens of one request, and the log-probabilities of each by token id."""

    tokens: tuple[int, ...]
    logprobs: tuple[tuple[float | None, ...], ...]


@dataclass(frozen=True)
class LiveStep:
    """One read of the buffer: the number of rows, and what get returned, as `StepFacts` has it.

    `tokens` were embedded in this step (None: nothing was, as in a profile run).  Their rows in `spans` have
    a payload, and `content` names all rows of the step as `StepFacts` does.  `requests` has (name, tokens in
    this step, in prefill).
    """

    asked: int
    answer: Answer
    tokens: int | None = None
    spans: tuple[tuple[int, int], ...] = ()
    content: Rows | None = None
    requests: tuple[tuple[str, int, bool], ...] = ()
    uniform: bool = False
    replayed: bool = False

    @property
    def visual(self) -> int:
        """The number of rows with a payload."""
        return sum(end - first for first, end in self.spans)

    @property
    def is_visual_decode(self) -> bool:
        """True for a visual step that counts as a decode: every request has as many tokens as one."""
        return self.uniform and self.visual > 0


@dataclass(frozen=True)
class ServedSchedule:
    """The facts of one schedule."""

    answers: Mapping[str, EngineAnswer]
    steps: tuple[LiveStep, ...]
    calls: tuple[tuple[str, int], ...]
    counts: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class StartFacts:
    """A running engine: versions, settings, levels and width of a payload, and the calls of its start.

    `deciding` has the SHA-256 of each function that dispatches a step.
    """

    vllm: str
    torch: str = ""
    runner: str = ""
    compile_mode: str = ""
    backend: str = ""
    cudagraph_mode: str = ""
    capacity: int = 0
    levels: int = 0
    hidden: int = 0
    start_calls: tuple[tuple[str, int], ...] = ()
    start_steps: tuple[LiveStep, ...] = ()
    deciding: Mapping[str, str] = field(default_factory=dict)
    missing: str | None = None


def checked(value: object, kind: type[T]) -> T:
    """Return a value of the child as a typed fact; raise `MachineError` for one that is none."""
    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        raise MachineError(f"the engine's process sent no {kind.__name__}: {error}") from None


def prompts_of(requests: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return the parts of requests that transformers is given."""
    return [{"text": request["text"], "images": request["images"]} for request in requests]


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
"""Lines of the log of an engine that has ended, in the message about it."""


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
    control: Control = Control.NONE

    @property
    def arm(self) -> str:
        """The name of the way to run."""
        way = "compile" if self.compiled else "eager"
        return "/".join(filter(None, ("engine", way, self.control)))

    def job(self) -> dict[str, Any]:
        """Return the order as the child takes it."""
        model = self.model
        settings: dict[str, Any] = {
            "dtype": "float32", "max_model_len": 512, "max_num_batched_tokens": 64, "max_num_seqs": 8,
            "seed": 0, "max_logprobs": 400, "mm_processor_cache_gb": 0.1, "async_scheduling": False,
            "limit_mm_per_prompt": dict(model.limits), "enable_prefix_caching": False,
            "model": str(self.folder), "enforce_eager": not self.compiled,
        }  # fmt: skip
        if self.start is Start.PRESSED:
            # CPU attention has blocks of multiples of 32 tokens only (16: "No common block size").
            settings |= {
                "enable_prefix_caching": True, "block_size": 32, "num_gpu_blocks_override": 7,
                "max_model_len": 128,  # one request has to fit into the blocks
                "speculative_config": {"method": "ngram", "num_speculative_tokens": 3,
                                       "prompt_lookup_max": 2, "prompt_lookup_min": 1},
            }  # fmt: skip
        if self.control is Control.GUARDS_KEPT:
            # vLLM's compilation mode 1, STOCK_TORCH_COMPILE, drops no guard.
            settings["compilation_config"] = {"mode": 1}
        return {
            "module": model.module, "model_class": model.model_class, "driven": model.driven,
            "main_features": model.main_features, "methods": dict(self.methods), "logprobs": model.logprobs,
            "config_class": model.config_class, "zeros": self.control is Control.ZEROS,
            "settings": settings,
        }  # fmt: skip


class EngineSession(Closing):
    """One engine that serves schedule after schedule."""

    def __init__(self, home: EngineHome, order: StartOrder) -> None:
        """Start it; raises `EngineFailed` where it does not start, or has no such model class."""
        self._home, self.order = home, order
        self._worker = child_worker(home)
        try:
            value = self._call("start", {"job": order.job()}, f"starting {order.arm} of {home.label}")
            self.facts = _with_class(checked(value, StartFacts), home)
        except BaseException:
            self.close()
            raise

    def serve(
        self, schedule: Schedule, *, zero: bool = False, replay: ReplayMode | None = None
    ) -> ServedSchedule:
        """Serve one schedule; `zero` takes the payload away, `replay` emulates a graph mode.

        Raises `EngineFailed` where the engine raises, ends or hangs.
        """
        schedule_job = {
            "requests": [request.job(self.order.model) for request in schedule.requests],
            "budget": schedule.budget, "zero_payload": zero,
            "replay": replay and {"mode": replay.mode, "outer": replay.outer, "most": replay.most},
        }  # fmt: skip
        return checked(
            self._call("serve", {"schedule": schedule_job}, f"serving {schedule.name}"), ServedSchedule
        )

    @override
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
    """Start a worker under the interpreter of an engine, with nothing of ours on its path but a watch."""
    variables = {**clean_environment(), **reaching(os.environ), **_ENVIRONMENT}
    return Worker(ENGINE_LIMITS, interpreter=str(home.python), environment=variables)


def answer_of(result: CallResult, doing: str) -> Any:  # noqa: ANN401  # JSON
    """Return the value of a call that returned; else raise `EngineFailed`, with the end of the log."""
    match result:
        case Answered():
            return result.value
        case RaisedInWorker() | WorkerEnd():
            lines = [line.rstrip() for line in result.output.splitlines() if line.strip()]
            log = "".join(f"\n    {line}" for line in lines[-_LAST_LINES:])
            raise EngineFailed(f"{doing}: {result.sentence}{log and '; printed at the end:'}{log}")


PROBES = tuple(EngineRequest(f"probe{seed}", images=(seed,), answers=3) for seed in (0, 1))
"""The requests whose first token is compared with transformers."""


@dataclass(frozen=True)
class FirstToken:
    """Log-probabilities of transformers for the first generated token, with and without the payload."""

    with_payload: tuple[float, ...]
    without: tuple[float, ...]


Reference = tuple[FirstToken, ...]
"""The output of transformers for each of `PROBES`; none where it has no such class."""


@contextmanager
def model_folder(home: EngineHome, model: TinyModel) -> Iterator[tuple[Path, Reference]]:
    """Give the folder of a tiny model: from the cache where we made the environment, else made for now."""
    if home.version is None:  # packages of an environment that is not ours may change
        with TemporaryDirectory(prefix="deepstack-model-") as own:
            yield _make(home, model, Path(own))
        return
    yield _make(home, model, files.cache() / "engines" / "models")


def _make(home: EngineHome, model: TinyModel, where: Path) -> tuple[Path, Reference]:
    """Make the folder and its reference, as far as they are not there."""
    prompts = prompts_of([probe.job(model) for probe in PROBES])
    asked = json.dumps([model.job(), prompts, home.label], sort_keys=True)
    folder = where / f"{model.family}-{hashlib.sha256(asked.encode()).hexdigest()[:12]}"
    stored, child = folder / "reference.json", CHILD / "model_folder.py"
    arguments: dict[str, Any] = {"folder": str(folder), "job": model.job()}
    try:
        if not stored.exists():
            folder.parent.mkdir(parents=True, exist_ok=True)
            figures: Any = []
            with child_worker(home) as worker:
                if not folder.exists():
                    answer_of(worker.call(f"{child}:make", arguments), f"making a tiny {model.model_class}")
                if model.weights is None:
                    result = worker.call(f"{child}:reference", {**arguments, "prompts": prompts})
                    figures = answer_of(result, f"running {model.model_class} of transformers")
            write_atomically(stored, json.dumps(figures).encode())
        figures = json.loads(stored.read_bytes())
    except OSError as error:
        raise MachineError(f"cannot make the model folder '{folder}': {error.strerror}") from None
    return folder, checked(figures, Reference)


def methods_text(source: Source, family: str) -> dict[str, str]:
    """Return the get, set, clear and resize of a family's class in a source, each as the text of a function.

    Raises `UsageError` for a family whose class has no such methods, or a source without them.
    """
    models = engine_of(source).by_methods
    if family not in models:
        raise unknown_name("family whose methods can be put in", family, models)
    model = models[family]
    file = source.read(model.member)
    members = members_of(class_named(file, model.class_name), file)
    methods = {
        name: textwrap.dedent(" " * node.col_offset + (ast.get_source_segment(file.text, node) or ""))
        for name, nodes in members.items()
        for node in nodes
        if STORAGE in name and isinstance(node, ast.FunctionDef)
    }
    if not methods:
        raise NoBuffer(f"{file.filename}: {model.class_name} has no method with {STORAGE} in its name")
    return methods
