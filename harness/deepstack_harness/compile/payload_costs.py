"""Measure what a payload costs a step: at real sizes, under each capture mode, as a list and as one tensor.

`measure_payload_costs` yields what was timed for one model at a time, so that a caller who is ended has the
models before. A worker of its own does the timing (`compile.payload_steps`). No torch is imported here.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from deepstack_harness.compile.kernels import CPU, CUDA
from deepstack_harness.contract.facts import Measured
from deepstack_harness.errors import UsageError
from deepstack_harness.workers.limits import Limits
from deepstack_harness.workers.outcomes import Answered
from deepstack_harness.workers.remote import Remote
from deepstack_harness.workers.worker import Worker

PAYLOAD, LIST, TENSOR = "payload", "list", "tensor"
"""The measure against a step without a payload, and the two forms: a tensor for each level, or one of all."""
TENSOR_AGAINST_LIST = "one tensor against a list"
LAYERS: Mapping[str, int] = MappingProxyType({"2b": 28, "4b": 36, "8b": 36, "32b": 64})
"""Layers of the released models (`num_hidden_layers` of the text config); our variants have four."""
TINY = "tiny"
"""The family as it is, which a CPU times in seconds."""


@dataclass(frozen=True)
class PayloadWork:
    """One piece of timing: a model's decoder, uncompiled (backend "none") or compiled, at counts of tokens.

    `repetitions` is how often each step is sampled; the median is reported.
    """

    model: str
    backend: str
    target: str
    tokens: tuple[int, ...]
    repetitions: int

    @property
    def family(self) -> str:
        """The family with its sizes; attention is opaque, so that a graph can be broken there."""
        return "qwen3_vl:opaque" if self.model == TINY else f"qwen3_vl:opaque+{self.model}"

    @property
    def name(self) -> str:
        """The model and how it runs."""
        return self.model if self.backend == "none" else f"{self.model}, {self.backend}"


@dataclass(frozen=True)
class TimedPayload:
    """What one piece of work measured, or the `problem` that it ended with."""

    work: PayloadWork
    rows: tuple[Measured, ...]
    problem: str = ""


_WORK: Mapping[str, tuple[tuple[str, ...], tuple[str, ...], tuple[int, ...], int]] = MappingProxyType(
    {
        # Inductor's code for a CPU is no estimate for a GPU: there Dynamo's graph runs as it is.
        CPU: ((TINY,), ("none", "eager"), (1, 16), 5),
        CUDA: (("8b", "4b", "32b"), ("none", "inductor"), (1, 64, 512), 20),
    }
)
"""By target: models, backends, tokens of a step, repetitions. vLLM captures up to 512 tokens by default."""
_TIME = Remote("deepstack_harness.compile.payload_steps:time_payload", list[Measured])
_TIMEOUT_S = 300.0
"""Seconds for one model with one backend; at the end of it no cost is reported."""


def payload_work(target: str) -> list[PayloadWork]:
    """Return all work for `cpu` or `cuda`, what compiles nothing first; raises `UsageError` for others."""
    if target not in _WORK:
        raise UsageError(f"--payload-cost runs on {' or '.join(_WORK)}, and '{target}' cannot be timed")
    models, backends, tokens, repetitions = _WORK[target]
    return [
        PayloadWork(model, backend, target, tokens, repetitions) for backend in backends for model in models
    ]


def measure_payload_costs(work: Sequence[PayloadWork]) -> Iterator[TimedPayload]:
    """Yield each piece of work as soon as it is timed; one that cannot be timed ends no other.

    Raises `MachineError` where no worker can be started.
    """
    with Worker(Limits(call_s=_TIMEOUT_S), preload=_TIME.module) as worker:
        for timing in work:
            result = worker.call(_TIME, {"work": timing})
            if isinstance(result, Answered):
                yield TimedPayload(timing, tuple(result.value))
            else:
                yield TimedPayload(timing, (), result.sentence)


def extra_of_model(row: Measured) -> float | None:
    """Return the part that a payload adds to a step of the whole model, such as 0.01.

    An estimate: the layers that were timed represent all, and embedding and sampling are left out. None for a
    model that was never released, and for rows without a control.
    """
    layers = LAYERS.get(str(row.conditions["model"]))
    if layers is None or not row.control:
        return None
    whole = row.control * layers / float(row.conditions["layers"])
    return (row.value - row.control) / whole


def payload_row(row: Measured) -> dict[str, object]:
    """Return a row for `--json`: the fields of `Measured`, the ratio, and the part of the whole model."""
    return {
        "schema_version": 1,
        "kind": "payload",
        "measure": row.measure,
        "value": row.value,
        "unit": row.unit,
        "control": row.control,
        "ratio": row.ratio,
        "of_model": extra_of_model(row) if row.measure == PAYLOAD else None,
        "conditions": dict(row.conditions),
        "detail": row.detail,
    }
