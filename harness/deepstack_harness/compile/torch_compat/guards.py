"""The tree of all guards of a compiled graph, stored with it, and evaluated again in every later call.

Read in torch 2.13. Dynamo builds the tree of every guard before it calls `guard_filter_fn`
(`CheckFunctionManager.__init__`), and builds a second one without the guards that the filter dropped. The
first tree is stored here, completed by torch's own `compile_check_fn` (guards on tensors that are one
object). A guard of our own, which always holds, is added after the guards of the second one: Dynamo calls it
with the local variables of the frame in each call that uses this graph. So nothing of the program is wrapped,
no other graph is built, and a call that recompiles is not counted.

A call evaluates the whole tree: nodes of sources, relations of sizes (SHAPE_ENV, which torch compiles into
one predicate of Python or C++ at the end of the tree), settings of the process, and identities of tensors.
Where it fails, the guards that failed before are evaluated one by one, and all others in a clone of the tree
without them, so that a guard that fails in every call does not hide another one.

A stance with `skip_guard_eval_unsafe` evaluates a third tree, of the sources in which cached graphs differ.
It is a clone, which includes our guard. `AOTCompiledFunction` evaluates no guard after `disable_guard_check`.
"""

import inspect
import re
import threading
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import cache, partial
from importlib import import_module
from itertools import islice
from operator import attrgetter
from types import CodeType
from typing import Any
from unittest.mock import patch

import torch

from deepstack_harness.compile.torch_compat.guard_sources import (
    ALIAS,
    DUPLICATE,
    GONE,
    OWN_GUARD,
    PRESENCE,
    SHAPE,
    UNNAMED,
    SizeRelation,
    name_sizes_as_read,
    size_relations,
)
from deepstack_harness.compile.torch_compat.process_settings import (
    SETTING_KINDS,
    process_settings,
)
from deepstack_harness.compile.torch_compat.rerun import (
    CannotRerun,
    GraphCopies,
    OutputDifference,
    TracedRegion,
)
from deepstack_harness.errors import MachineError

Locals = Mapping[str, Any]
"""Local variables of a frame by name, the arguments of the compiled function among them."""
OnCall = Callable[[Locals], None]


@dataclass(frozen=True)
class BuiltGuard:
    """One guard of a graph: the expression that it reads, its type, and the line that needed it.

    `where` is FILE:LINE, empty where Dynamo does not record it.
    """

    source: str
    kind: str
    kept: bool
    where: str = ""


@dataclass(frozen=True)
class FailedLeaf:
    """A leaf of the tree that does not hold: the expression it reads, torch's class of it, and its text.

    `sizes` and `strides` are those that a guard on a tensor wants, None for each that may be any. `relation`
    is that of a failed relation of sizes.
    """

    source: str
    kind: str
    text: str
    sizes: tuple[int | None, ...] | None = None
    strides: tuple[int | None, ...] | None = None
    relation: SizeRelation | None = None


