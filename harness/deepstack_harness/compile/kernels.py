"""Measure the kernels that Inductor generates for one decode step, in a worker process.

A `Subject` describes what is compiled, at which sizes and for which target; it is checked before anything is
imported. `measure` yields one `Measurement` for each subject: the kernels of every graph call, and the time
and memory that measuring took. `paired` puts the kernels of two measurements side by side.

Every measurement has a worker of its own: pretending to have a GPU cannot be undone in a process, and a
compile counts only with cold caches. No torch is imported here.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher

from deepstack_harness.catalogue.buffers import BUFFERS, REVISIONS
from deepstack_harness.catalogue.registry import FAMILIES
from deepstack_harness.compile.torch_compat.targets import ENVIRONMENT, GPUS, check_support
from deepstack_harness.contract.facts import AccessFacts, GraphCall, Kernel
from deepstack_harness.errors import UsageError, unknown_name
from deepstack_harness.options import option
from deepstack_harness.workers.limits import Limits
from deepstack_harness.workers.outcomes import value_of
from deepstack_harness.workers.remote import Remote
from deepstack_harness.workers.worker import Worker

CPU = "cpu"
CUDA = "cuda"
TARGETS = (CPU, CUDA, *GPUS)
"""The CPU, the GPU of this machine, and GPUs that this machine need not have."""


@dataclass(frozen=True)
class Subject:
    """A decoder of `family` that is traced at `profile_tokens` rows and then called with `tokens`.

    Its payload comes from a buffer of `revision` with `capacity` rows. `static`
    compiles sizes in, so that the profile run does not matter. `layers` and
    `hidden` replace the family's; `run` compiles and runs what was generated, as a
    real GPU always does. `code` returns the generated code too. `cubin` also compiles Triton kernels for
    their target.
    `execute` interprets what was generated for a GPU that need not be here, and
    records what every launch touches; `configurations` does so twice.
    Raises `UsageError` for what does not go together.
    """

    family: str = option(
        "model family (default: qwen3_vl); opaque and payload_first apply unless it names others",
        default="qwen3_vl",
    )
    revision: str = option(
        "buffer that gives the payload, a revision or a mutant (default: pr43617)", default="pr43617"
    )
    tokens: int = option("tokens of the step (default: 77)", metavar="N", default=77)
    capacity: int = option("rows of the buffer (default: 8192)", metavar="C", default=8192)
    profile_tokens: int = option(
        "tokens of the traced profile run (default: the capacity, as in engines)", metavar="M"
    )
    target: str = option(f"{', '.join(TARGETS)} (default: {CPU})", metavar="T", default=CPU)
    static: bool = False
    dtype: str = option("bfloat16 (default), float32, float16 or float64", metavar="D", default="bfloat16")
    layers: int | None = option(
        "number of layers (default: the family's, which is small)", metavar="L", default=None
    )
    hidden: int | None = option("hidden size; heads and feed-forward grow with it", metavar="H", default=None)
    cubin: bool = option(
        "compile Triton kernels, and show registers, spills, shared memory and grid", default=False
    )
    run: bool = False
    compile_threads: int = 1
    execute: bool = option(
        "interpret the Triton source on the CPU, and show which rows and bytes each launch touches "
        "(target h200; no races, PTX, layouts or graphs; matrix products and attention are torch's)",
        default=False,
    )
    configurations: bool = option(
        "with --execute, run each launch with the first and the largest configuration of autotuning",
        default=False,
    )
    code: bool = False

    @property
    def runs(self) -> bool:
        """Return whether generated code is compiled or interpreted, and run."""
        return self.run or self.execute or self.target == CUDA

    @property
    def arm(self) -> str:
        """The name of the arm: as engines compile, without size assertions (new in torch 2.12); or static."""
        if self.execute:
            return "h200/drop_all/static" if self.static else "h200/drop_all/no_size_asserts"
        return "inductor/stock/static" if self.static else "inductor/drop_all/no_size_asserts"

    def __post_init__(self) -> None:
        """Refuse what cannot be measured."""
        if self.target not in TARGETS:
            raise unknown_name("target", self.target, TARGETS)
        base = self.family.partition(":")[0]
        if base not in FAMILIES:
            raise unknown_name("family", base, FAMILIES)
        if self.revision not in BUFFERS:
            raise unknown_name("revision", self.revision, BUFFERS, f"{', '.join(REVISIONS)}, and mutants")
        counts = {"tokens": self.tokens, "capacity": self.capacity, "profile-tokens": self.profile_tokens}
        chosen = {"layers": self.layers, "hidden": self.hidden}
        for name, value in {**counts, **chosen}.items():
            if value is not None and value < 1:
                raise UsageError(f"--{name} {value}: there is nothing to measure below 1")
        for name in ("tokens", "profile-tokens"):
            if counts[name] > self.capacity:
                more = f"--{name} {counts[name]} is above --capacity {self.capacity}"
                raise UsageError(f"{more}: the buffer has fewer rows")
        gpus, is_gpu = ", ".join(GPUS), self.target in GPUS
        refusals = {
            f"--cubin compiles for a GPU that is not here ({gpus}), not '{self.target}'": (
                self.cubin and not is_gpu
            ),
            f"generated code cannot be run for '{self.target}', which is not here: interpret it with "
            "--execute": self.run and is_gpu,
            f"--execute interprets code for a GPU that need not be here ({gpus}), not '{self.target}'": (
                self.execute and not is_gpu
            ),
            "--execute interprets the source, and --cubin compiles it: leave one of them out": (
                self.execute and self.cubin
            ),
            "--configurations compares what --execute runs: add --execute": (
                self.configurations and not self.execute
            ),
        }
        for sentence, applies in refusals.items():
            if applies:
                raise UsageError(sentence)


@dataclass(frozen=True)
class Measurement:
    """The kernels of one decode step, and what measuring them cost.

    `family` is its full name, with the variants that were chosen for it. `calls` has an entry for each graph
    that the step called; `graphs` were compiled until then. `triton` is None where Triton took no part.
    `seconds` are wall clock, `peak_bytes` resident memory. `accesses` is what the step's launches touched,
    where they were interpreted, and `step_processor_seconds` the processor time of that. `code` is what
    Inductor generated for each graph, where it was requested.
    """

    subject: Subject
    family: str
    calls: tuple[GraphCall, ...]
    graphs: int
    torch: str
    triton: str | None
    device: str
    seconds: float
    processor_seconds: float
    peak_bytes: int
    accesses: AccessFacts | None = None
    step_processor_seconds: float = 0.0
    code: tuple[str, ...] = ()


_MEASURE = Remote("deepstack_harness.compile.kernel_worker:measure_subjects", list[Measurement])
_SUBJECT_TIMEOUT_S = 600.0
"""Seconds for each subject; when they are over, nothing is measured."""


def measure(subjects: Sequence[Subject]) -> list[Measurement]:
    """Measure the kernels of each subject's step; all subjects have one target, and share one worker.

    Raises `UsageError` for a wrong subject, `MachineError` where this machine cannot measure it or the
    worker ended, `NotMeasured` where no kernels were seen, and `HarnessError` for any other exception.
    """
    (target,) = {subject.target for subject in subjects}
    (executes,) = {subject.execute for subject in subjects}
    if target in GPUS:
        check_support()
    limits = Limits(call_s=_SUBJECT_TIMEOUT_S * len(subjects))
    environment = ENVIRONMENT if executes else None
    with Worker(limits, preload=_MEASURE.module, environment=environment) as worker:
        result = worker.call(_MEASURE, {"subjects": subjects})
    return value_of(result, f"measuring kernels for target '{target}'")


Pair = tuple[Kernel | None, Kernel | None]
"""A kernel of one call and its counterpart in another call; None where there is none."""


def paired(one: GraphCall, other: GraphCall) -> list[Pair]:
    """Return all kernels of both calls in order; kernels of equal kind and symbolic size are pairs."""
    left, right = one.kernels, other.kernels
    keys, other_keys = [*map(_pairing_key, left)], [*map(_pairing_key, right)]
    matcher = SequenceMatcher(a=keys, b=other_keys, autojunk=False)
    pairs: list[Pair] = []
    for _, begin, end, other_begin, other_end in matcher.get_opcodes():
        if keys[begin:end] == other_keys[other_begin:other_end]:
            pairs += zip(left[begin:end], right[other_begin:other_end], strict=True)
        else:
            pairs += [(kernel, None) for kernel in left[begin:end]]
            pairs += [(None, kernel) for kernel in right[other_begin:other_end]]
    return pairs


def _pairing_key(kernel: Kernel) -> tuple[str | None, ...]:
    # Generated names list every fused operation and so differ; only extern kernels are paired by name.
    name = kernel.kernel if kernel.kind == "extern" else None
    return kernel.kind, name, kernel.symbolic_points, kernel.symbolic_reduction
