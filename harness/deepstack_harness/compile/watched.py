"""Watch the guards that a compiled region is used without: which fail in later calls, and which decide.

Serving engines compile once and drop every guard (`guard_filter_fn=torch.compiler.skip_all_guards_unsafe`,
the stance `skip_guard_eval_unsafe`, `disable_guard_check` of a saved artifact). What the first call found is
then burnt into the graph: that an argument was None, a Python number, the keys of a dict. `watch_guards`
keeps the dropped guards beside each graph and asks them in every later call:

    from deepstack_harness import watch_guards

    with watch_guards() as watched:
        serve()
    print(watched.report())

The effect of a failed guard is measured where the region can safely be run again on copies of its inputs
(`torch_compat.rerun`). Outputs stay as they are, no other graph is built, and facts are kept, never tensors.
CUDA graphs that are captured inside are held against their replays (`compile.watch_captured`). Not seen: a
graph that was compiled outside; guards that relate several inputs to each other, such as two names of one
tensor.
"""

import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace

import torch
from torch import nn

from deepstack_harness.compile.torch_compat.guards import (
    GONE,
    PRESENCE,
    SETTINGS,
    SHAPE,
    FailedLeaf,
    GuardTree,
    Locals,
    observe_graphs,
)
from deepstack_harness.compile.torch_compat.rerun import CannotRerun
from deepstack_harness.compile.watch_captured import watch_captured
from deepstack_harness.compile.watch_facts import (
    ABSENT,
    MOST_LISTED,
    FailedGuard,
    GuardClass,
    GuardEffect,
    InputFacts,
    OnCall,
    OnChange,
    WatchedInput,
    WatchedRegion,
    WatchedRegions,
    input_facts,
)

_FIRST_CALLS, _SAMPLE = 8, 64
"""Guards on arguments and on attributes that a program writes are asked in every call, all guards in the
first calls and in each 64th. Every failing guard is listed in the first calls that fail, in each 64th, and
where another kind of call fails. Layouts are looked at in the first calls, and in calls 16, 32, 64, .."""
_MEASURED_CALLS = frozenset({1, 2, 4, 8, 16, 32})
"""The effect is measured in these calls in which a guard fails, until there is one."""
_MOST_REFUSALS = 2
"""A region that could not be run again so often is not tried again."""


@contextmanager
def watch_guards(
    on_change: OnChange | None = None, *, on_call: OnCall | None = None, restored: Collection[str] = (),
    measure: bool = True,
) -> Iterator[WatchedRegions]:  # fmt: skip
    """Watch every region that is compiled inside; gives the facts, which grow while the program runs.

    `on_change` is called with each new region, with each dropped guard that fails for the first time, and
    where an effect was measured; `on_call` after each call of a region. `restored` names guards by
    `FailedGuard.restored_by` that are kept although the program drops them: torch then compiles again where
    one fails. Without `measure` no region is run again, and no effect is known.
    """
    watched = WatchedRegions()

    def on_graph(tree: GuardTree, traced: Locals) -> Callable[[Locals], None]:
        # Facts of everything that a guard reads, now: the traced objects are not held.
        sources = [*(f"L[{name!r}]" for name in traced if name != "self"), *tree.sources()]
        sources += [guard.source for guard in tree.guards if guard.source]
        then = {source: _facts(tree, source, traced) for source in dict.fromkeys(sources)}
        region = _region(tree, traced, then)
        watched.regions.append(region)
        if on_change is not None:
            on_change(region, None)
        watch = _Watch(region, tree, then, on_change or (lambda *_: None), measure=measure)
        if on_call is None:
            return watch.on_call

        def count(values: Locals) -> None:
            watch.on_call(values)
            on_call(region)

        return count

    graphs = observe_graphs(on_graph, restored=frozenset(restored))
    with graphs, watch_captured(watched, on_change, on_call):
        yield watched


@dataclass(frozen=True)
class RestoredGuard:
    """A dropped guard that was put back in another run of a program, and what decides there.

    `failed` is the guard as it failed without being put back; `remaining` are the guards that fail and
    decide with it. The guard changes the answers where it is not among them.
    """

    failed: FailedGuard
    remaining: tuple[FailedGuard, ...]

    @property
    def changes_answers(self) -> bool:
        """True if torch compiled again where this guard failed, so that the answers are right there."""
        return self.failed.restored_by not in {guard.restored_by for guard in self.remaining}


