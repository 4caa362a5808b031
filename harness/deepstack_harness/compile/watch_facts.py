"""What a watch saw: regions, their guards that failed in later calls, and the facts of inputs, then and now.

Facts are types, values and layouts; never tensors.
"""

import math
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, fields
from enum import StrEnum
from typing import Any

import torch
from torch import Tensor, nn

from deepstack_harness.compile.torch_compat.guard_sources import (
    ALIAS,
    DUPLICATE,
    GONE,
    SHAPE,
    SizeRelation,
    readable,
)
from deepstack_harness.compile.torch_compat.process_settings import SETTING_KINDS
from deepstack_harness.compile.watch_text import finding_text, findings, region_lines, to_do, words_of
from deepstack_harness.contract.observation import DroppedGuard
from deepstack_harness.text import plural

_LONGEST = 60
"""Characters of a value's text."""
MOST_LISTED = 200
"""Different failing guards of one region that are stored."""


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
    flag, or the keys or length of a container. `subclass` is the name of a class of tensors other than Tensor
    and Parameter, between which no graph differs. `shape` and `stride` are in elements, `address` is that of
    the storage, in bytes.
    """

    kind: str
    value: str = ""
    subclass: str = ""
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
        return f"{self.dtype} {self.subclass or 'tensor'} {list(self.shape)} on {self.device}"

    def text_next_to(self, other: "InputFacts") -> str:
        """Return the facts in words, with one more fact that differs where the texts of both are equal."""
        if self.kind != "tensor" or str(self) != str(other):
            return str(self)
        if self.stride != other.stride:
            return f"{self} with strides {list(self.stride)}"
        if self.requires_grad != other.requires_grad:
            return f"{self} {'with' if self.requires_grad else 'without'} requires_grad"
        return f"{self} at 0x{self.address:x}" if self.address != other.address else str(self)

    def differing(self, now: "InputFacts") -> tuple[str, ...]:
        """Return the names of the facts that differ from those of a later call; a shape is free."""
        if self.kind != now.kind:
            return ("presence" if {"None", "absent"} & {self.kind, now.kind} else "type",)
        return tuple(name for name in _COMPARED if getattr(self, name) != getattr(now, name))


_OWN_ATTRIBUTE = re.compile(r"not ___dict_contains\('(\w+)'")
_SETTING_KINDS = {*SETTING_KINDS.values(), "FUNCTORCH_STACK_MATCH", "AUTOGRAD_SAVED_TENSORS_HOOKS"}
_COMPARED = ("value", "subclass", "dtype", "device", "stride", "requires_grad", "address")
"""Facts of an input that are compared, where its kind is the same."""


ABSENT = InputFacts("absent")


def input_facts(value: object) -> InputFacts:
    """Return the facts of a value that a graph read: an argument, an attribute, a member of a container."""
    if isinstance(value, Tensor):
        try:
            address = value.data_ptr()
        except RuntimeError:  # a tensor without storage
            address = 0
        subclass = "" if type(value) in {Tensor, nn.Parameter} else type(value).__name__
        return InputFacts(
            "tensor", "", subclass, str(value.dtype).removeprefix("torch."), str(value.device),
            tuple(value.shape), tuple(value.stride()) if value.layout is torch.strided else (),
            value.requires_grad, address,
        )  # fmt: skip
    if value is None:
        return InputFacts("None")
    kind = type(value).__name__
    if isinstance(value, bool | int | float | complex | str | bytes):
        return InputFacts(kind, words_of(repr(value), _LONGEST))
    if isinstance(value, Mapping):
        return InputFacts(kind, words_of(", ".join(map(repr, value)), _LONGEST) or "empty")
    if isinstance(value, list | tuple | set | frozenset):
        return InputFacts(kind, f"of {len(value)}")
    if isinstance(value, nn.Module) or not hasattr(value, "tensors"):
        return InputFacts(kind)
    members = value.tensors  # vLLM's IntermediateTensors: tensors by name
    names = ", ".join(map(str, members)) if isinstance(members, Mapping) else ""
    return InputFacts(kind, words_of(names, _LONGEST))


@dataclass
class GuardEffect:
    """The measured effect of a failed guard on the output.

    `calls` counts the calls that were run again, `distance` is the largest absolute difference between the
    uncompiled and the traced code that rounding does not explain, `scale` the largest value of that output.
    `reason` is the reason why nothing was measured, or why the distance is infinite.
    """

    calls: int = 0
    distance: float = 0.0
    scale: float = 0.0
    reason: str = "not tried"
    together: str = ""
    """Inputs that changed in the same calls and cannot be put back, so that the effect may be theirs."""

    @property
    def is_none(self) -> bool:
        """Return whether the effect was measured, and there is none."""
        return self.calls > 0 and not self.distance

    def __str__(self) -> str:
        """Return the effect in words."""
        if not self.calls:
            return f"effect not measured: {self.reason}"
        if not self.distance:
            return f"no effect in {plural(self.calls, 'call')} run again"
        if not math.isfinite(self.distance):
            text = self.reason or "outputs are not finite, or not in the same places"
        else:
            text = f"outputs differ by {self.distance:.3g} (largest value {self.scale:.3g})"
        return f"{text}, together with {self.together}" if self.together else text


@dataclass
class FailedGuard:
    """A dropped guard that failed in calls which used its graph.

    `source` is torch's expression of what it reads, `kind` torch's class of the guard, `rule` its text,
    `where` FILE:LINE of the code that needed it. `then` and `now` are the facts when traced and in the first
    call that failed. `first_call` counts from 1, the call that compiled; `calls` is in how many it failed.
    `relation` is that of a failed relation of sizes.
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
    effect: GuardEffect = field(default_factory=GuardEffect)
    relation: SizeRelation | None = None

    def dropped(self, where: str) -> DroppedGuard:
        """Return it as plain facts, with the place of the code that needed it as readers are to see it."""
        decides = self.guard_class is GuardClass.DECIDES
        return DroppedGuard(
            self.name, self.rule, where, str(self.then), str(self.now), self.first_call, self.calls, decides
        )

    @property
    def name(self) -> str:
        """The source as a user writes it: `payload`, `self.factor`, `x.shape[0]`, `x and memory`."""
        name = readable(self.subject)
        return name.replace(" is ", " and ") if self.kind in {ALIAS, DUPLICATE} else name

    @property
    def subject(self) -> str:
        """The source of the input: what a relation of sizes compares, the attribute that a module got."""
        own = _OWN_ATTRIBUTE.search(self.rule)
        if own and self.source.endswith(".__dict__"):
            return f"{self.source.removesuffix('.__dict__')}.{own[1]}"
        return self.relation.subject if self.relation else self.source

    @property
    def restored_by(self) -> str:
        """The name that puts this guard back: its source, or its kind where it has none."""
        if self.kind == ALIAS:
            return "TENSOR_MATCH"  # torch adds it to the guards on the tensors
        return self.kind if self.kind in {SHAPE, DUPLICATE} or self.is_setting else self.source

    @property
    def is_setting(self) -> bool:
        """Return whether the guard is on a setting of the process, such as the grad mode."""
        return self.kind in _SETTING_KINDS

    @property
    def in_doubt(self) -> bool:
        """Return whether nothing is known: it cannot be read, or two tensors became one unmeasured."""
        aliased = self.kind == ALIAS and self.guard_class is GuardClass.SHOWN and not self.effect.calls
        return self.kind == GONE or aliased

    @property
    def counts(self) -> bool:
        """Return whether the failure decides, by what it is about, unless the measured effect is none.

        A guard that is only shown counts where an effect was measured.
        """
        match self.guard_class:
            case GuardClass.DECIDES:
                return not self.effect.is_none
            case GuardClass.SHOWN:
                return self.effect.distance > 0
        return False


