"""When a function of an engine runs: before the first call, in the warm-up, in a step.

A function is followed back through its callers by name, as far as the class of what they call is known, to
the methods by which an engine loads, warms up and executes.  These names are the interface of the runners of
vLLM 0.22.1 to 0.33.0 and SGLang 0.5.14 to 0.5.23; nothing here names a model.
"""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Iterable, Iterator, Mapping
from enum import Flag, auto
from typing import NamedTuple

from deepstack_harness.audit.inputs.index import RUNNER_FOLDERS, Class, ClassIndex
from deepstack_harness.audit.inputs.rows import Place
from deepstack_harness.audit.inputs.writes import (
    How,
    Path,
    Written,
    assigned,
    defaults_of,
    local_paths,
    path_of,
    walk,
    writes_of,
)
from deepstack_harness.engines.syntax import Function


class Phase(Flag):
    """When a function runs; none of them where no caller of it is known."""

    BEFORE = auto()
    WARM_UP = auto()
    STEP = auto()


_LOADING = (
    "__init__ __new__ __post_init__ __set_name__ load_model load_weights process_weights_after_loading "
    "weight_loader weight_loader_v2 create_weights init_device initialize_kv_cache "
    "initialize_from_config init_memory_pool get_model init_attention_backend initialize"
)
_WARMING = (
    "profile_run _dummy_run dummy_run capture_model compile_or_warm_up_model determine_available_memory "
    "prepare_dummy_inputs warmup warm_up kernel_warmup capture capture_one_batch_size capture_one_shape "
    "init_forward_metadata_capture_cuda_graph warmup_compile warmup_torch_compile"
)
_EXECUTING = (
    "execute_model sample_tokens propose add_request add_requests update_states forward_batch_generation "
    "forward_extend forward_decode replay replay_prepare execute load_batch "
    "init_forward_metadata_replay_cuda_graph run_batch"
)
ROOTS = {
    **dict.fromkeys(_LOADING.split(), Phase.BEFORE),
    **dict.fromkeys(_WARMING.split(), Phase.WARM_UP),
    **dict.fromkeys(_EXECUTING.split(), Phase.STEP),
    "forward": Phase.WARM_UP | Phase.STEP,
    "__call__": Phase.WARM_UP | Phase.STEP,
}
"""Methods by which engines load, warm up and execute."""
_DEPTH = 7
"""Callers of callers that are followed; a phase that was not found by then is unknown."""
_PROPERTIES = frozenset({"property", "cached_property", "functools.cached_property"})
_CALLED = re.compile(rb"\.([A-Za-z_]\w*)\(")
_STORED = re.compile(
    rb"(?<![\w.])(?!self\.\w+ )[\w.\[\]]+\.([A-Za-z_]\w*) = |setattr\([\w.]+, ?[\"'](\w+)[\"']"
)
"""Writes to attributes of another object; those to `self` are read with the class."""
_MOST_FILES = 8
"""Names that are called in more files than these do not show which is meant: such files are not read."""


class Scope(NamedTuple):
    """A function of the source, with its file and class (None outside of any)."""

    member: str
    owner: Class | None
    function: Function

    def place(self, node: ast.AST | int) -> Place:
        """Return the place of a node, or of a line, of the function."""
        owner = self.owner.node.name if self.owner else ""
        line = node if isinstance(node, int) else getattr(node, "lineno", 0)
        return Place(self.member, line, owner, self.function.name)


class CallSite(NamedTuple):
    """A call in a function, by the path of what is called."""

    scope: Scope
    path: Path
    node: ast.Call


class Write(NamedTuple):
    """A write in a function; `certain` where the class of what is written to is known."""

    scope: Scope
    written: Written
    certain: bool

    @property
    def how(self) -> How:
        """Return how it is written."""
        return self.written.how

    @property
    def where(self) -> str:
        """Return FILE:LINE."""
        return f"{self.scope.member}:{self.written.line}"


