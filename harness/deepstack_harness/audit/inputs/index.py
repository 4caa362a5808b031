"""Index of the classes of a source: what a name means, the bases of a class, and what its objects hold.

Nothing of the source runs.  A name is followed through the imports of its file; what an object holds in
`self.x` are the classes that are named in what is assigned there.
"""

from __future__ import annotations

import ast
import functools
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from deepstack_harness.audit.inputs.writes import (
    Path,
    assigned,
    path_of,
    values_of_names,
    walk,
)
from deepstack_harness.engines.syntax import Function, absolute_module, module_name, parameters_of, parse
from deepstack_harness.errors import UsageError
from deepstack_harness.sources.source import Source, decode

RUNNER_FOLDERS = ("/worker/", "/spec_decode/", "model_state", "/runner/", "graph_runner")
"""Parts of the paths of files that call models."""


@dataclass(frozen=True)
class Class:
    """A class of the source: its statement and its file."""

    node: ast.ClassDef
    member: str

    def method(self, name: str) -> Function | None:
        """Return a method of its own."""
        methods = (
            node
            for node in self.node.body
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name == name
        )
        return next(methods, None)


class Assignment(NamedTuple):
    """What a method assigns to an attribute of `self`, or the body of a class (no function) to a name."""

    owner: Class
    function: Function | None
    target: ast.expr
    value: ast.expr | None


