"""Regions that graph runners replay: what a captured `forward` runs, and what its calls give.

An engine such as SGLang compiles no class by a decorator.  Its runners call `forward` once, with an object
that has the inputs of a step in static tensors, and record what runs; a replay fills these tensors and runs
the record.  What is recorded is the model itself, or its body: the object that has the layers, around which
the model's own `forward` runs in every step.  Read in SGLang 0.5.9 to 0.5.23; no name of a model, of a member
or of an argument is known here.
"""

from __future__ import annotations

import ast
import functools
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from deepstack_harness.audit.inputs.calls import argument
from deepstack_harness.audit.inputs.index import Class, ClassIndex
from deepstack_harness.audit.inputs.phases import Modes, Phases, Scope
from deepstack_harness.audit.inputs.writes import (
    Path,
    assigned,
    defaults_of,
    local_paths,
    path_of,
    reached,
    walk,
)
from deepstack_harness.engines.syntax import Function, parameters_of

_ENTRIES, _LAYERS = "EntryClass", "layers"


@dataclass(frozen=True, eq=False)
class Visit:
    """A function that a region runs: the names of the step's inputs in it, and the call that led here."""

    scope: Scope
    batches: frozenset[str]
    objects: Mapping[str, tuple[Class, ...]] = field(default_factory=dict)
    caller: Visit | None = None
    call: ast.Call | None = None
    bound: bool = True

    @property
    def key(self) -> tuple[object, ...]:
        """Return what decides which functions this one leads to."""
        owner = self.scope.owner
        objects = sorted((name, *(id(holder.node) for holder in kept)) for name, kept in self.objects.items())
        return id(self.scope.function), owner and id(owner.node), self.batches, tuple(objects)


@dataclass
class ReplayedCode:
    """What runs when `forward` of a class is captured.

    `bodies` are the calls of objects that have the layers, which are not followed where they are wanted.
    `unknown` are attributes of `self` that are called with the inputs, and of which no class was found: name,
    file and line.
    """

    functions: set[int] = field(default_factory=set)
    bodies: list[tuple[Class, Visit, ast.Call]] = field(default_factory=list)
    unknown: list[tuple[str, str, int]] = field(default_factory=list)


