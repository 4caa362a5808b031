"""The compiled text model that a class calls, and how its `forward` uses its parts; nothing runs.

The class makes its language model in its `__init__`, and that one its text model: both are followed by the
names of the classes that they call.  A text model is compiled where it, or a base that has its `forward`,
has a decorator that compiles, such as `support_torch_compile`.

Layers and other parts of the text model are never built. What can replace an attribute follows from how the
code of its `forward` uses it: as a sequence that is iterated, a number that bounds a slice, a flag that is
tested, or a part that is called and returns some number of values.
"""

import ast
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from deepstack_harness.engines.carriers import FORWARD
from deepstack_harness.engines.model_class import CalledMethods, ModelClass
from deepstack_harness.engines.syntax import Function

Path = tuple[str, ...]
"""The place of a part below a text model: names of attributes, and `ELEMENT` for those of a sequence."""

ELEMENT = "[]"


@dataclass(frozen=True)
class Attributes:
    """The attributes that code reads of its object, by the way in which it uses them.

    `called` has the number of values that the call of a part is unpacked into, 0 for an empty list.
    `first` and `last` bound slices of sequences.  `tested` are flags, and parts that may be missing,
    `searched` are containers that something may be in; all other values are `numbers`.
    """

    called: Mapping[Path, int] = field(default_factory=dict)
    sequences: frozenset[Path] = frozenset()
    first: frozenset[Path] = frozenset()
    last: frozenset[Path] = frozenset()
    tested: frozenset[Path] = frozenset()
    searched: frozenset[Path] = frozenset()
    numbers: frozenset[Path] = frozenset()


@dataclass(frozen=True)
class CompiledText:
    """A compiled text model that a class passes its payload to as `argument`; `at` is its MEMBER:LINE."""

    model: ModelClass
    argument: str
    at: str


def is_compiled(node: ast.ClassDef) -> bool:
    """Return whether a class statement has a decorator that compiles."""
    called = (item.func if isinstance(item, ast.Call) else item for item in node.decorator_list)
    names = map(ast.unparse, called)
    return any("torch_compile" in name or name == "torch.compile" for name in names)


def classes_made(init: Function) -> list[str]:
    """Return the names that an `__init__` calls, and those that it passes as text, in their order."""
    calls = [node for node in ast.walk(init) if isinstance(node, ast.Call)]
    called = [node.func.id for node in calls if isinstance(node.func, ast.Name)]
    texts = [
        part.value
        for call in calls
        for argument in (*call.args, *(keyword.value for keyword in call.keywords))
        for part in ast.walk(argument)
        if isinstance(part, ast.Constant) and isinstance(part.value, str)
    ]
    return list(dict.fromkeys([*called, *texts]))


ONLY_FORWARD = CalledMethods(verbs={"get": FORWARD}, init=False)
"""The `forward` of a class, none of whose own parts exist."""


def attributes_of(functions: Sequence[Function], *, complete: bool = False) -> Attributes:
    """Return how methods that call each other use the attributes of their object.

    Parts that are tested before they are called are missing, unless the object is `complete`.
    """
    own = {function.name for function in functions}
    uses = [_Uses(function) for function in functions]
    called = {path: 0 for use in uses for path in use.called if path not in {(name,) for name in own}}
    for use in uses:
        called |= {path: count for path, count in use.called.items() if path in called}
    read = {path for use in uses for path in use.read}
    inner = {path[:length] for path in (*called, *read) for length in range(1, len(path))}
    sequences = {path[: path.index(ELEMENT)] for path in (*called, *read) if ELEMENT in path}
    first = {path for use in uses for path in use.first} - sequences
    last = {path for use in uses for path in use.last} - sequences
    tested = {path for use in uses for path in use.tested}
    off = {path for path in tested if path in read and ELEMENT not in path} - sequences - first - last
    if complete:
        off -= called.keys()
    called = {path: called[path] for path in sorted(called) if path[:1] not in off and path not in off}
    plain = read - called.keys() - inner - sequences - first - last - {(name,) for name in own}
    return Attributes(
        called, frozenset(sequences), frozenset(first), frozenset(last), frozenset(off),
        frozenset(path for use in uses for path in use.searched),
        frozenset(path for path in plain - off if path[:1] not in off),
    )  # fmt: skip


