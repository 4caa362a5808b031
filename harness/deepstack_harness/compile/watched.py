"""Watch the guards that a compiled region is used without: which fail in later calls, and which decide.

Serving engines compile once and drop every guard (`guard_filter_fn=torch.compiler.skip_all_guards_unsafe`,
the stance `skip_guard_eval_unsafe`, `disable_guard_check` of a saved artifact). What the first call found is
then burnt into the graph: that an argument was None, a Python number, the keys of a dict. `watch_guards`
keeps the dropped guards beside each graph and asks them in every later call:

    from deepstack_harness import watch_guards

    with watch_guards() as watched:
        serve()
    print(watched.report())

Outputs stay as they are, no other graph is built, and facts are kept, never tensors. Not seen: a replay of a
CUDA graph, which runs no Python; a graph that was compiled outside, or loaded from a file; guards that relate
several inputs to each other, such as two names of one tensor.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import StrEnum

import torch
from torch import Tensor, nn

from deepstack_harness.compile.torch_compat.guards import (
    GONE,
    PRESENCE,
    SHAPE,
    FailedLeaf,
    GuardTree,
    Locals,
    observe_graphs,
)
from deepstack_harness.text import plural

_LONGEST = 60
"""Characters of a value's text."""
_MOST_LISTED = 200
"""Different failing guards of one region that are kept."""
_FIRST_CALLS, _SAMPLE = 8, 64
"""Guards on inputs are asked in every call, those on the process in the first calls and in each 64th."""


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
        yield f"    and {region.unlisted} failures of guards beyond the first {_MOST_LISTED}"


OnChange = Callable[[WatchedRegion, FailedGuard | None], None]


@contextmanager
def watch_guards(on_change: OnChange | None = None) -> Iterator[WatchedRegions]:
    """Watch every region that is compiled inside; gives the facts, which grow while the program runs.

    `on_change` is called with each new region, and with each dropped guard that fails for the first time.
    """
    watched = WatchedRegions()
    with observe_graphs(lambda tree, traced: _watch(watched, on_change, tree, traced)):
        yield watched


def _watch(
    watched: WatchedRegions, on_change: OnChange | None, tree: GuardTree, traced: Locals
) -> Callable[[Locals], None]:
    """Add a region; return what is called with the local variables of each later call."""
    code = tree.code
    kept, dropped = (
        Counter(each.kind for each in tree.guards if each.kept is keep) for keep in (True, False)
    )
    where = f"{code.co_filename}:{code.co_firstlineno}"
    region = WatchedRegion(_region_name(tree, traced), where, kept, dropped)
    watched.regions.append(region)
    if on_change is not None:
        on_change(region, None)
    # Facts of everything that a guard reads, now: the traced objects are not held.
    then = {source: _facts(tree, source, traced) for source in {*tree.sources(), *_sources(tree)}}
    lines = {guard.source: guard.where for guard in tree.guards if guard.where}

    def on_call(values: Locals) -> None:
        try:
            ask(values)
        except Exception as error:  # noqa: BLE001  # a watch must not end the program that it watches
            region.problem = f"call {region.calls}: {type(error).__name__}: {error}"
            if on_change is not None:
                on_change(region, None)

    def ask(values: Locals) -> None:
        region.calls += 1
        whole = region.calls <= _FIRST_CALLS or region.calls % _SAMPLE == 0
        if not tree.is_unguarded or tree.holds(values, inputs=not whole):
            return
        for leaf in tree.failing(values):
            now = _facts(tree, leaf.source, values)
            guard = _note(region, leaf, lines.get(leaf.source, ""), then.get(leaf.source, ABSENT), now)
            if guard is not None and on_change is not None:
                on_change(region, guard)

    return on_call


def _sources(tree: GuardTree) -> Iterator[str]:
    return (guard.source for guard in tree.guards if guard.source)


def _note(
    region: WatchedRegion, leaf: FailedLeaf, where: str, then: InputFacts, now: InputFacts
) -> FailedGuard | None:
    """Count a failure; return the guard where it is its first one."""
    key = (leaf.source, leaf.kind)
    if key in region.failed:
        region.failed[key].calls += 1
        return None
    if len(region.failed) >= _MOST_LISTED:
        region.unlisted += 1
        return None
    found = guard_class(leaf, then, now)
    region.failed[key] = FailedGuard(leaf.source, leaf.kind, leaf.text, where, found, then, now, region.calls)
    return region.failed[key]


def _facts(tree: GuardTree, source: str, values: Locals) -> InputFacts:
    try:
        return input_facts(tree.read(source, values))
    except Exception:  # noqa: BLE001  # nothing is there, or user code raises: absent either way
        return ABSENT


def _region_name(tree: GuardTree, traced: Locals) -> str:
    owner = traced.get("self")
    name = tree.code.co_name
    return f"{type(owner).__name__}.{name}" if owner is not None else tree.code.co_qualname


# Guards about the state of the process, not about an input.
_STATE = frozenset({"GLOBAL_STATE", "TORCH_FUNCTION_MODE_STACK", "DEFAULT_DEVICE", "DUAL_LEVEL_MATCH"})
# Module modes and hooks: the graph was traced for them, and is right for a program that does not use them.
_SHOWN_NAMES = ("training", "_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
_IDENTITY = frozenset({"ID_MATCH", "WEAKREF_ALIVE", "DICT_VERSION", "OBJECT_ALIASING", "NO_TENSOR_ALIASING"})
_LAYOUT = ("kind", "dtype", "device")


def guard_class(leaf: FailedLeaf, then: InputFacts, now: InputFacts) -> GuardClass:
    """Return whether a failed guard decides, by its kind and by what differs between both calls."""
    if leaf.kind == GONE:
        return GuardClass.NOT_ASKED
    if leaf.kind in _STATE or leaf.source in {"", "L"} or any(name in leaf.source for name in _SHOWN_NAMES):
        return GuardClass.SHOWN
    if leaf.kind == SHAPE:
        return GuardClass.SHOWN if leaf.specialised else GuardClass.DECIDES
    if leaf.kind == PRESENCE:
        return GuardClass.DECIDES if then.kind != "absent" else GuardClass.NOT_ASKED
    if leaf.kind == "TENSOR_MATCH":
        differs = any(getattr(then, name) != getattr(now, name) for name in _LAYOUT)
        fits = _fits(leaf.sizes, now.shape) and _fits(leaf.strides, now.stride)
        return GuardClass.DECIDES if differs or not fits else GuardClass.SHOWN
    if leaf.kind in _IDENTITY and then.kind == now.kind:
        return GuardClass.SHOWN
    return GuardClass.DECIDES


def _fits(wanted: tuple[int | None, ...] | None, found: tuple[int, ...]) -> bool:
    """Return whether sizes or strides are those that a graph was traced for; None may be any."""
    if wanted is None:
        return True
    return len(wanted) == len(found) and all(
        want is None or want == have for want, have in zip(wanted, found, strict=True)
    )


def _plain(source: str) -> str:
    """Return a source as a user writes it: `L['self'].factor` is `self.factor`."""
    for prefix in ("L['", "G['"):
        if source.startswith(prefix):
            return source.removeprefix(prefix).replace("']", "", 1)
    return source
