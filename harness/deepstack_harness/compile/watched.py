"""Watch the guards that a compiled region is used without: which fail in later calls, and which decide.

Serving engines compile once and drop every guard (`guard_filter_fn=torch.compiler.skip_all_guards_unsafe`,
the stance `skip_guard_eval_unsafe`, `disable_guard_check` of a saved artifact). What the first call found is
then burnt into the graph: that an argument was None, a Python number, the keys of a dict. `watch_guards`
stores the dropped guards with each graph and evaluates them in every later call:

    from deepstack_harness import watch_guards

    with watch_guards() as watched:
        serve()
    print(watched.report())

The effect of a failed guard is measured where the region can safely be run again on copies of its inputs
(`torch_compat.rerun`). Outputs stay as they are, no other graph is built, and facts are stored, never
tensors. The inputs of CUDA graphs that are captured inside are compared with those of their replays
(`compile.watch_captured`). Not seen: a graph that was compiled outside, and what torch itself has no guard
on, such as inputs whose memory overlaps.
"""

import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from deepstack_harness.compile.captured_inputs import sizes_of
from deepstack_harness.compile.torch_compat.guard_sources import (
    ALIAS,
    DUPLICATE,
    GONE,
    PRESENCE,
    UNNAMED,
    readable,
)
from deepstack_harness.compile.torch_compat.guards import (
    SETTINGS,
    FailedLeaf,
    GuardTree,
    Locals,
    observe_graphs,
)
from deepstack_harness.compile.torch_compat.process_settings import (
    SETTING_KINDS,
    process_settings,
    setting_text,
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
from deepstack_harness.compile.watch_text import words_of

_FIRST_CALLS = 8
"""Every guard is evaluated in every call. Layouts of inputs, which decide nothing, are looked at in the first
calls, in calls 16, 32, 64, .., and where another guard fails."""
_MOST_MEASURED = 32
"""The effect of a guard is measured in its calls 1, 2, 4, 8, .. and for so many values of what it reads and
sizes of the call, until there is one: each measurement costs two uncompiled calls."""
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
    `FailedGuard.restored_by` that are not dropped although the program drops them: torch then compiles again
    where one fails. Without `measure` no region is run again, and no effect is known.

    >>> with watch_guards() as watched:
    ...     _ = torch.compile(lambda x: x + 1, backend="eager")(torch.ones(3))
    >>> len(watched.regions), watched.decisive
    (1, [])
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
        notify = on_change or (lambda *_: None)
        watch = _Watch(region, tree, then, traced, notify, measure=measure)
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

    `failed` is the guard as it failed without being put back; `remaining` are the guards that fail and decide
    with it. The guard changes the outputs where it is not among them.
    """

    failed: FailedGuard
    remaining: tuple[FailedGuard, ...]

    @property
    def changes_answers(self) -> bool:
        """Return whether torch compiled again where this guard failed, so that outputs are right there."""
        return self.failed.restored_by not in {guard.restored_by for guard in self.remaining}


def restore_guards(program: Callable[[], object]) -> list[RestoredGuard]:
    """Run a program, and again with each dropped guard put back that failed and decides, one at a time.

    Dynamo starts cold each time. The program has to do the same in each run: make its models inside.

    >>> def program():
    ...     torch.compile(torch.sin, backend="eager")(torch.ones(3))
    >>> restore_guards(program)
    []
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
        Counter(guard.kind for guard in tree.guards if guard.kept is keep) for keep in (True, False)
    )
    where = f"{code.co_filename}:{code.co_firstlineno}"
    # A graph read data there, and not code, modules and hooks.
    inputs = {
        source: WatchedInput(source, facts)
        for source, facts in then.items()
        if facts.kind in {"None", "tensor"} or facts.value
        if not SETTINGS.search(source) and not _INTERNAL.search(source)
    }
    problem = "a graph that was loaded from a file: what was dropped is not saved" if tree.is_loaded else ""
    return WatchedRegion(name, where, kept, dropped, problem=problem, inputs=inputs)