def restore_guards(program: Callable[[], object]) -> list[RestoredGuard]:
    """Run a program, and again with each dropped guard put back that failed and decides, one at a time.

    Dynamo starts cold each time. The program has to do the same in each run: make its models inside.
    """
    torch.compiler.reset()
    with watch_guards() as watched:
        program()
    restored = []
    for guard in {guard.restored_by: guard for guard in watched.decisive}.values():
        torch.compiler.reset()
        with watch_guards(restored=[guard.restored_by]) as again:
            program()
        restored.append(RestoredGuard(guard, tuple(again.decisive)))
    return restored


def _region(tree: GuardTree, traced: Locals, then: Mapping[str, InputFacts]) -> WatchedRegion:
    code, owner = tree.code, traced.get("self")
    name = code.co_qualname if owner is None else f"{type(owner).__name__}.{code.co_name}"
    kept, dropped = (
        Counter(each.kind for each in tree.guards if each.kept is keep) for keep in (True, False)
    )
    where = f"{code.co_filename}:{code.co_firstlineno}"
    inputs = {
        source: WatchedInput(source, facts) for source, facts in then.items() if _is_input(source, facts)
    }
    problem = "a graph that was loaded from a file: what was dropped is not saved" if tree.is_loaded else ""
    return WatchedRegion(name, where, kept, dropped, problem=problem, inputs=inputs)


class _Watch:
    """The guards of one region, asked in every later call."""

    def __init__(
        self,
        region: WatchedRegion,
        tree: GuardTree,
        then: Mapping[str, InputFacts],
        tell: OnChange,
        *,
        measure: bool,
    ) -> None:
        self._region, self._tree, self._then, self._tell = region, tree, then, tell
        self._lines = {guard.source: guard.where for guard in tree.guards if guard.where}
        self._kinds: dict[object, list[FailedGuard]] = {}
        self._failing_calls = self._refusals = 0
        self._refusal = ""
        self._measures = measure

    def on_call(self, values: Locals) -> None:
        """Ask the guards for the local variables of a call."""
        region = self._region
        try:
            region.calls += 1
            self._ask(values)
        except Exception as error:  # noqa: BLE001  # a watch must not end the program that it watches
            region.problem = f"call {region.calls}: {type(error).__name__}: {error}"
            self._tell(region, None)

    def _ask(self, values: Locals) -> None:
        tree, calls = self._tree, self._region.calls
        sampled = calls <= _FIRST_CALLS or calls % _SAMPLE == 0
        if calls <= _FIRST_CALLS or calls.bit_count() == 1:
            self._look_at_inputs(values)
        if calls >= _SAMPLE and calls.bit_count() == 1:
            self._tell(self._region, None)  # a process may be killed before its end
        if not tree.is_unguarded:
            return
        of_inputs = tree.holds(values, inputs=True)
        if not of_inputs or (sampled and not tree.holds(values)):
            self._on_failure(values, of_inputs=not of_inputs)

    def _on_failure(self, values: Locals, *, of_inputs: bool) -> None:
        """Count the guards that fail; to list them takes milliseconds, so it is done once a kind of call."""
        self._failing_calls += 1
        kind = (self._tree.first_failing(values, inputs=of_inputs), *_kind(values))
        known = self._kinds.get(kind)
        if known is None or self._failing_calls <= _FIRST_CALLS or self._failing_calls % _SAMPLE == 0:
            if known is None and self._region.calls > _FIRST_CALLS:
                self._look_at_inputs(values)
            failing = self._kinds[kind] = list(self._listed(values))
        else:
            failing = known
            for guard in failing:
                guard.calls += 1
        if self._measures and any(
            not guard.effect.distance and guard.calls in _MEASURED_CALLS for guard in failing
        ):
            self._measure(values, failing)

    def _listed(self, values: Locals) -> Iterator[FailedGuard]:
        for leaf in self._tree.failing(values):
            guard = self._note(leaf, values)
            if guard is not None:
                yield guard

    def _note(self, leaf: FailedLeaf, values: Locals) -> FailedGuard | None:
        """Return the failed guard of a leaf, one failure later; None where too many are listed."""
        region, key = self._region, (leaf.source, leaf.kind)
        if key in region.failed:
            region.failed[key].calls += 1
            return region.failed[key]
        if len(region.failed) >= MOST_LISTED:
            region.unlisted += 1
            return None
        guard = FailedGuard(
            leaf.source, leaf.kind, leaf.text, self._lines.get(leaf.source, ""), GuardClass.SHOWN,
            ABSENT, ABSENT, region.calls,
        )  # fmt: skip
        guard.then = self._then.get(guard.subject, ABSENT)
        guard.now = _facts(self._tree, guard.subject, values)
        guard.guard_class = guard_class(leaf, guard.then, guard.now)
        region.failed[key] = guard
        self._tell(region, guard)
        return guard

    def _look_at_inputs(self, values: Locals) -> None:
        region = self._region
        region.looked_at += 1
        for each in region.inputs.values():
            now = _facts(self._tree, each.source, values)
            differing = each.then.differing(now)
            each.changed.update(differing)
            if differing and each.now is None:
                each.now, each.first_call = now, region.calls

    def _measure(self, values: Locals, failing: Iterable[FailedGuard]) -> None:
        """Run this call again on copies; guards that decide have its effect before those that are shown."""
        decide = [guard for guard in failing if guard.guard_class is GuardClass.DECIDES]
        effect = self._effect(values, decide or failing)
        for guard in decide if decide and effect.distance else failing:
            before = guard.effect
            if not before.distance and (effect.calls or not before.calls):
                guard.effect = replace(effect, calls=before.calls + effect.calls)
                self._tell(self._region, guard)

    def _effect(self, values: Locals, failing: Iterable[FailedGuard]) -> GuardEffect:
        if self._refusals >= _MOST_REFUSALS:
            return GuardEffect(reason=self._refusal)
        try:
            apart = self._tree.difference(values)
        except CannotRerun as refused:
            self._refusals += 1
            self._refusal = str(refused)
            return GuardEffect(reason=self._refusal)
        if not apart.matters and not self._tree.is_interpreted and any(map(_is_of_layout, failing)):
            return GuardEffect(
                reason="its compiled kernels are for another dtype, device or stride, and are not run again"
            )
        return GuardEffect(1, apart.distance if apart.matters else 0.0, apart.scale, "")