class Regions:
    """The models of a source, and what runs in steps of some modes when they are captured."""

    def __init__(self, phases: Phases) -> None:
        """Find the models, the class of the inputs of their steps, and the modes of steps."""
        self.phases, self.index = phases, phases.index
        self.entries = list(_entries(self.index))
        self.batch, self.modes = _batch(self.index, self.entries)
        self._visited: dict[tuple[object, ...], tuple[list[Visit], list[tuple[str, str, int]]]] = {}

    def find_code(self, owner: Class, modes: frozenset[str], *, to_bodies: bool = False) -> ReplayedCode:
        """Return what a captured `forward` of a class runs; `to_bodies` ends at the calls of bodies."""
        region, method = ReplayedCode(), self.index.method(owner, "forward")
        if method is None:
            return region
        definer, forward = method
        todo, seen = [Visit(Scope(definer.member, owner, forward), self._takes(forward))], set[object]()
        while todo:
            visit = todo.pop()
            if visit.key in seen:
                continue
            seen.add(visit.key)
            holder = visit.scope.owner
            is_called = visit.scope.function.name == "forward" and visit.caller and visit.call
            if to_bodies and is_called and holder and holder is not owner and self.is_body(holder):
                assert visit.caller is not None
                assert visit.call is not None
                region.bodies.append((holder, visit.caller, visit.call))
                continue
            region.functions.add(id(visit.scope.function))
            key = (*visit.key, modes)
            if to_bodies or key not in self._visited:  # what leads to a body depends on its callers
                self._visited[key] = self._visit(visit, modes)
            calls, unknown = self._visited[key]
            region.unknown += unknown
            todo += calls
        return region

    def is_body(self, owner: Class) -> bool:
        """Return whether a class has the layers of a model."""
        return any(made.function for made in self.index.assignments(owner, _LAYERS))

    def _takes(self, forward: Function) -> frozenset[str]:
        """Return the parameters of a forward that have the inputs of a step, by annotation or name."""
        assert self.batch is not None
        arguments = parameters_of(forward)
        name = self.batch.node.name
        typed = frozenset(
            argument.arg
            for argument in arguments
            if argument.annotation and name in ast.unparse(argument.annotation)
        )
        return typed or frozenset(parameter.arg for parameter in arguments if parameter.arg in self.names)

    @functools.cached_property
    def names(self) -> frozenset[str]:
        """Return the names that models give to the inputs of a step."""
        return frozenset(
            parameter.arg
            for entry in self.entries
            for method in [self.index.method(entry, "forward")] if method
            for parameter in method[1].args.args
            if self.batch and self.batch.node.name in ast.unparse(parameter.annotation or ast.Constant(None))
        )  # fmt: skip

    def decide(self, function: Function, modes: frozenset[str]) -> functools.partial[bool | None]:
        """Return what decides a test of a function in steps of these modes."""
        assert self.modes is not None
        return functools.partial(self.modes.decide, function=function, modes=modes)

    @functools.cache  # noqa: B019  # lives as long as the audit of one source
    def nodes(self, function: Function, modes: frozenset[str]) -> Sequence[ast.AST]:
        """Return the nodes of a function that run in steps of these modes."""
        return tuple(reached(function, self.decide(function, modes)))

    def _visit(self, visit: Visit, modes: frozenset[str]) -> tuple[list[Visit], list[tuple[str, str, int]]]:
        """Return the functions that one passes the inputs to, and what is called with them unknown."""
        scope, local = visit.scope, local_paths(visit.scope.function)
        names = set(visit.batches)
        nodes = list(self.nodes(scope.function, modes))
        ends: dict[str, int] = {}  # where a name becomes something else, made from the inputs
        for node in nodes:
            for target, value in assigned(node):
                if not isinstance(target, ast.Name):
                    continue
                is_alias = isinstance(value, ast.Name) and value.id in names
                if is_alias or self._carries(value, names, scope):
                    names.add(target.id)
                elif target.id in names:
                    ends.setdefault(target.id, getattr(node, "end_lineno", 0))
        nodes = [
            inner for inner in nodes
            if not isinstance(inner, ast.Name) or inner.lineno <= ends.get(inner.id, inner.lineno)
        ]  # fmt: skip
        batches = {id(below) for below in nodes if isinstance(below, ast.Name) and below.id in names}
        calls: list[Visit] = []
        unknown: list[tuple[str, str, int]] = []
        for node in nodes:
            if isinstance(node, ast.Call) and any(
                id(operand) in batches
                for operand in [*node.args, *(keyword.value for keyword in node.keywords)]
            ):
                handed = list(self._handed(node, visit, local, names))
                calls += handed
                path = path_of(node.func, local)
                if not handed and path[:1] == ("self",) and len(path) == 2:
                    unknown.append((path[-1], scope.member, node.lineno))
        return calls, unknown

    def _class_of(self, func: ast.expr, scope: Scope) -> Class | None:
        """Return the class whose constructor, or whose own function, a call runs."""
        root = func.value if isinstance(func, ast.Attribute) else func
        if not isinstance(root, ast.Name):
            return None
        return scope.owner if root.id == "cls" else self.index.resolve(scope.member, root.id)

    def _carries(self, value: ast.expr | None, names: set[str], scope: Scope) -> bool:
        """Return whether a value is an object made from the inputs: it has their members."""
        if not isinstance(value, ast.Call) or self._class_of(value.func, scope) is None:
            return False
        return any(isinstance(operand, ast.Name) and operand.id in names for operand in value.args)

    def _handed(
        self, call: ast.Call, visit: Visit, local: Mapping[str, Path], names: set[str]
    ) -> Iterator[Visit]:
        """Yield the functions that a call runs, with what it passes to their parameters."""
        for scope, bound in self.called(call.func, visit, local):
            batches, objects = set[str](), dict[str, tuple[Class, ...]]()
            for parameter in parameters_of(scope.function):
                value = argument(call, scope.function, parameter.arg, bound=bound)
                if isinstance(value, ast.Name) and value.id in names:
                    batches.add(parameter.arg)
                elif isinstance(value, ast.Name | ast.Attribute):
                    kept = tuple(self._objects(path_of(value, local), visit))
                    if any(self.index.method(part, "forward") for part in kept):
                        objects[parameter.arg] = kept
            if batches:
                yield Visit(scope, frozenset(batches), objects, visit, call, bound)

    def called(self, func: ast.expr, visit: Visit, local: Mapping[str, Path]) -> Iterator[tuple[Scope, bool]]:
        """Yield the functions that a call runs, and whether the first parameter is the object."""
        match func:
            case ast.Attribute(value=ast.Call(func=ast.Name(id="super")), attr=name) if visit.scope.owner:
                order = self.index.order(visit.scope.owner)
                own = [at for at, base in enumerate(order) if base.method(visit.scope.function.name)]
                for base in order[own[0] + 1 if own else 1 :]:
                    if (function := base.method(name)) is not None:
                        yield Scope(base.member, visit.scope.owner, function), True
                        return
                return
        path = path_of(func, local)
        if not path:
            return
        if len(path) == 1 and path[0] not in visit.objects:
            defined = self.index.module_function(visit.scope.member, path[0])
            if defined is not None:
                yield Scope(defined[0], None, defined[1]), False
            return
        if len(path) == 1:
            for owner in visit.objects[path[0]]:
                yield from self._method(owner, "forward")
            return
        holders = list(self._objects(path[:-1], visit))
        named = self.index.resolve(visit.scope.member, path[0]) if len(path) == 2 and not holders else None
        for holder in [named] if named else holders:
            found = list(self._method(holder, path[-1], bound=named is None))
            yield from found
            if not found:
                for part in self.parts(holder, path[-1]):
                    yield from self._method(part, "forward")
                yield from self._chosen(holder, path[-1])

    def _chosen(self, holder: Class, name: str) -> Iterator[tuple[Scope, bool]]:
        """Yield the static methods that the function of a class may return for an attribute to keep."""
        for made in self.index.assignments(holder, name):
            match made.value:
                case ast.Call(func=ast.Attribute(value=ast.Name(id=chooser), attr=choose)):
                    owner = self.index.resolve(made.owner.member, chooser)
                    method = self.index.method(owner, choose) if owner else None
                    for inner in walk(method[1]) if method else ():
                        match inner:
                            case ast.Return(value=ast.Attribute(value=ast.Name(id=root), attr=attribute)):
                                kind = self.index.resolve(method[0].member, root) if method else None
                                yield from self._method(kind, attribute, bound=False) if kind else ()

    def _method(self, holder: Class, name: str, *, bound: bool = True) -> Iterator[tuple[Scope, bool]]:
        method = self.index.method(holder, name)
        if method is not None:
            kinds = {ast.unparse(decorator) for decorator in method[1].decorator_list}
            is_bound = "staticmethod" not in kinds and (bound or "classmethod" in kinds)
            yield Scope(method[0].member, holder, method[1]), is_bound

    def _objects(self, path: Path, visit: Visit) -> Iterator[Class]:
        """Yield the classes of what a path leads to."""
        if not path:
            return
        holders = [visit.scope.owner] if path[0] == "self" and visit.scope.owner else []
        holders = list(visit.objects.get(path[0], ())) or holders
        for name in path[1:]:
            holders = [part for holder in holders for part in self.parts(holder, name)]
        yield from holders

    @functools.cache  # noqa: B019  # lives as long as the audit of one source
    def parts(self, holder: Class, name: str) -> Sequence[Class]:
        """Return the classes of what an attribute holds, those that a method of the object returns too."""
        named = list[tuple[str, ast.expr]]()
        for made in self.index.assignments(holder, name):
            match made.value:
                case ast.Call(func=ast.Name(id=called)) if made.function:
                    default = defaults_of(made.function).get(called)
                    named += [(made.owner.member, default)] if default is not None else []
                case ast.Call(func=ast.Attribute(value=ast.Name(id="self"), attr=maker)):
                    method = self.index.method(holder, maker)
                    for node in walk(method[1]) if method else ():
                        if isinstance(node, ast.Return) and node.value is not None and method:
                            named.append((method[0].member, node.value))
        words = ((member, node.id) for member, value in named
                 for node in ast.walk(value) if isinstance(node, ast.Name))  # fmt: skip
        classes = (self.index.resolve(*word) for word in words)
        return self.index.parts(holder, name) or [cls for cls in classes if cls is not None]