class _Watch:
    """The guards of one region, evaluated in every later call."""

    def __init__(
        self,
        region: WatchedRegion,
        tree: GuardTree,
        then: Mapping[str, InputFacts],
        traced: Locals,
        notify: OnChange,
        *,
        measure: bool,
    ) -> None:
        self._region, self._tree, self._then, self._notify = region, tree, then, notify
        self._lines = {guard.source: guard.where for guard in tree.guards if guard.where}
        self._sizes = {
            relation.subject: _facts(tree, relation.subject, traced) for relation in tree.relations
        }
        self._constants = {
            source: value for source in then if (value := _constant(tree, source, traced)) is not _UNKNOWN
        }
        self._measured: dict[tuple[str, str], set[object]] = {}
        self._refusals = 0
        self._refusal = ""
        self._measures = measure

    def on_call(self, values: Locals) -> None:
        """Evaluate the guards for the local variables of a call."""
        region = self._region
        try:
            region.calls += 1
            self._evaluate(values)
        except Exception as error:  # noqa: BLE001  # a watch must not end the program that it watches
            region.problem = f"call {region.calls}: {type(error).__name__}: {error}"
            self._notify(region, None)

    def _evaluate(self, values: Locals) -> None:
        tree, region = self._tree, self._region
        if region.calls <= _FIRST_CALLS or region.calls.bit_count() == 1:
            self._look_at_inputs(values)
        if region.calls > _FIRST_CALLS and region.calls.bit_count() == 1:
            self._notify(region, None)  # a process may be killed before its end
        # Some guards were dropped, or all are skipped: else no call uses the graph where one fails.
        unguarded = tree.drops or tree.stance_skips_guards()
        if not unguarded or (not region.failed and tree.holds(values)):
            return
        known = len(region.failed)
        failing = [guard for leaf in tree.failing(values) if (guard := self._note(leaf, values))]
        if len(region.failed) > known and region.calls > _FIRST_CALLS:
            self._look_at_inputs(values)
        if self._measures and sum(self._is_new(guard, values) for guard in failing):
            self._measure(values, failing)

    def _is_new(self, guard: FailedGuard, values: Locals) -> bool:
        """Return whether the effect of a guard is to be measured for the values of this call."""
        if guard.effect.distance:
            return False
        seen = self._measured.setdefault((guard.source, guard.kind), set())
        now = replace(self._facts_of(guard, values)[1], address=0), sizes_of(values)
        if len(seen) < _MOST_MEASURED and now not in seen:
            seen.add(now)
            return True
        return guard.calls.bit_count() == 1

    def _note(self, leaf: FailedLeaf, values: Locals) -> FailedGuard | None:
        """Return the failed guard of a leaf, one failure later; None where too many are listed."""
        region, key = self._region, (leaf.source, leaf.kind)
        if key in region.failed:
            region.failed[key].calls += 1
            return region.failed[key]
        if len(region.failed) >= MOST_LISTED:
            region.unlisted += 1
            return None
        relation = leaf.relation
        where = relation.where if relation else self._lines.get(leaf.source, "")
        guard = FailedGuard(
            leaf.source, leaf.kind, leaf.text, where, GuardClass.SHOWN, ABSENT, ABSENT, region.calls,
            relation=relation,
        )  # fmt: skip
        guard.then, guard.now = self._facts_of(guard, values)
        guard.guard_class = guard_class(leaf, guard.then, guard.now)
        if guard.guard_class is GuardClass.SHOWN and self._setting_decides(guard, values):
            guard.guard_class = GuardClass.DECIDES
        region.failed[key] = guard
        self._notify(region, guard)
        return guard

    def _facts_of(self, guard: FailedGuard, values: Locals) -> tuple[InputFacts, InputFacts]:
        """Return the facts of what a guard reads, when traced and now."""
        tree, source = self._tree, guard.subject
        if guard.relation is not None:
            return self._sizes[source], _facts(tree, source, values)
        if guard.kind in {ALIAS, DUPLICATE}:
            facts = InputFacts("", "one tensor"), InputFacts("", "two tensors")
            return facts if guard.kind == DUPLICATE else facts[::-1]
        if source in tree.settings:
            now = process_settings()[source]
            return InputFacts("", setting_text(tree.settings[source])), InputFacts("", setting_text(now))
        if source != guard.source:  # an attribute that hides one of the class, or is new
            owner, _, name = source.rpartition(".")
            inherited = hasattr(type(tree.read(owner, values)), name)
            then = InputFacts("", "that of its class") if inherited else ABSENT
            return then, _facts(tree, source, values)
        return self._then.get(source, ABSENT), _facts(tree, source, values)

    def _setting_decides(self, guard: FailedGuard, values: Locals) -> bool:
        """Return whether a graph may compute something else under another setting, or with one tensor."""
        tree = self._tree
        if guard.kind == ALIAS:
            return tree.region is None or tree.region.writes_inputs
        match guard.source:
            case "grad mode":
                leaves = [
                    leaf
                    for value in values.values()
                    for leaf in (value.parameters() if isinstance(value, nn.Module) else [value])
                ]
                requires = any(isinstance(leaf, Tensor) and leaf.requires_grad for leaf in leaves)
                return guard.now.value == "on" and requires
            case "autocast" | "level of forward-mode AD":
                return True
            case "default dtype" | "default device" | "torch function modes":
                return tree.region is None or tree.region.makes_tensors
        return guard.kind == "FUNCTORCH_STACK_MATCH"

    def _look_at_inputs(self, values: Locals) -> None:
        region = self._region
        region.looked_at += 1
        for given in region.inputs.values():
            now = _facts(self._tree, given.source, values)
            differing = given.then.differing(now)
            given.changed.update(differing)
            if differing and given.now is None:
                given.now, given.first_call = now, region.calls

    def _measure(self, values: Locals, failing: Sequence[FailedGuard]) -> None:
        """Run this call again on copies; guards that decide have its effect before those that are shown."""
        decide = [guard for guard in failing if guard.guard_class is GuardClass.DECIDES]
        joint = self._effect(values, decide or failing)
        blamed = decide if decide and joint.distance else failing
        effects = self._separate_effects(values, blamed, joint) if joint.distance else {}
        for guard in blamed:
            before, effect = guard.effect, effects.get(guard.subject, joint)
            if not before.distance and (effect.calls or not before.calls):
                guard.effect = replace(effect, calls=before.calls + effect.calls)
                self._notify(self._region, guard)

    def _separate_effects(
        self, values: Locals, failing: Sequence[FailedGuard], joint: GuardEffect
    ) -> dict[str, GuardEffect]:
        """Return the effect of each single input, where several changed: all others are put back.

        Where the others cannot be put back, an input has no effect if nothing changes when it is put back.
        """
        subjects = list(dict.fromkeys(guard.subject for guard in failing))
        if not 1 < len(subjects) <= _MOST_VARIED:
            return {}
        restored = {
            guard.subject: self._restored(guard, values) for guard in failing
        }  # fmt: skip
        effects: dict[str, GuardEffect] = {}
        for subject in subjects:
            others = {other: restored[other] for other in subjects if other != subject}
            if _UNKNOWN not in others.values():
                effects[subject] = self._effect(values, failing, others)
            elif restored[subject] is not _UNKNOWN:
                without = self._effect(values, failing, {subject: restored[subject]})
                same = without.calls and without.distance == joint.distance
                effects[subject] = replace(joint, distance=0.0, reason="") if same else joint
            else:
                names = ", ".join(readable(other) for other in others if restored[other] is _UNKNOWN)
                effects[subject] = replace(joint, together=words_of(names, 60))
        # Where no input has an effect by itself, all of them have it together.
        return effects if any(effect.distance for effect in effects.values()) else {}

    def _restored(self, guard: FailedGuard, values: Locals) -> object:
        """Return what a graph was traced with in place of an input, as far as it can be made again."""
        source = guard.source
        if guard.relation is not None or guard.is_setting or guard.kind in {ALIAS, DUPLICATE}:
            return _UNKNOWN
        if source in self._constants:
            return self._constants[source]
        try:
            return _as_before(self._tree.read(source, values), guard.then)
        except Exception:  # noqa: BLE001  # it is not there, or user code raises
            return _UNKNOWN

    def _effect(
        self, values: Locals, failing: Iterable[FailedGuard], put_back: Mapping[str, object] | None = None
    ) -> GuardEffect:
        if self._refusals >= _MOST_REFUSALS:
            return GuardEffect(reason=self._refusal)
        try:
            apart = self._tree.difference(values, put_back)
        except CannotRerun as refused:
            if put_back is None:
                self._refusals += 1
                self._refusal = str(refused)
            return GuardEffect(reason=str(refused))
        # Where the backend runs the traced graph itself, no kernel was made for a layout.
        runs_kernels = self._tree.region is None or not self._tree.region.interpreted
        if not apart.matters and runs_kernels and any(map(_is_of_kernels, failing)):
            return GuardEffect(
                reason="its kernels are for another dtype, device, size or stride, and are not run again"
            )
        return GuardEffect(1, apart.distance if apart.matters else 0.0, apart.scale, apart.why)