class GuardTree:
    """All guards that Dynamo built for one graph, those that a filter dropped included.

    `whole` is the tree of all of them, `sources` that of the guards with a source: without settings of the
    process, relations of sizes, and identities of tensors.
    """

    def __init__(
        self,
        whole: Any,  # noqa: ANN401  # torch's GuardManagerWrapper, here and in `sources`
        sources: Any,  # noqa: ANN401
        code: CodeType,
        guards: Sequence[BuiltGuard],
        scope: Locals,
        region: TracedRegion | None = None,
    ) -> None:
        from torch._dynamo.eval_frame import _is_skip_guard_eval_unsafe_stance
        from torch._dynamo.guards import SYMPY_INTERP, _get_closure_vars  # type: ignore[attr-defined]

        self._whole, self._sources = whole, sources
        self._names, self._scope = {**SYMPY_INTERP, **_get_closure_vars()}, scope
        self.stance_skips_guards = _is_skip_guard_eval_unsafe_stance
        self.region = region
        self._expressions: dict[str, CodeType] = {}
        self._failed_nodes: dict[str, Any] = {}
        self._rests: dict[frozenset[str], Any] = {}
        self._failed_relations: set[SizeRelation] = set()
        self._other_relations: dict[frozenset[str], str] = {}
        texts = [part for leaf in _relational_leaves(whole.root) for part in leaf.verbose_code_parts()]
        pairs = [match.groups() for text in texts if (match := _SAME_OBJECT.match(text))]
        self._duplicates = tuple(dict.fromkeys((str(first), str(other)) for other, first in pairs))
        relations = [
            relation for text in texts if not _UNREADABLE.match(text) for relation in size_relations(text)
        ]
        self.relations = tuple(name_sizes_as_read(relations))
        self.settings = process_settings()
        self.code = code
        self.guards = tuple(guards)
        self.drops = not all(guard.kept for guard in guards)
        self.is_loaded = False
        """Whether the graph was loaded from a file: the guards that were dropped did not come with it."""

    def holds(self, values: Locals) -> bool:
        """Return whether every guard holds for these local variables."""
        with torch._C._EnableTorchFunction():  # off while guards are checked, which is a guard by itself
            return bool(self._whole.check(values))

    def difference(self, values: Locals, put_back: Mapping[str, object] | None = None) -> OutputDifference:
        """Run the region again on copies, as written and as traced; raises `CannotRerun`.

        `put_back` are values by source expression that both runs use in place of those of the call.
        """
        if self.region is None:
            raise CannotRerun(f"torch {torch.__version__} does not give the traced code")
        return self.region.difference(dict(values), self.settings, put_back or {})

    def sources(self) -> Iterator[str]:
        """Yield the expression of each node of the whole tree."""
        for node in _nodes(self._whole.root):
            yield node.get_source()

    def read(self, source: str, values: Locals) -> object:
        """Return the value of a source expression such as `L['self'].factor`; raises what reading raises."""
        if source not in self._expressions:
            self._expressions[source] = compile(source, "<guard>", "eval")
        return eval(self._expressions[source], self._names, {**self._scope, "L": values})  # torch's own text

    def failing(self, values: Locals) -> list[FailedLeaf]:
        """Return every leaf of the whole tree that does not hold; torch itself stops at the first one."""
        with torch._C._EnableTorchFunction():
            failed = [
                *self._failing_nodes(values), *self._failing_relations(values),
                *self._failing_identities(values), *self._failing_settings(values),
            ]  # fmt: skip
            if not failed and not self._whole.check(values):
                text = " and ".join(self._whole.check_verbose(values).verbose_code_parts)
                failed.append(FailedLeaf("", UNNAMED, text))
        return failed

    def _failing_nodes(self, values: Locals) -> list[FailedLeaf]:
        """Return the failed leaves: nodes that failed before one by one, all others in one tree."""
        failed = {
            source: leaves
            for source, node in self._failed_nodes.items()
            if (leaves := self._failing_leaves(node, values))
        }
        key = frozenset(failed)
        if key not in self._rests:
            if len(self._rests) >= _MOST_RESTS:
                self._rests.pop(next(iter(self._rests)))
            root = self._sources.root
            keep = root.clone_manager(lambda node: node.get_source() not in key) if key else root
            self._rests[key] = keep
        if not self._rests[key].check(values):
            for node in _nodes(self._sources.root):
                source = node.get_source()
                if source not in failed and (leaves := self._failing_leaves(node, values)):
                    failed[source] = leaves
                    below = list(islice(_nodes(node), _MOST_BELOW))
                    self._failed_nodes |= {lower.get_source(): lower for lower in below}
        return [leaf for leaves in failed.values() for leaf in leaves]

    def _failing_leaves(self, node: Any, values: Locals) -> list[FailedLeaf]:  # noqa: ANN401
        source = node.get_source()
        try:
            value = values if node is self._sources.root else self.read(source, values)
        except (KeyError, AttributeError, IndexError, TypeError) as error:
            return [FailedLeaf(source, PRESENCE, f"{source} is gone: {type(error).__name__}")]
        except Exception as error:  # noqa: BLE001  # user code may run: a property, a descriptor
            return [FailedLeaf(source, GONE, f"{source} cannot be read: {type(error).__name__}")]
        return list(_failing_leaves(source, node, value))

    def _failing_relations(self, values: Locals) -> Iterator[FailedLeaf]:
        """Yield each relation of sizes that does not hold, such as `6 <= L['x'].size()[0]`."""
        predicates = self._whole.root.get_epilogue_lambda_guards()  # none where torch compiles them to C++
        if predicates and all(leaf(values) for leaf in predicates):
            return
        failed = {known for known in self._failed_relations if not self._relation_holds(known.text, values)}
        key = frozenset(relation.text for relation in failed)
        if key not in self._other_relations:
            others = (f"({relation.text})" for relation in self.relations if relation not in failed)
            self._other_relations[key] = " and ".join(others) or "True"
        if not self._relation_holds(self._other_relations[key], values, unreadable=False):
            failed |= {other for other in self.relations if not self._relation_holds(other.text, values)}
            self._failed_relations |= failed
        for relation in self.relations:
            if relation in failed:
                yield FailedLeaf(relation.text, SHAPE, relation.text, relation=relation)

    def _relation_holds(self, text: str, values: Locals, *, unreadable: bool = True) -> bool:
        try:
            return bool(self.read(text, values))
        except Exception:  # noqa: BLE001  # it reads a tensor that is not there, whose own leaf fails
            return unreadable

    def _failing_identities(self, values: Locals) -> Iterator[FailedLeaf]:
        """Yield pairs of sources that were one tensor and are two, and that were two and are one."""
        for first, other in self._duplicates:
            text = f"{first} is {other}"
            if not self._relation_holds(text, values):
                yield FailedLeaf(text, DUPLICATE, text)
        names: dict[int, str] = {}
        for source in self._whole.no_tensor_aliasing_sources:
            with suppress(Exception):  # it is not there, and its own leaf fails
                first = names.setdefault(id(self.read(source, values)), source)
                if first != source:
                    yield FailedLeaf(f"{first} is {source}", ALIAS, f"{first} is not {source}")

    def _failing_settings(self, values: Locals) -> Iterator[FailedLeaf]:
        """Yield each setting of the process that is another one than that of the trace, by its name."""
        for leaf in self._whole.root.get_leaf_guards():
            if leaf(values):
                continue
            text = _text(leaf)
            kind = next(
                (kind for part, kind in _KINDS.items() if part in f"{type(leaf).__name__} {text}"), ""
            )
            now = process_settings()
            names = [name for name, then in self.settings.items() if now[name] != then]
            for name in [name for name in names if SETTING_KINDS[name] == kind] or [text]:
                yield FailedLeaf(name, kind or type(leaf).__name__, name)