class Phases:
    """Callers, writers and phases of the functions of an index."""

    def __init__(self, index: ClassIndex) -> None:
        """Read the calls and the writes of every file of the index."""
        self.index = index
        self.calls: dict[str, list[CallSite]] = {}
        self._written: dict[str, list[tuple[Scope, Written]]] = {}
        self._known: dict[int, Phase] = {}
        self._scopes: dict[str, list[Scope]] = {}
        self._holders: dict[tuple[int, Path], list[Class] | None] = {}
        self._text_calls: dict[str, list[str]] = {}
        self._text_stores: dict[str, list[str]] = {}
        for member in list(index.trees):
            self._add(member)
        for member, content in index.text.items():
            if member not in index.trees:
                for name in {match[1] for match in _CALLED.finditer(content)}:
                    self._text_calls.setdefault(name.decode(), []).append(member)
                for name in {match[1] or match[2] for match in _STORED.finditer(content)}:
                    self._text_stores.setdefault(name.decode(), []).append(member)

    def _add(self, member: str) -> None:
        if member in self._scopes or (tree := self.index.tree(member)) is None:
            return
        self._scopes[member] = list(_scopes(member, tree))
        for scope in self._scopes[member]:
            for written in writes_of(scope.function):
                self._written.setdefault(written.path[-1], []).append((scope, written))
        for call in _calls_in(self._scopes[member]):
            self.calls.setdefault(call.path[-1], []).append(call)

    def holders(self, scope: Scope, path: Path) -> list[Class] | None:
        """Return the classes of the object before the last name of a path; None where they are not known."""
        key = (id(scope.function), path[:-1])
        if key not in self._holders:
            self._holders[key] = self.index.holders(scope.owner, scope.member, scope.function, path)
        return self._holders[key]

    def scopes_of(self, member: str) -> list[Scope]:
        """Return the functions of a file that are in no other function."""
        self._add(member)
        return self._scopes.get(member, [])

    def calls_named(self, name: str) -> list[CallSite]:
        """Return the calls of functions and methods of a name."""
        members = self._text_calls.pop(name, [])
        for member in members if len(members) <= _MOST_FILES else ():
            self._add(member)
        return self.calls.get(name, [])

    def find_phase(self, scope: Scope) -> Phase:
        """Return when a function runs, from the methods of the engine that lead to it."""
        key = id(scope.function)
        if key not in self._known:
            self._known[key] = self._followed(scope)
        return self._known[key]

    def _followed(self, scope: Scope) -> Phase:
        """Follow the callers, the nearest first, until it is known that steps and the warm-up lead here."""
        phase, level, seen = Phase(0), [scope], {id(scope.function)}
        for _ in range(_DEPTH):
            above: list[Scope] = []
            for callee in level:
                known = ROOTS.get(callee.function.name, self._known.get(id(callee.function)))
                if known is not None:
                    phase |= known
                    if Phase.STEP in phase and Phase.WARM_UP in phase:
                        return phase
                    continue
                for caller in self._callers(callee):
                    if id(caller.function) not in seen:
                        seen.add(id(caller.function))
                        above.append(caller)
            level = above
        return phase

    def _callers(self, scope: Scope) -> Iterator[Scope]:
        """Yield the functions that may run a function: by a call, or as a property."""
        name = scope.function.name
        kinds = {ast.unparse(decorator) for decorator in scope.function.decorator_list}
        if scope.owner is not None and kinds & _PROPERTIES:
            yield from self._readers(scope.owner, name)
        if scope.owner is not None and f"{name}.setter" in kinds:
            yield from (write.scope for write in self.writes_to(scope.owner, name))
        yield from (call.scope for call in self.calls_of(scope))

    def calls_of(self, scope: Scope) -> Iterator[CallSite]:
        """Yield the calls that may reach a function; those of another class are left out."""
        name = scope.function.name
        if scope.owner is None:
            word = f"{name}(".encode()
            members = [member for member, text in self.index.text.items() if word in text]
            for member in members if len(members) <= _MOST_FILES else ():
                tree = None if member in self._scopes else self.index.tree(member)
                calls = _calls_in(_scopes(member, tree)) if tree else ()
                yield from (call for call in calls if call.path == (name,))
        for call in self.calls_named(name):
            if scope.owner is None:
                if len(call.path) == 1 or call.path[0] not in {"self", "cls"}:
                    yield call
            elif len(call.path) > 1:
                holders = self.index.holders(
                    call.scope.owner, call.scope.member, call.scope.function, call.path
                )
                related = self.index.may_share if call.path[0] == "self" else self.index.related
                if holders is None or any(related(holder, scope.owner) for holder in holders):
                    yield call

    def _readers(self, owner: Class, name: str) -> Iterator[Scope]:
        """Yield the methods of related classes that read a property of `self`."""
        for base in self.index.order(owner):
            for node in base.node.body:
                if isinstance(node, ast.FunctionDef) and node.name != name:
                    for inner in walk(node):
                        match inner:
                            case ast.Attribute(value=ast.Name(id="self"), attr=read) if read == name:
                                yield Scope(base.member, base, node)

    def writes_named(self, attribute: str) -> list[tuple[Scope, Written]]:
        """Return the writes to attributes of a name, of whatever object."""
        for member in self._text_stores.pop(attribute, ()):
            self._add(member)
        return self._written.get(attribute, [])

    def writes_to(self, owner: Class, attribute: str) -> list[Write]:
        """Return the writes to an attribute of objects of a class, those of unknown objects included."""
        for base in self.index.order(owner):
            self._add(base.member)
        writes = []
        for scope, written in self.writes_named(attribute):
            holders = self.holders(scope, written.path)
            if holders is None:
                if (certain := self._may_be(owner, scope, written.path)) is not None:
                    writes.append(Write(scope, written, certain))
            elif len(written.path) == 2 and written.path[0] == "self":
                if any(self.index.is_a(owner, holder) for holder in holders):
                    writes.append(Write(scope, written, certain=True))
            elif any(self.index.related(holder, owner) for holder in holders):
                writes.append(Write(scope, written, certain=True))
        return writes

    def _may_be(self, owner: Class, scope: Scope, path: Path) -> bool | None:
        """Return True for an object of unknown class that is of a class, False if it may be, None if not.

        The model that a runner calls is one that no class makes; another object may be what is held under its
        name, or a member of a list of that name.
        """
        kept, name = self.index.kept_as(owner), path[-2]
        if any(part in f"/{scope.member}" for part in RUNNER_FOLDERS) and name == "model" and len(path) <= 3:
            return True if not kept else None
        return False if {name, f"{name}s"} & kept else None