_UNKNOWN = object()
"""In place of a value that cannot be made again."""
_MOST_VARIED = 8
"""Inputs that are varied one by one; of more the effect is that of all together."""
_CONSTANTS = (bool, int, float, complex, str, bytes, type(None), torch.dtype, torch.device)


def _constant(tree: GuardTree, source: str, values: Locals) -> object:
    """Return the value of a source where it is a number, a text or None, which hold no memory."""
    try:
        value = tree.read(source, values)
    except Exception:  # noqa: BLE001  # nothing is there, or user code raises
        return _UNKNOWN
    return value if type(value) in _CONSTANTS else _UNKNOWN


def _as_before(value: object, then: InputFacts) -> object:
    """Return a tensor with dtype and strides of the trace, or a list or tuple of its length."""
    if isinstance(value, Tensor) and then.kind == "tensor" and value.dim() == len(then.shape):
        if str(value.device) != then.device or then.subclass:
            return _UNKNOWN
        dtype: torch.dtype = getattr(torch, then.dtype)
        order = sorted(range(value.dim()), key=lambda dim: -then.stride[dim])
        dense = value.detach().to(dtype).permute(order).contiguous()
        made = dense.permute([order.index(dim) for dim in range(value.dim())])
        return made.requires_grad_(then.requires_grad)
    if isinstance(value, list | tuple) and then.value.startswith("of "):
        length = int(then.value.removeprefix("of "))
        return value[:length] if length <= len(value) else _UNKNOWN
    return _UNKNOWN