class ClassIndex:
    """The classes of a source."""

    def __init__(self, source: Source) -> None:
        """Read every file that may hold a model or call one; other files when they are first needed.

        Raises what `Source.python_files` raises.
        """
        self.trees: dict[str, ast.Module] = {}
        self.classes: dict[str, list[Class]] = {}
        self.text: dict[str, bytes] = {
            member: content
            for member, content in sorted(source.python_files().items())
            if not any(part in {"test", "tests"} for part in member.split("/")[:-1])
        }
        """The files in the order of their names, so that rows do not depend on the order of a source."""
        self.makers: dict[str, list[tuple[Class, Path]]] = {}
        """The classes that make something from a name or a word, and the path of what holds it."""
        self._members: dict[str, list[tuple[Class, str]]] = {}
        """The classes of which a member is the class of a name, or a method that returns an object of it."""
        self._words: dict[tuple[int, str], set[str]] = {}
        self._derived: dict[str, list[Class]] = {}
        """The classes that have a base of a name."""
        self._asked: set[str] = set()
        self._modules = {module_name(member): member for member in self.text}
        self._imports: dict[str, dict[str, tuple[str, str]]] = {}
        self._tops: dict[str, dict[str, Class]] = {}
        self._ancestors: dict[int, frozenset[int]] = {}
        for member, content in self.text.items():
            is_runner = any(part in f"/{member}" for part in RUNNER_FOLDERS) and b"model" in content
            if b"def forward" in content or is_runner or b"@support_torch_compile" in content:
                self.tree(member)

    def tree(self, member: str) -> ast.Module | None:
        """Return the syntax tree of a file; None where there is none, or one of another Python's syntax."""
        if member not in self._asked and member in self.text:
            self._asked.add(member)
            self._read(member)
        return self.trees.get(member)

    def _read(self, member: str) -> None:
        try:
            tree = parse(decode(self.text[member], member))
        except UsageError:  # another Python's syntax: what it has is not followed
            return
        self.trees[member] = tree
        imports, tops = dict[str, tuple[str, str]](), dict[str, Class]()
        self._imports[member], self._tops[member] = imports, tops
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom):
                module = absolute_module(node, member)
                imports |= {alias.asname or alias.name: (module, alias.name) for alias in node.names}
            elif isinstance(node, ast.ClassDef):
                tops[node.name] = owner = Class(node, member)
                self.classes.setdefault(node.name, []).append(owner)
                for base in node.bases:
                    name = ast.unparse(base).partition("[")[0].rpartition(".")[2]
                    self._derived.setdefault(name, []).append(owner)
                for name, path in _makes(node):
                    self.makers.setdefault(name, []).append((owner, path))
                    self._words.setdefault((id(node), path[0]), set()).add(name)
                for name, attribute in _class_members(node):
                    self._members.setdefault(name, []).append((owner, attribute))

    def compiled_by(self, decorator: str) -> list[Class]:
        """Return the classes that a decorator of this name compiles."""
        return [
            owner
            for owners in self.classes.values()
            for owner in owners
            if any(decorator in ast.unparse(node) for node in owner.node.decorator_list)
        ]

    def resolve(self, member: str, name: str, depth: int = 6) -> Class | None:
        """Return the class that a name in a file means, through the imports of the package."""
        tree = self.tree(member)
        if tree is None:
            return None
        if name in self._tops[member]:
            return self._tops[member][name]
        module, real = self.imports(member).get(name, ("", ""))
        if not depth or module not in self._modules:
            return None
        return self.resolve(self._modules[module], real, depth - 1)

    def imports(self, member: str) -> Mapping[str, tuple[str, str]]:
        """Return what a file imports by name, in functions too: bound name -> (module, real name)."""
        return self._imports[member] if self.tree(member) else {}

    def module_function(self, member: str, name: str, depth: int = 6) -> tuple[str, Function] | None:
        """Return a function at the top level of a file or of one that it is imported from, with its file."""
        tree = self.tree(member)
        for node in tree.body if tree else ():
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name == name:
                return member, node
        module, real = self.imports(member).get(name, ("", ""))
        if not depth or module not in self._modules:
            return None
        return self.module_function(self._modules[module], real, depth - 1)

    @functools.cache  # noqa: B019  # lives as long as the audit of one source
    def order(self, owner: Class) -> list[Class]:
        """Return a class and its bases, itself first."""
        order: dict[int, Class] = {}
        todo = [owner]
        while todo:
            cls = todo.pop(0)
            if id(cls.node) not in order:
                order[id(cls.node)] = cls
                for base in cls.node.bases:
                    todo += self._named(cls.member, base)
        return list(order.values())

    def _named(self, member: str, base: ast.expr) -> list[Class]:
        """Return the classes that a base means: by the imports, else all of that name."""
        bare = ast.unparse(base).partition("[")[0]
        root, _, name = bare.rpartition(".")
        resolved = None if root else self.resolve(member, name)
        if resolved is not None:
            return [resolved]
        module = self.imports(member).get(name, ("",))[0] or root
        foreign = module and module.partition(".")[0] != member.partition("/")[0]
        return [] if foreign else self.classes.get(name, [])

    def related(self, first: Class, second: Class) -> bool:
        """Return whether one of two classes is a base of the other, or both are the same."""
        return id(second.node) in self._all(first) or id(first.node) in self._all(second)

    def _all(self, owner: Class) -> frozenset[int]:
        key = id(owner.node)
        if key not in self._ancestors:
            self._ancestors[key] = frozenset(id(base.node) for base in self.order(owner))
        return self._ancestors[key]

    def may_share(self, first: Class, second: Class) -> bool:
        """Return whether one object may be of both classes: related ones, or both bases of a class."""
        return self.related(first, second) or any(
            self.is_a(cls, other)
            for mixin, other in ((first, second), (second, first))
            for cls in self._derived.get(mixin.node.name, ())
        )

    def is_a(self, owner: Class, base: Class) -> bool:
        """Return whether a class is another or has it among its bases."""
        return id(base.node) in self._all(owner)

    def kept_as(self, owner: Class) -> frozenset[str]:
        """Return the attributes in which objects of a class, or of one of its bases, are held."""
        return frozenset(
            path[-1] for base in self.order(owner) for _, path in self.makers.get(base.node.name, ())
        )

    def holders_of(self, owner: Class) -> Iterator[tuple[Class, Path]]:
        """Yield the classes that make an object of a class, and the path of what holds it.

        What they call is the class, or a member that a class or a base of it defines: `model_class = Inner`,
        or a method that returns `Inner(..)`.
        """
        name = owner.node.name
        for holder, path in self.makers.get(name, ()):
            if self.resolve(holder.member, name) in {None, owner}:
                yield holder, path
        for definer, member in self._members.get(name, ()):
            for holder, path in self.makers.get(f"self.{member}", ()):
                if self.related(definer, holder):
                    yield (definer if self.is_a(definer, holder) else holder), path

    def is_known(self, owner: Class, attribute: str) -> bool:
        """Return whether a class of the package is named where an attribute is made."""
        return any(
            word in self.classes or word.startswith("self.")
            for base in self.order(owner)
            for word in self._words.get((id(base.node), attribute), ())
        )

    def method(self, owner: Class, name: str) -> tuple[Class, Function] | None:
        """Return a method of a class or of its bases, with the class that has it."""
        for base in self.order(owner):
            own = base.method(name)
            if own is not None:
                return base, own
        return None

    def assignments(self, owner: Class, name: str) -> list[Assignment]:
        """Return what a class and its bases assign to an attribute, the class first."""
        return [made for base in self.order(owner) for made in _assignments(base).get(name, ())]

    @functools.cache  # noqa: B019  # lives as long as the audit of one source
    def parts(self, owner: Class, attribute: str) -> list[Class]:
        """Return the classes of the package from which the objects in an attribute may be made.

        These are named in what is assigned to it, in the values of the variables in that, and in annotations.
        """
        named = [
            (base.member, statement.annotation)
            for base in self.order(owner)
            for statement in base.node.body
            if isinstance(statement, ast.AnnAssign) and ast.unparse(statement.target) == attribute
        ]
        for made in self.assignments(owner, attribute):
            if made.function is not None and made.value is not None:
                values = [made.value, *values_of_names(made.value, made.function)]
                named += [(made.owner.member, value) for value in values]
        names = {(member, node.id) for member, value in named
                 for node in ast.walk(value) if isinstance(node, ast.Name)}  # fmt: skip
        classes = [self.resolve(*name) for name in sorted(names)]
        return list({id(cls.node): cls for cls in classes if cls is not None}.values())

    def holders(self, owner: Class | None, member: str, function: Function, path: Path) -> list[Class] | None:
        """Return the classes of the object before the last name of a path; None where they are not known.

        The first name is `self`, a parameter with an annotation, or a variable made from a class or held to
        one by `isinstance`.
        """
        if path[0] in {"self", "cls"}:
            if owner is None:  # of a class in a function, whose methods are read by themselves
                return []
            holders = [owner]
        else:
            holders = self._of_variable(member, function, path[0])
            if not holders:
                is_module = path[0] in self.imports(member) or path[0] in {"torch", "np", "os", "sys"}
                return [] if is_module else None
        for name in path[1:-1]:
            holders = [part for holder in holders for part in self.parts(holder, name)]
            if not holders:
                return None
        return holders

    def _of_variable(self, member: str, function: Function, name: str) -> list[Class]:
        """Return the classes of a parameter or a variable, as far as the function shows them."""
        names: set[str] = set()
        for parameter in parameters_of(function):
            if parameter.arg == name and parameter.annotation is not None:
                parts = ast.unparse(parameter.annotation).strip("'\"").split("|")
                names |= {part.strip().strip("'\"").rpartition(".")[2] for part in parts}
        for node in walk(function):
            match node:
                case ast.Call(func=ast.Name(id="isinstance"), args=[ast.Name(id=tested), kind]):
                    if tested == name:
                        names |= {word.id for word in ast.walk(kind) if isinstance(word, ast.Name)}
                case ast.Assign(targets=[ast.Name(id=target)], value=ast.Call(func=ast.Name(id=made))):
                    if target == name:
                        names.add(made)
        classes = (self.resolve(member, class_name) for class_name in sorted(names))
        return [cls for cls in classes if cls is not None]


