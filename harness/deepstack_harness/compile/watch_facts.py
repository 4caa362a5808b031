"""What a watch saw: regions, their guards that failed in later calls, and the facts of inputs, then and now.

Facts are types, values and layouts; never tensors.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum

import torch
from torch import Tensor, nn

from deepstack_harness.text import plural

_LONGEST = 60
"""Characters of a value's text."""
MOST_LISTED = 200
"""Different failing guards of one region that are kept."""


class GuardClass(StrEnum):
    """The meaning of a dropped guard that fails.

    DECIDES: the graph was traced for another presence, type, Python value, set of keys, dtype, device or
    stride, or for another side of a branch of user code. SHOWN: the graph is right as a rule (0/1
    specialisation, grad mode, threads, hooks, `training`, identity of an object, dispatch keys). NOT_ASKED:
    what the guard is about cannot be read any more, so nothing is known.
    """

    DECIDES = "decides"
    SHOWN = "shown"
    NOT_ASKED = "not asked"


@dataclass(frozen=True)
class InputFacts:
    """Facts of one input in one call: type and value of Python objects, layout of tensors; never a tensor.

    `kind` is "absent", "None", "tensor" or the name of a type. `value` is the text of a number, string or
    flag, or the keys or length of a container. `shape` and `stride` are in elements, `address` is that of the
    storage, in bytes.
    """

    kind: str
    value: str = ""
    dtype: str = ""
    device: str = ""
    shape: tuple[int, ...] = ()
    stride: tuple[int, ...] = ()
    requires_grad: bool = False
    address: int = 0

    def __str__(self) -> str:
        """Return the facts in a few words."""
        if self.kind != "tensor":
            return f"{self.kind} {self.value}".strip() if self.kind != "None" else "None"
        return f"{self.dtype} tensor {list(self.shape)} on {self.device}"


ABSENT = InputFacts("absent")


def input_facts(value: object) -> InputFacts:
    """Return the facts of a value that a graph read: an argument, an attribute, a member of a container."""
    if isinstance(value, Tensor):
        return InputFacts(
            "tensor", "", str(value.dtype).removeprefix("torch."), str(value.device), tuple(value.shape),
            tuple(value.stride()) if value.layout is torch.strided else (), value.requires_grad,
            _address(value),
        )  # fmt: skip
    if value is None:
        return InputFacts("None")
    kind = type(value).__name__
    if isinstance(value, bool | int | float | complex | str | bytes):
        return InputFacts(kind, repr(value)[:_LONGEST])
    if isinstance(value, Mapping):
        return InputFacts(kind, ", ".join(map(repr, value))[:_LONGEST])
    if isinstance(value, list | tuple | set | frozenset):
        return InputFacts(kind, f"of {len(value)}")
    if isinstance(value, nn.Module) or not hasattr(value, "tensors"):
        return InputFacts(kind)
    members = value.tensors  # vLLM's IntermediateTensors: tensors by name
    return InputFacts(kind, ", ".join(map(str, members))[:_LONGEST] if isinstance(members, Mapping) else "")


def _address(tensor: Tensor) -> int:
    try:
        return tensor.data_ptr()
    except RuntimeError:  # a tensor without storage
        return 0


@dataclass
class FailedGuard:
    """A dropped guard that failed in calls which used its graph.

    `source` is torch's expression of what it reads, `rule` the text of the guard, `where` FILE:LINE of the
    code that needed it. `then` and `now` are the facts when traced and in the first call that failed.
    `first_call` counts from 1, the call that compiled; `calls` is in how many it failed.
    """

    source: str
    kind: str
    rule: str
    where: str
    guard_class: GuardClass
    then: InputFacts
    now: InputFacts
    first_call: int
    calls: int = 1

    @property
    def name(self) -> str:
        """The source as a user writes it: `payload`, `self.factor`."""
        return _plain(self.source)


@dataclass
class WatchedRegion:
    """One compiled graph: its function, its guards, and those that failed in later calls."""

    name: str
    where: str
    kept: Mapping[str, int]
    dropped: Mapping[str, int]
    calls: int = 1
    unlisted: int = 0
    problem: str = ""
    """The exception of a call in which the guards could not be asked; empty for none."""
    failed: dict[tuple[str, str], FailedGuard] = field(default_factory=dict)

    @property
    def decisive(self) -> list[FailedGuard]:
        """The guards that failed and decide."""
        return [guard for guard in self.failed.values() if guard.guard_class is GuardClass.DECIDES]


@dataclass
class WatchedRegions:
    """All regions that were compiled inside a `watch_guards`."""

    regions: list[WatchedRegion] = field(default_factory=list)

    @property
    def decisive(self) -> list[FailedGuard]:
        """The guards of all regions that failed and decide; an effect was not measured."""
        return [guard for region in self.regions for guard in region.decisive]

    def report(self) -> str:
        """Return what a stranger understands first, and the counts behind it."""
        if not self.regions:
            return "no region was compiled, so nothing was watched"
        lines = [_sentence(region, guard) for region in self.regions for guard in region.decisive]
        dropped = sum(sum(region.dropped.values()) for region in self.regions)
        lines.append(
            f"{plural(len(self.regions), 'region')}, "
            f"{plural(sum(region.calls for region in self.regions), 'call')}, "
            f"{plural(dropped, 'dropped guard')}; failed, and what they are about decides the answer: "
            f"{len(self.decisive) or 'none'}"
        )
        for region in self.regions:
            lines += _table(region)
        return "\n".join(lines)


def _sentence(region: WatchedRegion, guard: FailedGuard) -> str:
    return (
        f"{region.name}: {guard.name} was {guard.then} when compiled, and {guard.now} in {guard.calls} of "
        f"{plural(region.calls, 'call')} (first in call {guard.first_call}); the guard '{guard.rule}' "
        f"({guard.where or 'no line'}) was dropped, so the graph still computes as it was traced"
    )


def _table(region: WatchedRegion) -> Iterator[str]:
    kinds = ", ".join(f"{count} {kind}" for kind, count in Counter(region.dropped).most_common())
    yield f"  {region.name} ({region.where}), {plural(region.calls, 'call')}; dropped: {kinds or 'none'}"
    for guard in region.failed.values():
        yield (
            f"    {guard.guard_class}: {guard.rule} [{guard.kind}] failed in {guard.calls}, first in call "
            f"{guard.first_call}: then {guard.then}, now {guard.now}"
        )
    if region.problem:
        yield f"    the guards could not be asked in {region.problem}"
    if region.unlisted:
        yield f"    and {region.unlisted} failures of guards beyond the first {MOST_LISTED}"


def _plain(source: str) -> str:
    """Return a source as a user writes it: `L['self'].factor` is `self.factor`."""
    for prefix in ("L['", "G['"):
        if source.startswith(prefix):
            return source.removeprefix(prefix).replace("']", "", 1)
    return source


OnChange = Callable[[WatchedRegion, FailedGuard | None], None]