@dataclass
class WatchedInput:
    """The layout of one input of a region, when it was traced and in the calls that were looked at.

    `changed` counts, for each fact that differed (presence, type, value, dtype, device, stride,
    requires_grad, address), the calls in which it did; `now` are the facts of the first such call.
    """

    source: str
    then: InputFacts
    now: InputFacts | None = None
    first_call: int = 0
    changed: Counter[str] = field(default_factory=Counter)

    @property
    def name(self) -> str:
        """The source as a user writes it."""
        return readable(self.source)


@dataclass
class WatchedRegion:
    """One compiled graph: its function, guards, inputs, and the guards that failed in later calls.

    Where `captured` is True it is a callable whose CUDA graphs are replayed: `calls` are replays, `failed`
    are inputs that differ from those of the capture, and in `unseen` replays no input was visible.
    """

    name: str
    where: str
    kept: Mapping[str, int]
    dropped: Mapping[str, int]
    calls: int = 1
    unlisted: int = 0
    problem: str = ""
    """Where no guard could be evaluated: a call with its exception, a loaded graph; empty for nowhere."""
    failed: dict[tuple[str, str], FailedGuard] = field(default_factory=dict)
    inputs: dict[str, WatchedInput] = field(default_factory=dict)
    looked_at: int = 0
    """Calls in which the layout of all inputs was looked at."""
    captured: bool = False
    unseen: int = 0
    uncompiled: str = ""
    """Why an engine ran it as it is written: `calls` are such calls then. It is a `problem` as well where
    nothing of the engine's model is compiled."""

    @property
    def decisive(self) -> list[FailedGuard]:
        """The guards that failed and decide."""
        return [guard for guard in self.failed.values() if guard.counts]

    def start_again(self) -> None:
        """Count from zero, in a process that was forked and goes on with this graph."""
        self.calls = self.unlisted = self.looked_at = 0
        self.failed.clear()
        for given in self.inputs.values():
            given.now, given.first_call, given.changed = None, 0, Counter()