_KINDS = {
    "GLOBAL_STATE": "GLOBAL_STATE", "FUNCTION_MODE": "TORCH_FUNCTION_STATE",
    "DEFAULT_DEVICE": "DEFAULT_DEVICE", "DUAL_LEVEL": "DUAL_LEVEL", "pyfunctorch": "FUNCTORCH_STACK_MATCH",
    "saved_tensors_hooks": "AUTOGRAD_SAVED_TENSORS_HOOKS",
}  # fmt: skip
"""A part of the class or text of a guard on the process, and the function of `GuardBuilder` that makes it."""
_MOST_BELOW = 200
"""Nodes below one that failed, which are evaluated one by one while it fails; later ones while it holds."""
_MOST_RESTS = 16
"""Clones of a tree without the nodes that fail, each for another set of them; an older one is made again."""
_SAME_OBJECT = re.compile(r"(\S+) is (\S+)(?=\s|$)")
_UNREADABLE = re.compile(r"\S+ is \S+|check_overlapping|check_no_aliasing")


def _relational_leaves(root: Any) -> Iterator[Any]:  # noqa: ANN401
    """Yield the guards that relate several sources to each other, each once."""
    yield from root.get_epilogue_lambda_guards()
    seen = set()
    for node in _nodes(root):
        for leaf in node.get_leaf_guards():
            if type(leaf).__name__ in _RELATIONAL and (text := _text(leaf)) not in seen:
                seen.add(text)
                yield leaf