def functions(node: ast.AST) -> Iterator[Function]:
    """Return the functions in a node, itself and nested ones included."""
    return (inner for inner in walk(node) if isinstance(inner, ast.FunctionDef | ast.AsyncFunctionDef))


def _makes(node: ast.ClassDef) -> Iterable[tuple[str, Path]]:
    """Return the names from which a class makes something, and the path of what holds it.

    A registry makes a model by the name of its architecture, so that words count as names.  A member of the
    class that is called is `self.member`.
    """
    made = dict[tuple[str, Path], None]()
    for part in walk(node):
        match part:
            case ast.Call(func=ast.Attribute(value=holder, attr="append" | "insert"), args=[*_, added]):
                pairs = [(holder, added)]
            case _:
                pairs = [(target, value) for target, value in assigned(part) if value is not None]
        for target, value in pairs:
            if len(path := path_of(target, {})) < 2 or path[0] != "self":
                continue
            for call in ast.walk(value):
                match call:
                    case ast.Call(func=ast.Attribute(value=ast.Name(id="self"), attr=member)):
                        made[f"self.{member}", path[1:]] = None
                for word in ast.walk(call) if isinstance(call, ast.Call) else ():
                    match word:
                        case ast.Name(id=name) | ast.Constant(value=str(name)):
                            made[name, path[1:]] = None
    return made


@functools.lru_cache(maxsize=1 << 16)
def _assignments(owner: Class) -> Mapping[str, list[Assignment]]:
    """Return what a class assigns to its attributes, by their names."""
    made: dict[str, list[Assignment]] = {}
    for statement in owner.node.body:
        method = statement if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef) else None
        for node in walk(statement) if method else [statement]:
            for target, value in assigned(node):
                if is_own(target) if method else isinstance(target, ast.Name):
                    name = target.attr if isinstance(target, ast.Attribute) else ast.unparse(target)
                    made.setdefault(name, []).append(Assignment(owner, method, target, value))
    return made


def _class_members(node: ast.ClassDef) -> Iterator[tuple[str, str]]:
    """Yield the names of classes that members of a class are, or that its methods make and return."""
    for member in node.body:
        match member:
            case ast.Assign(targets=[ast.Name(id=attribute)], value=ast.Name(id=name)):
                yield name, attribute
            case ast.FunctionDef(name=attribute, body=body):
                for statement in body:
                    match statement:
                        case ast.Return(value=ast.Call(func=ast.Name(id=name))):
                            yield name, attribute


def is_none(node: ast.AST | None) -> bool:
    """Return whether an expression is the word None."""
    return isinstance(node, ast.Constant) and node.value is None


def is_own(target: ast.expr) -> bool:
    """Return whether a place is an attribute of `self`."""
    return (
        isinstance(target, ast.Attribute) and isinstance(target.value, ast.Name) and target.value.id == "self"
    )