class Modes:
    """The modes of the steps of an engine: an enum whose methods return for which of them they hold.

    `field` is the member of the object with the inputs of a step that has the mode.
    """

    def __init__(self, owner: Class, field: str) -> None:
        self.owner, self.field = owner, field
        self.members = frozenset(
            target.id
            for node in owner.node.body
            for target, _ in assigned(node)
            if isinstance(target, ast.Name)
        )  # fmt: skip

    def named(self, node: ast.AST) -> frozenset[str]:
        """Return the modes that an expression names."""
        return frozenset(
            inner.attr for inner in ast.walk(node)
            if isinstance(inner, ast.Attribute) and path_of(inner, {})[-2:-1] == (self.owner.node.name,)
        ) & self.members  # fmt: skip

    def decide(self, test: ast.expr, function: Function, modes: Iterable[str]) -> bool | None:
        """Return the result of a test where it is the same in steps of each of the modes."""
        results = {self._truth(test, mode, function, {}) for mode in modes}
        return results.pop() if len(results) == 1 else None

    def _truth(
        self, test: ast.expr, mode: str, function: Function, names: Mapping[str, object]
    ) -> bool | None:
        """Return the result of a test in a step of one mode; None where it depends on more than the mode."""
        follow = functools.partial(self._truth, mode=mode, function=function, names=names)
        value = functools.partial(self._value, mode=mode, function=function, names=names)
        match test:
            case ast.UnaryOp(op=ast.Not(), operand=inner):
                result = follow(inner)
                return None if result is None else not result
            case ast.BoolOp(op=op, values=values):
                results = [follow(operand) for operand in values]
                short = isinstance(op, ast.Or)
                return short if short in results else None if None in results else not short
            case ast.IfExp(test=inner, body=body, orelse=orelse):
                result = follow(inner)
                return None if result is None else follow(body if result else orelse)
            case ast.Compare(left=left, ops=[op], comparators=[right]):
                first, second = value(left), value(right)
                if first is None or second is None or not isinstance(op, _COMPARED):
                    return None
                same = first in second if isinstance(second, frozenset) else first == second
                return same is isinstance(op, ast.Eq | ast.Is | ast.In)
            case ast.Call(func=ast.Attribute(value=inner, attr=name)) if value(inner) == mode:
                return self._method(name, mode, test)
            case ast.Attribute(value=inner, attr=name) if value(inner) == mode:
                return self._method(name, mode, None)
        known = value(test)
        return known if isinstance(known, bool) else None

    def _value(self, node: ast.expr, mode: str, function: Function, names: Mapping[str, object]) -> object:
        """Return a mode, a set of them or a truth; None for other values."""
        match node:
            case ast.Constant(value=bool() as constant):
                return constant
            case ast.Name(id=name) if name in names:
                return names[name]
            case ast.Tuple(elts=members) | ast.List(elts=members) | ast.Set(elts=members):
                values = [self._value(member, mode, function, names) for member in members]
                return None if None in values else frozenset(values)
        path = path_of(node, local_paths(function))
        if path[-2:-1] == (self.owner.node.name,) and path[-1] in self.members:
            return path[-1]
        return mode if len(path) > 1 and path[-1] == self.field else None

    def _method(self, name: str, mode: str, call: ast.Call | None) -> bool | None:
        method = self.owner.method(name)
        body = method.body if method else []
        returns = [statement for statement in body if isinstance(statement, ast.Return)]
        if method is None or len(returns) != 1 or returns[0].value is None:
            return None
        given = defaults_of(method)
        if call is not None:
            given |= dict(zip([*given][1:], call.args, strict=False))
            given |= {keyword.arg: keyword.value for keyword in call.keywords if keyword.arg}
        names: dict[str, object] = {
            key: value.value for key, value in given.items() if isinstance(value, ast.Constant)
        }
        return self._truth(returns[0].value, mode, method, names | {"self": mode})


