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
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from deepstack_harness.compile.torch_compat.guards import (
    GONE,
    PRESENCE,
    SHAPE,
    FailedLeaf,
    GuardTree,
    Locals,
    observe_graphs,
)
from deepstack_harness.compile.watch_facts import (
    ABSENT,
    MOST_LISTED,
    FailedGuard,
    GuardClass,
    InputFacts,
    OnChange,
    WatchedRegion,
    WatchedRegions,
    input_facts,
)

_FIRST_CALLS, _SAMPLE = 8, 64
"""Guards on inputs are asked in every call, those on the process in the first calls and in each 64th."""


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
    if len(region.failed) >= MOST_LISTED:
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