def _is_of_layout(guard: FailedGuard) -> bool:
    """Return True for a failed guard on the layout of a tensor, which kernels may be made for."""
    return guard.kind == "TENSOR_MATCH" and guard.guard_class is GuardClass.DECIDES


def _kind(values: Locals) -> Iterator[InputFacts]:
    """Yield the facts of the arguments in which calls of one kind agree: not their sizes and addresses."""
    for value in values.values():
        if not isinstance(value, nn.Module):
            yield replace(input_facts(value), shape=(), stride=(), address=0)


def _facts(tree: GuardTree, source: str, values: Locals) -> InputFacts:
    try:
        return input_facts(tree.read(source, values))
    except Exception:  # noqa: BLE001  # nothing is there, or user code raises: absent either way
        return ABSENT


# Guards about the state of the process, not about an input.
_STATE = frozenset({"GLOBAL_STATE", "TORCH_FUNCTION_MODE_STACK", "DEFAULT_DEVICE", "DUAL_LEVEL_MATCH"})
# Dictionaries of modules, whose members are inputs by themselves, and names that Dynamo makes.
_INTERNAL = re.compile(r"(?:\.|\[')(?:__dict__|_modules|_parameters|_buffers|__\w+__)(?:'\])?$|__import_|^L$")
_IDENTITY = frozenset({"ID_MATCH", "DICT_VERSION", "OBJECT_ALIASING", "NO_TENSOR_ALIASING"})
_LAYOUT = ("kind", "subclass", "dtype", "device")


def _is_input(source: str, facts: InputFacts) -> bool:
    """Return True for data that a graph read, False for code, modules and hooks."""
    is_data = facts.kind in {"None", "tensor"} or bool(facts.value)
    return is_data and not SETTINGS.search(source) and not _INTERNAL.search(source)


def guard_class(leaf: FailedLeaf, then: InputFacts, now: InputFacts) -> GuardClass:
    """Return whether a failed guard decides, by its kind and by what differs between both calls."""
    if leaf.kind in {GONE, "WEAKREF_ALIVE"}:
        return GuardClass.NOT_ASKED
    if leaf.kind in _STATE or leaf.source in {"", "L"} or SETTINGS.search(leaf.source):
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
