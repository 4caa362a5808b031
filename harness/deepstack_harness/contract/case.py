"""Cases: a family, a buffer, a trace and an arm, and where they are played.

A `BufferRef` names a buffer wherever its code is: a registered one, a user's class, a class of a package's
source, a live object. Dtypes and devices are names, which `check_dtype` and `check_device` refuse without
torch where they are misspelt.
"""

import functools
import hashlib
import re
from dataclasses import dataclass
from enum import StrEnum

from deepstack_harness.contract.adapter import Adapter
from deepstack_harness.contract.arm import ArmSpec, PayloadPolicy
from deepstack_harness.contract.rules import Rule
from deepstack_harness.contract.trace import DTYPES, Trace
from deepstack_harness.errors import UsageError, unknown_name


class BufferKind(StrEnum):
    """The place that a buffer's code comes from.

    REGISTERED: a revision or a mutant of ours, by its name in the registry. USER: a class that is imported
    where the case is played. SOURCE: a class of a package's source; whoever plays the case
    binds it. LIVE: an object of the running process, passed in by a test.
    """

    REGISTERED = "registered"
    USER = "user"
    SOURCE = "source"
    LIVE = "live"


@dataclass(frozen=True)
class BufferRef:
    """A buffer implementation, as cases and their records name it.

    `name` is for readers: the registered name, `MODULE:CLASS` of a user's class or a live object, or the
    label of a source (`vllm 0.22.1`, `vllm at PATH (VERSION)`). `package`, `version` (None if unknown) and
    `model_class` are of sources only. `replayed`: get and clear run once for each size, and what
    they did is repeated afterwards, as a FULL CUDA graph does (`deepstack_harness.engines.bind`). `adapter`
    is there for a class of a user or a live one that has another shape or other names.
    """

    kind: BufferKind
    name: str
    package: str | None = None
    version: str | None = None
    model_class: str | None = None
    replayed: bool = False
    adapter: Adapter | None = None

    @property
    def source(self) -> str | None:
        """The label of the source; None for buffers that come from none."""
        return self.name if self.kind is BufferKind.SOURCE else None

    @property
    def identity(self) -> str:
        """Text that differs for any two buffers that are not the same."""
        words = [self.name, self.model_class, "replayed" if self.replayed else None, str(self.adapter or "")]
        return " ".join(filter(None, words))


def registered(name: str) -> BufferRef:
    """Return the reference of a revision or a mutant; nobody checks here that it exists."""
    return BufferRef(BufferKind.REGISTERED, name)


def user_buffer(name: str, adapter: Adapter | None = None) -> BufferRef:
    """Return the reference of a user's class; raises `UsageError` for a name that is no `MODULE:CLASS`."""
    module, _, class_name = name.partition(":")
    if not module or not class_name:
        raise UsageError(f"'{name}' is not MODULE:CLASS, as in my_package.buffers:MyBuffer")
    return BufferRef(BufferKind.USER, name, adapter=adapter)


def live_buffer(name: str, adapter: Adapter | None = None) -> BufferRef:
    """Return the reference of an object in this process, by the name that a report is to show."""
    return BufferRef(BufferKind.LIVE, name, adapter=adapter)


def source_buffer(package: str, version: str | None, label: str, model_class: str) -> BufferRef:
    """Return the reference of a class in the source with this package, version (None: unknown) and label."""
    return BufferRef(BufferKind.SOURCE, label, package, version, model_class)


ENGINE = "engine"
"""The name of the caller that does everything right."""
LEVELS_ALONE, HIDDEN_ALONE = 3, 8
"""Sizes for fuzzing a buffer without a decoder: as many levels as released models have, and rows that are
short enough to compare all of them at every step."""


class Compare(StrEnum):
    """The references that the decoder's output is compared with at every forward.

    ALL: eager, both controls and fp64. EAGER: eager and the zeroed payload only, for long workloads.
    NOTHING: no decoder runs; forward and profile read and clear.
    """

    ALL = "all"
    EAGER = "eager"
    NOTHING = "nothing"