class _Uses:
    """The uses of attributes in one method, also by local names for them."""

    def __init__(self, function: Function) -> None:
        self._names: dict[str, Path] = {}
        self._follow(function)
        self.read = {path for node in ast.walk(function) if (path := self.path(node))}
        self.called: dict[Path, int] = {}
        self.first: set[Path] = set()
        self.last: set[Path] = set()
        self.tested: set[Path] = set()
        self.searched = {
            path
            for node in ast.walk(function)
            if isinstance(node, ast.Compare) and isinstance(node.ops[0], ast.In | ast.NotIn)
            if (path := self.path(node.comparators[0]))
        }
        unpacked = {
            id(node.value): len(target.elts)
            for node in ast.walk(function)
            if isinstance(node, ast.Assign)
            for target in node.targets
            if isinstance(target, ast.Tuple)
        }
        for node in ast.walk(function):
            self._note(node, unpacked)
        self.called |= dict.fromkeys(self._empty(function), 0)

    def _empty(self, function: Function) -> Iterator[Path]:
        """Yield the parts whose output is tested for having elements: they return an empty list."""
        tests = (node.test for node in ast.walk(function) if isinstance(node, ast.If | ast.IfExp))
        tested = {
            name
            for test in tests
            if not (isinstance(test, ast.Compare) and isinstance(test.ops[0], ast.Is | ast.IsNot))
            for name in [ast.unparse(test.left if isinstance(test, ast.Compare) else test)]
        }
        for node in ast.walk(function):
            match node:
                case ast.Assign(targets=[ast.Name(id=name)], value=ast.Call(func=called)):
                    if tested & {name, f"len({name})"} and (path := self.path(called)):
                        yield path

    def path(self, node: ast.AST) -> Path:
        """Return the path of an expression, empty where it has none."""
        match node:
            case ast.Name(id=name):
                return self._names.get(name, ())
            case ast.Attribute(value=ast.Name(id="self"), attr=name):
                return (name,)
            case ast.Attribute(value=inner, attr=name):
                path = self.path(inner)
                return (*path, name) if path else ()
            case ast.Subscript(value=inner, slice=ast.Slice()):
                return self.path(inner)
            case ast.Subscript(value=inner):
                path = self.path(inner)
                return (*path, ELEMENT) if path else ()
        return ()

    def _follow(self, function: Function) -> None:
        """Record the local variables that hold an attribute, also through other variables."""
        before = -1
        while before != len(self._names):
            before = len(self._names)
            for node in ast.walk(function):
                match node:
                    case ast.Assign(targets=[ast.Name(id=name)], value=value) if path := self.path(value):
                        self._names.setdefault(name, path)
                    case ast.For(target=target, iter=source) | ast.comprehension(target=target, iter=source):
                        for name, path in self._elements(target, source):
                            self._names.setdefault(name, (*path, ELEMENT))

    def _elements(self, target: ast.expr, source: ast.expr) -> Iterator[tuple[str, Path]]:
        """Yield the variables of a loop that are elements of a sequence, each with the sequence."""
        match target, source:
            case ast.Tuple(elts=[_, element]), ast.Call(func=ast.Name(id="enumerate"), args=[inner, *_]):
                yield from self._elements(element, inner)
            case _, ast.Call(func=function, args=[inner, *_]) if ast.unparse(function).endswith("islice"):
                yield from self._elements(target, inner)
            case _, ast.Call(func=ast.Name(id="reversed"), args=[inner]):
                yield from self._elements(target, inner)
            case ast.Tuple(elts=parts), ast.Call(func=ast.Name(id="zip"), args=sources):
                for part, inner in zip(parts, sources, strict=False):
                    yield from self._elements(part, inner)
            case ast.Name(id=name), _ if path := self.path(source):
                yield name, path

    def _note(self, node: ast.AST, unpacked: Mapping[int, int]) -> None:
        match node:
            case ast.Call(func=function, args=arguments):
                if path := self.path(function):
                    self.called[path] = max(unpacked.get(id(node), 1), self.called.get(path, 1))
                if len(arguments) == 3 and ast.unparse(function).endswith("islice"):
                    self.first |= self._paths(arguments[1])
                    self.last |= self._paths(arguments[2])
            case ast.Slice(lower=lower, upper=upper):
                self.first |= self._paths(lower)
                self.last |= self._paths(upper)
            case ast.If(test=test) | ast.IfExp(test=test) | ast.While(test=test):
                self.tested |= {path for part in ast.walk(test) if (path := self.path(part))}

    def _paths(self, node: ast.AST | None) -> set[Path]:
        path = self.path(node) if node is not None else ()
        return {path} if path else set()