def _is_of_kernels(guard: FailedGuard) -> bool:
    """Return whether the failed guard is on what kernels may be made for, and no eager kernel shows."""
    if guard.guard_class is not GuardClass.DECIDES:
        return False
    equality = guard.relation is not None and guard.relation.assumed.startswith("equal")
    of_process = guard.is_setting and guard.source not in {"grad mode", "autocast", "default dtype"}
    return equality or of_process or guard.kind in {"TENSOR_MATCH", ALIAS}


def _facts(tree: GuardTree, source: str, values: Locals) -> InputFacts:
    try:
        return input_facts(tree.read(source, values))
    except Exception:  # noqa: BLE001  # nothing is there, or user code raises: absent either way
        return ABSENT


# Dictionaries of modules, whose members are inputs by themselves, and names that Dynamo makes.
_INTERNAL = re.compile(r"(?:\.|\[')(?:__dict__|_modules|_parameters|_buffers|__\w+__)(?:'\])?$|__import_|^L$")
_IDENTITY = frozenset({"ID_MATCH", "DICT_VERSION"})
_SHOWN = frozenset({ALIAS, *SETTING_KINDS.values(), "FUNCTORCH_STACK_MATCH", "AUTOGRAD_SAVED_TENSORS_HOOKS"})
_LAYOUT = ("kind", "subclass", "dtype", "device")


def guard_class(leaf: FailedLeaf, then: InputFacts, now: InputFacts) -> GuardClass:
    """Return whether a failed guard decides, by its kind and by what differs between both calls."""
    if leaf.kind in {GONE, "WEAKREF_ALIVE"}:
        return GuardClass.NOT_ASKED
    if leaf.kind in {DUPLICATE, UNNAMED}:
        return GuardClass.DECIDES
    if leaf.kind in _SHOWN or leaf.source == "L" or SETTINGS.search(leaf.source):
        return GuardClass.SHOWN
    if leaf.relation is not None:
        return GuardClass.SHOWN if leaf.relation.specialised else GuardClass.DECIDES
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