class Regime(StrEnum):
    """The way in which a trace runs the buffer's Python.

    LIVE: at every step. CAPTURED: some steps replay a graph, which repeats what get and clear recorded
    when it was captured. NONE: for systems that play no trace.
    """

    LIVE = "live"
    CAPTURED = "captured"
    NONE = ""


@dataclass(frozen=True)
class Case:
    """One thing to play.

    `caller` names the code that calls the buffer and the decoder
    (`deepstack_harness.catalogue.registry.CALLERS`). `graph_budget` is the number of graphs that the compiler
    may build over the whole trace.
    """

    family: str
    buffer: BufferRef
    trace: Trace
    arm: ArmSpec
    dtype: str = "float32"
    device: str = "cpu"
    seed: int = 0
    graph_budget: int = 1
    compare: Compare = Compare.ALL
    caller: str = ENGINE

    @functools.cached_property
    def id(self) -> str:
        """Twelve characters that stay the same from run to run."""
        parts = (self.family, subject_of(self.buffer.identity, self.caller), self.trace, self.arm.name)
        text = "|".join(map(str, (*parts, self.dtype, self.device, self.seed)))
        return hashlib.sha256(text.encode()).hexdigest()[:12]

    @property
    def group(self) -> str:
        """Family, arm and device: cases of one group share a warm process."""
        return f"{self.family} {self.arm.name} {self.device}"

    @property
    def subject(self) -> str:
        """The judged buffer, `pr43617`, with a caller that is no correct engine: `pr43617@micro_batches`."""
        return subject_of(self.buffer.name, self.caller)

    @property
    def regime(self) -> Regime:
        """CAPTURED where a graph is replayed, by a step of the trace or around the buffer."""
        return Regime.CAPTURED if self.buffer.replayed or self.trace.replays else Regime.LIVE


@dataclass(frozen=True)
class PlannedCase:
    """A case with the catalogue's expectations.

    `must_break` has the rules that the case must break, and is None where the catalogue has no expectation (a
    user's buffer, a source, a trace of a user's own). `incident` is the id of the incident that the case
    belongs to.
    """

    case: Case
    must_break: frozenset[Rule] | None
    note: str = ""
    incident: str | None = None

    @property
    def id(self) -> str:
        """The case's."""
        return self.case.id

    @property
    def group(self) -> str:
        """The case's."""
        return self.case.group

    @property
    def is_control(self) -> bool:
        """Return whether this case shows the output of a model without a payload."""
        return self.case.arm.payload is not PayloadPolicy.BUFFER

    @property
    def wanted(self) -> tuple[Rule, ...] | None:
        """`must_break` in the order of the rules."""
        return None if self.must_break is None else tuple(rule for rule in Rule if rule in self.must_break)

    def expects(self, rule: Rule) -> bool | None:
        """Return whether the catalogue expects this rule to be broken; None where it expects nothing."""
        return None if self.must_break is None else rule in self.must_break


def parse_subject(text: str) -> tuple[str, str]:
    """Return the buffer's name and the caller that `Case.subject` put together."""
    name, _, caller = text.partition("@")
    return name, caller or ENGINE


def subject_of(name: str, caller: str) -> str:
    """Return `NAME`, or `NAME@CALLER` under another caller than a correct engine."""
    return name if caller == ENGINE else f"{name}@{caller}"


_KNOWN_DEVICES = "known are cpu, cuda and cuda:N"


def check_dtype(name: str) -> None:
    """Raise `UsageError` for a name that is no dtype of a decoder."""
    if name not in DTYPES:
        raise unknown_name("dtype", name, DTYPES)


def check_device(name: str) -> None:
    """Raise `UsageError` for a name other than `cpu`, `cuda` and `cuda:1`."""
    if not re.fullmatch(r"cpu|cuda(:\d{1,4})?", name):
        raise UsageError(f"unknown device '{name}'; {_KNOWN_DEVICES}")