_RELATIONAL = frozenset({"OBJECT_ALIASING", "SYMBOLIC_SHAPE_GUARD"})


def _nodes(root: Any) -> Iterator[Any]:  # noqa: ANN401
    stack = [root]
    while stack:
        node = stack.pop()
        yield node
        stack += node.get_child_managers()
        if hasattr(node, "get_key_value_managers"):
            pairs = node.get_key_value_managers().values()
            stack += [child for pair in pairs for child in pair if child is not None]


def _text(leaf: Any) -> str:  # noqa: ANN401
    return " and ".join(part.partition("  #")[0].strip() for part in leaf.verbose_code_parts())


def _failing_leaves(source: str, node: Any, value: object) -> Iterator[FailedLeaf]:  # noqa: ANN401
    of_type = True
    for leaf in node.get_leaf_guards():
        try:
            held = leaf(value)
        except TypeError:  # a guard that relates several inputs
            continue
        except SystemError:  # the length of what has none: the guard on its type fails first
            held = not of_type
        if not held:
            of_type = False
            text = _text(leaf)
            yield FailedLeaf(
                source, type(leaf).__name__, text, _listed("size", text), _listed("stride", text)
            )


def _listed(name: str, text: str) -> tuple[int | None, ...] | None:
    """Return `size=[None, 4]` of torch's text for a guard on a tensor as (None, 4)."""
    match = re.search(rf"\b{name}=\[([^\]]*)\]", text)
    if match is None:
        return None
    return tuple(
        int(size) if size.strip().isdigit() else None for size in match[1].split(",") if size.strip()
    )


@contextmanager
def observe_graphs(
    on_graph: Callable[[GuardTree, Locals], OnCall], *, restored: Collection[str] = ()
) -> Iterator[None]:
    """Call `on_graph` with the guards of each graph that is built inside, and what it returns in each call.

    `on_graph` gets the tree and the local variables that were traced. What it returns is called with the
    local variables of every later call that uses the graph, until the context ends. Guards whose source is in
    `restored` are not dropped although the program drops them; SHAPE_ENV names all relations of sizes.
    Contexts may overlap in any order.

    Raises `MachineError` where this torch does not have a private name that this needs.
    """
    lacks = missing_names()
    if lacks:
        raise MachineError(
            f"torch {torch.__version__} has no {', '.join(lacks)}: its dropped guards cannot be watched"
        )
    observer = _Observer(on_graph, frozenset(restored))
    if not _OBSERVERS:
        _PATCHES.enter_context(_patched())
    _OBSERVERS.append(observer)
    try:
        yield
    finally:
        observer.active = False  # our guards stay in the trees, and hold
        _OBSERVERS.remove(observer)
        if not _OBSERVERS:
            _PATCHES.close()


_NEEDED = {
    "torch._C": ("_EnableTorchFunction",),
    "torch._dynamo.aot_compile": (
        "AOTCompiledFunction.__call__", "CompileArtifacts", "bind_locals",
    ),
    "torch._dynamo.eval_frame": ("_is_skip_guard_eval_unsafe_stance",),
    "torch._dynamo.guards": (
        "CheckFunctionManager.build_guards", "CheckFunctionManager.compile_check_fn",
        "GuardManagerWrapper.populate_diff_guard_manager",
        "GuardManagerWrapper.finalize", "SYMPY_INTERP", "_get_closure_vars",
    ),
    "torch._dynamo.output_graph": ("OutputGraph.call_user_compiler",),
    "torch._C._dynamo.guards": (
        "RootGuardManager.add_epilogue_lambda_guard", "RootGuardManager.get_epilogue_lambda_guards",
        "GuardManager.get_leaf_guards", "GuardManager.get_child_managers", "GuardManager.get_source",
        "RootGuardManager.clone_manager",
    ),
}  # fmt: skip
"""Private names of torch by module: in 2.10, 2.13 and 2.15. `torch_compat.rerun` has those of a rerun."""
_PARAMETERS = frozenset({"f_code", "output_graph", "guard_filter_fn"})
"""Parameters of `CheckFunctionManager` that are read."""