@dataclass
class WatchedRegions:
    """All regions that were compiled inside a `watch_guards`."""

    regions: list[WatchedRegion] = field(default_factory=list)

    @property
    def decisive(self) -> list[FailedGuard]:
        """The guards of all regions that failed and decide."""
        return [guard for region in self.regions for guard in region.decisive]

    def report(self) -> str:
        """Return the findings in plain words, and after them the counts of each region."""
        if not self.regions:
            return "no region was compiled, so nothing was watched"
        facts = [(region, region_facts(region, inputs=False)) for region in self.regions]
        decide = findings([(fact, guard) for _, fact in facts for guard in fact["failed"] if guard["counts"]])
        lines = [
            line
            for finding in decide
            for line in (finding_text(finding), f"  {' '.join(to_do(finding)).rstrip()}")
        ]
        dropped = sum(sum(region.dropped.values()) for region in self.regions)
        lines.append(
            f"{plural(len(self.regions), 'region')}, "
            f"{plural(sum(region.calls for region in self.regions), 'call')}, "
            f"{plural(dropped, 'dropped guard')}; failed, and what they are about decides the answer: "
            f"{len(self.decisive) or 'none'}"
        )
        for region, fact in facts:
            lines += [*region_lines([fact]), *_table(region)]
        return "\n".join(lines)


def _table(region: WatchedRegion) -> Iterator[str]:
    for guard in region.failed.values():
        yield (
            f"    {guard.guard_class}: {guard.name} [{guard.kind}] failed in {guard.calls}, first in call "
            f"{guard.first_call}: then {guard.then}, now {guard.now}; {guard.effect}"
        )
    for given in region.inputs.values():
        facts = [fact for fact in given.changed if fact != "address"]  # decides only in captured graphs
        if facts:
            yield (
                f"    input {given.name}: {', '.join(facts)} differed from call {given.first_call} on; "
                f"then {given.then}, now {given.now}"
            )
    if region.unseen:
        yield f"    inputs not visible in {plural(region.unseen, 'replay')}"
    if region.problem:
        yield f"    the guards could not be evaluated in {region.problem}"
    if region.unlisted:
        yield f"    and {region.unlisted} failures of guards beyond the first {MOST_LISTED}"


def region_facts(region: WatchedRegion, *, inputs: bool = True) -> dict[str, Any]:
    """Return the facts of a region as JSON has them, with or without the layout of its inputs."""
    facts = {
        field.name: getattr(region, field.name)
        for field in fields(region)
        if field.name not in {"failed", "inputs"}
    }
    facts["failed"] = [
        {
            "source": guard.source, "name": guard.name, "kind": guard.kind, "rule": readable(guard.rule),
            "where": guard.where, "is_setting": guard.is_setting, "in_doubt": guard.in_doubt,
            **{
                name: getattr(guard.relation, name) if guard.relation else ""
                for name in ("assumed", "code", "reason")
            },
            "class": guard.guard_class.value,
            "then": guard.then.text_next_to(guard.now), "now": guard.now.text_next_to(guard.then),
            "first_call": guard.first_call, "calls": guard.calls,
            "restored_by": guard.restored_by, "counts": guard.counts, "effect": str(guard.effect),
            "has_effect": guard.effect.distance > 0 if guard.effect.calls else None,
            "distance": (
                guard.effect.distance
                if guard.effect.calls and math.isfinite(guard.effect.distance)
                else None
            ),
        }
        for guard in region.failed.values()
    ]  # fmt: skip
    if inputs:
        facts["inputs"] = [
            {
                "name": given.name, "source": given.source, "first_call": given.first_call,
                "changed": dict(given.changed), "then": asdict(given.then),
                "now": asdict(given.now) if given.now else None,
            }
            for given in region.inputs.values()
        ]  # fmt: skip
    return facts


OnChange = Callable[[WatchedRegion, FailedGuard | None], None]
OnCall = Callable[[WatchedRegion], None]