def _entries(index: ClassIndex) -> Iterator[Class]:
    """Yield the classes that files name as the models to be served."""
    entries: dict[int, Class] = {}
    for member, content in index.text.items():
        tree = index.tree(member) if _ENTRIES.encode() in content else None
        for node in tree.body if tree else ():
            for target, value in assigned(node):
                if isinstance(target, ast.Name) and target.id == _ENTRIES and value is not None:
                    names = [inner.id for inner in ast.walk(value) if isinstance(inner, ast.Name)]
                    classes = [index.resolve(member, name) for name in names]
                    entries |= {id(cls.node): cls for cls in classes if cls is not None}
    yield from entries.values()


def _batch(index: ClassIndex, entries: list[Class]) -> tuple[Class | None, Modes | None]:
    """Return the class of the inputs that most models take, and its modes."""
    kinds: Counter[int] = Counter()
    classes: dict[int, Class] = {}
    for entry in entries:
        method = index.method(entry, "forward")
        for parameter in method[1].args.args if method else ():
            name = ast.unparse(parameter.annotation).strip("'\"") if parameter.annotation else ""
            kind = index.resolve(method[0].member, name) if method and name.isidentifier() else None
            if kind is not None:
                classes[id(kind.node)] = kind
                kinds[id(kind.node)] += 1
    for key, _ in kinds.most_common():
        for node in classes[key].node.body:
            if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
                name = ast.unparse(node.annotation).strip("'\"")
                kind = index.resolve(classes[key].member, name) if name.isidentifier() else None
                if kind is not None and any("Enum" in ast.unparse(base) for base in kind.node.bases):
                    return classes[key], Modes(kind, node.target.id)
    return None, None