@cache
def missing_names() -> tuple[str, ...]:
    """Return the private names that a watch needs, and that this torch does not have."""
    missing = []
    for module, names in _NEEDED.items():
        for name in names:
            try:
                attrgetter(name)(import_module(module))
            except (ImportError, AttributeError):
                missing.append(f"{module}.{name}")
    if not missing:
        manager = attrgetter("CheckFunctionManager")(import_module("torch._dynamo.guards"))
        missing += sorted(_PARAMETERS - set(inspect.signature(manager.__init__).parameters))
    return tuple(missing)


class _Observer:
    """One open `observe_graphs`."""

    def __init__(self, on_graph: Callable[[GuardTree, Locals], OnCall], restored: frozenset[str]) -> None:
        self.on_graph, self.restored = on_graph, restored
        self.active = True

    def guard(self, on_call: OnCall) -> Callable[[Locals], bool]:
        """Return a guard that always holds, and calls `on_call` with the local variables."""

        def hold(values: Locals) -> bool:
            # Code that is run again to measure an effect may call other compiled regions.
            inside = getattr(_INSIDE, "call", False)
            if self.active and not inside and not torch.compiler.is_compiling():
                _INSIDE.call = True
                try:
                    on_call(values)
                finally:
                    _INSIDE.call = False
            return True

        return hold


_OBSERVERS: list[_Observer] = []
_PATCHES = ExitStack()
_INSIDE = threading.local()