_COMPARED = ast.Eq | ast.NotEq | ast.Is | ast.IsNot | ast.In | ast.NotIn


def _calls_in(scopes: Iterable[Scope]) -> Iterator[CallSite]:
    for scope in scopes:
        local = local_paths(scope.function)
        for node in walk(scope.function):
            if isinstance(node, ast.Call) and (path := _called(node.func, local)):
                yield CallSite(scope, path, node)


def _called(func: ast.expr, local: Mapping[str, Path]) -> Path:
    """Return the path of what a call runs; a method without arguments may be on the way: `method()`."""
    match func:
        case ast.Attribute(value=ast.Call(func=ast.Name(id="super")), attr=name):
            return ("self", name)
        case ast.Attribute(
            value=ast.Call(func=ast.Attribute(value=ast.Name(id="self"), attr=method), args=[]), attr=name
        ):
            return ("self", f"{method}()", name)
        case ast.Attribute(value=inner, attr=name):
            return (*path_of(inner, local), name)
    return path_of(func, local)


def _scopes(member: str, tree: ast.Module) -> Iterator[Scope]:
    """Yield the functions of a file that are in no other function."""
    todo: list[tuple[ast.AST, Class | None]] = [(tree, None)]
    while todo:
        node, owner = todo.pop()
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
                yield Scope(member, owner, child)
                todo += [
                    (inner, Class(inner, member)) for inner in walk(child) if isinstance(inner, ast.ClassDef)
                ]
            elif isinstance(child, ast.ClassDef):
                todo.append((child, Class(child, member)))
            elif isinstance(child, ast.If | ast.Try | ast.With):
                todo.append((child, owner))
