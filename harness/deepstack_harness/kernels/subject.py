"""Subject of a measurement: the decoder, the source of its payload, the sizes, the target.

No torch: a wrong subject is refused before anything is imported.
"""

from dataclasses import dataclass

from deepstack_harness.catalogue.mutants import BUFFERS
from deepstack_harness.catalogue.registry import FAMILIES, REVISIONS
from deepstack_harness.errors import UsageError, unknown_name
from deepstack_harness.torch_compat.targets import GPUS

CPU = "cpu"
CUDA = "cuda"
TARGETS = (CPU, CUDA, *GPUS)
"""The CPU, the GPU that is here, and GPUs that need not be."""


@dataclass(frozen=True)
class Subject:
    """A decoder of `family` that is traced at `profile_tokens` rows and then called with `tokens`.

    Its payload comes from a buffer of `revision` with `capacity` rows.  `static`
    compiles sizes in, so that the profile run does not matter.  `layers` and
    `hidden` replace the family's; `run` compiles and runs what was generated, as a
    real GPU always does.  `cubin` also compiles Triton kernels for their target.
    `execute` interprets what was generated for a GPU that need not be here, and
    records what every launch touches; `configurations` does so twice.
    Raises `UsageError` for what does not go together.
    """

    family: str
    revision: str
    tokens: int
    capacity: int
    profile_tokens: int
    target: str = CPU
    static: bool = False
    dtype: str = "bfloat16"
    layers: int | None = None
    hidden: int | None = None
    cubin: bool = False
    run: bool = False
    compile_threads: int = 1
    execute: bool = False
    configurations: bool = False

    @property
    def runs(self) -> bool:
        """True if generated code is compiled or interpreted, and run."""
        return self.run or self.execute or self.target == CUDA

    @property
    def arm(self) -> str:
        """Its name: as engines compile, sizes not asserted (they were not before torch 2.12); or static."""
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
        self._check_sizes()
        if self.cubin and self.target not in GPUS:
            raise UsageError(
                f"--cubin compiles for a GPU that is not here ({', '.join(GPUS)}), not '{self.target}'"
            )
        if self.run and self.target in GPUS:
            raise UsageError(
                f"--run cannot run code for '{self.target}', which is not here; use it with --target cpu"
            )

        if self.execute and self.target not in GPUS:
            raise UsageError(
                f"--execute interprets code for a GPU that need not be here ({', '.join(GPUS)}), "
                f"not '{self.target}'"
            )
        if self.execute and self.cubin:
            raise UsageError(
                "--execute interprets the source, and --cubin compiles it: leave one of them out"
            )
        if self.configurations and not self.execute:
            raise UsageError("--configurations compares what --execute runs: add --execute")

    def _check_sizes(self) -> None:
        counts = {"tokens": self.tokens, "capacity": self.capacity, "profile-tokens": self.profile_tokens}
        chosen = {"layers": self.layers, "hidden": self.hidden}
        for name, value in {**counts, **chosen}.items():
            if value is not None and value < 1:
                raise UsageError(f"--{name} {value}: there is nothing to measure below 1")
        for name in ("tokens", "profile-tokens"):
            if counts[name] > self.capacity:
                more = f"--{name} {counts[name]} is above --capacity {self.capacity}"
                raise UsageError(f"{more}: the buffer has fewer rows")