@contextmanager
def _patched() -> Iterator[None]:
    """Report each graph that Dynamo builds, and each call of a saved artifact, to the observers."""
    from torch._dynamo.aot_compile import AOTCompiledFunction, bind_locals
    from torch._dynamo.guards import CheckFunctionManager
    from torch._dynamo.output_graph import OutputGraph

    build, call_saved = CheckFunctionManager.__init__, AOTCompiledFunction.__call__
    call_backend = OutputGraph.call_user_compiler
    signature, copies = inspect.signature(build), GraphCopies()
    callbacks: dict[int, list[Callable[[Locals], bool]]] = {}

    def build_and_observe(self: Any, *args: Any, **kwargs: Any) -> None:  # noqa: ANN401
        bound = signature.bind(self, *args, **kwargs)
        # A tree cannot be evaluated while it is being checked (a lock): a filter lets Dynamo build two.
        restored = frozenset[str]().union(*(observer.restored for observer in _OBSERVERS))
        recorder = _GuardRecorder(
            bound.arguments.get("guard_filter_fn") or (lambda entries: [True] * len(entries)), restored
        )
        bound.arguments["guard_filter_fn"] = recorder
        build(*bound.args, **bound.kwargs)
        graph = bound.arguments["output_graph"]
        if graph is None or recorder.manager is None:
            return
        code, scope = bound.arguments["f_code"], {"G": graph.global_scope}
        frame = inspect.currentframe()
        caller = frame.f_back.f_locals.get("self") if frame and frame.f_back else None
        region = copies.take(code, caller, graph.global_scope)
        tree = GuardTree(recorder.manager, recorder.sources, code, recorder.guards, scope, region)
        # Only passed where torch loads what was saved (`load_guard_manager`).
        tree.is_loaded = bound.arguments.get("runtime_global_scope") is not None
        traced = dict(graph.local_scope)
        guards = _IN_PLACE[code, id(traced.get("self"))] = callbacks[id(self.guard_manager)] = [
            observer.guard(observer.on_graph(tree, traced)) for observer in _OBSERVERS
        ]
        root = self.guard_manager.root
        # From torch 2.11 on each guard takes the user's stack too.
        stack = () if "arg2" not in type(root).add_epilogue_lambda_guard.__doc__ else (None,)
        for guard in guards:
            root.add_epilogue_lambda_guard(guard, [OWN_GUARD], *stack)
        self.guard_manager.populate_diff_guard_manager()

    def check_and_call(self: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401
        if not self._guard_check_enabled:
            # It adds free variables; torch 2.10 has no such method, and only binds the arguments.
            prepare = getattr(self, "prepare_f_locals", None) or partial(
                bind_locals, self._artifacts.signature
            )
            for guard in callbacks.get(id(self._artifacts.guard_manager), ()):
                guard(prepare(*args, **kwargs))
        return call_saved(self, *args, **kwargs)

    with ExitStack() as stack:
        stack.callback(_IN_PLACE.clear)
        for owner, name, value in (
            (CheckFunctionManager, "__init__", build_and_observe),
            (AOTCompiledFunction, "__call__", check_and_call),
            (OutputGraph, "call_user_compiler", copies.around(call_backend)),
        ):
            stack.enter_context(patch.object(owner, name, value))
        yield


_IN_PLACE: dict[tuple[CodeType, int], list[Callable[[Locals], bool]]] = {}
"""Our guards by the code that was compiled, and the id of the `self` that was traced."""


def call_own_guards(code: CodeType, values: Locals) -> None:
    """Call our guards of a graph that runs as bytecode or in another process, where Dynamo checks no guard.

    vLLM puts the bytecode of a graph in place of `code`, that of the function which was compiled; `values`
    are the arguments of the call.
    """
    for guard in _IN_PLACE.get((code, id(values.get("self"))), ()):
        guard(values)


class _GuardRecorder:
    """A `guard_filter_fn` that drops what another one drops, and records the tree of all guards."""

    def __init__(
        self,
        inner: Callable[[Sequence[Any]], Sequence[bool]],
        restored: frozenset[str],
    ) -> None:
        self._inner, self._restored = inner, restored
        self.manager: Any = None
        self.sources: Any = None
        self.guards: list[BuiltGuard] = []

    def __call__(self, entries: Sequence[Any]) -> Sequence[bool]:
        guards = [entry.orig_guard for entry in entries]
        kept = [
            keep or guard.name in self._restored or guard.create_fn_name() in self._restored
            for keep, guard in zip(self._inner(entries), guards, strict=True)
        ]
        for guard in guards:
            if "___from_numpy(" in guard.name:  # another tensor each time, which torch would compare with ==
                guard.obj_weakref = None
        frame = inspect.currentframe()
        caller = frame.f_back if frame else None
        self.manager = caller.f_locals.get("guard_manager") if caller else None
        if caller is not None and self.manager is not None:
            self.sources = _build_trees(caller.f_locals, guards)
        self.guards.clear()
        for guard, keep in zip(guards, kept, strict=True):
            stack = guard.user_stack or (guard.stack.summary() if guard.stack else None)
            frames = [frame for frame in stack or () if not frame.filename.startswith(str(torch.__path__[0]))]
            where = f"{frames[-1].filename}:{frames[-1].lineno}" if frames else ""
            self.guards.append(BuiltGuard(guard.name, guard.create_fn_name(), keep, where))
        return kept


def _build_trees(names: Mapping[str, Any], guards: Sequence[Any]) -> Any:  # noqa: ANN401
    """Complete the tree of all guards, as Dynamo does with the one that it uses; return that of the sources.

    `names` are the local variables of `CheckFunctionManager.__init__`.
    """
    manager = names["self"]
    manager.guard_manager, modes = names["guard_manager"], manager.torch_function_mode_stack
    manager.compile_check_fn(names["builder"], guards, None)
    del manager.guard_manager
    manager.torch_function_mode_stack = modes  # forgotten there, and needed for the next tree
    _, sources = manager.build_guards(
        [guard for guard in guards if guard.name],
        names["existing_diff_guard_sources"], names["f_code"], names["output_graph"], False,
    )  # fmt: skip
    sources.finalize()
    return sources


SETTINGS = re.compile(r"(?:\.|\[')(?:training|_\w*hooks\w*)(?:'\])?(?!\w)")
"""Modes and hooks of modules in a source: a graph was traced for them, and as a rule is right without."""
