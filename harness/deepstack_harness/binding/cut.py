"""Cut the deepstack buffer out of a model class, with `ast`, and compile it unchanged.

What is cut: the methods that get, set, clear and resize the buffer; the methods of
the same class that they call; the statements of `__init__` that allocate what they
read (`init_slice`); and the module's own helpers and constants that all of these
name (`module_names`).  Everything keeps its file name and line numbers.
"""

import ast
import copy
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from types import CodeType

from deepstack_harness.binding.init_slice import backward_slice
from deepstack_harness.binding.module_names import Cutting, parse
from deepstack_harness.binding.uses import ANY_OF_SELF, Function, binds, calls_itself, reads, required, writes
from deepstack_harness.errors import UsageError
from deepstack_harness.sources.source import SourceFile

HOST = "__deepstack_host__"
STORAGE = "deepstack_input_embeds"

_VERBS = {verb: re.compile(rf"_{verb}_\w*{STORAGE}\w*") for verb in ("get", "set", "clear", "resize")}
_NEEDED_VERBS = frozenset({"get", "set", "clear"})


class NoBuffer(UsageError):
    """The class is not there, or has no deepstack buffer."""


Members = Mapping[str, list[ast.stmt]]


@dataclass(frozen=True)
class Cut:
    """A compiled module that defines the class `class_name`, derived from `HOST`.

    `verbs` names the class's method for each of get, set, clear and resize; `lines`
    has every method that was cut, with its line; `replaced` the names that
    have to be given stand-ins.
    """

    class_name: str
    filename: str
    code: CodeType
    verbs: Mapping[str, str]
    lines: Mapping[str, int]
    replaced: Mapping[str, str]


@dataclass(frozen=True)
class Inherited:
    """What a base class in another file contributes: its parsed members, and how it was cut."""

    members: Members
    cut: Cut


def cut(
    file: SourceFile,
    class_name: str,
    *,
    host: type,
    given: Collection[str],
    stand_ins: Collection[str],
    inherited: Inherited | None = None,
    verbs: Mapping[str, str] | None = None,
) -> Cut:
    """Cut the buffer of `class_name` out of `file`.

    `host` takes the place of the class's bases; where one of these was cut itself,
    from another file, `host` is that and `inherited` tells of it.  `given` names the attributes that
    instances have before `__init__` runs, `stand_ins` the imported names that
    can be replaced; `verbs` the methods to cut, where they are not get, set and
    clear.  Raises `NoBuffer` when there is nothing to cut, and another
    `UsageError`, with file and line, for what does not parse or cannot be supplied.
    """
    tree = parse(file.text, file.filename)
    definition = class_named(tree, class_name, file.filename)
    surgeon = _Surgeon(definition, members_of(definition, tree), file.filename, given, inherited, verbs)
    root = surgeon.reduced(host)
    cutting = Cutting(tree, file.filename, root, stand_ins, given={HOST})
    code = cutting.compile()
    lines = {
        node.name: node.lineno for node in root.body if isinstance(node, Function) and node.name != "__init__"
    }
    if inherited is not None:
        lines = {**inherited.cut.lines, **lines}
    return Cut(class_name, file.filename, code, surgeon.verbs, lines, cutting.replaced)


class _Surgeon:
    """Decides which members of one class belong to its buffer."""

    def __init__(
        self,
        definition: ast.ClassDef,
        members: Members,
        filename: str,
        given: Collection[str],
        inherited: Inherited | None,
        verbs: Mapping[str, str] | None,
    ) -> None:
        self._definition = definition
        self._own = {id(node) for nodes in members.values() for node in nodes}
        self._members = {**(inherited.members if inherited else {}), **members}
        theirs = inherited.members.get("__init__", ()) if inherited else ()
        self._inherited_init = [node for node in theirs if isinstance(node, Function)]
        self._where = f"{filename}:{definition.lineno}"
        self._filename = filename
        self._given = {f"self.{name}" for name in given}
        self.verbs = self._find_verbs() if verbs is None else self._named(verbs)
        self._init = self._find_init()

    def reduced(self, host: type) -> ast.ClassDef:
        """The class with nothing but its buffer."""
        body = self._body()
        self._check_attributes(body, host)
        reduced = copy.copy(self._definition)
        reduced.bases = [ast.copy_location(ast.Name(HOST, ast.Load()), self._definition)]
        reduced.keywords, reduced.decorator_list = [], []
        own = [node for node in body if id(node) in self._own or node is body[-1]]
        reduced.body = sorted(own, key=lambda node: node.lineno)
        return reduced

    def _find_verbs(self) -> dict[str, str]:
        found = {verb: self._method_named(verb, pattern) for verb, pattern in _VERBS.items()}
        verbs = {verb: name for verb, name in found.items() if name}
        if lacking := sorted(_NEEDED_VERBS - verbs.keys()):
            names = ", ".join(f"_{verb}_{STORAGE}" for verb in lacking)
            raise NoBuffer(f"{self._where}: class {self._definition.name} has no {names}")
        return verbs

    def _named(self, verbs: Mapping[str, str]) -> dict[str, str]:
        if lacking := sorted(set(verbs.values()) - self._members.keys()):
            raise NoBuffer(f"{self._where}: class {self._definition.name} has no {', '.join(lacking)}")
        return dict(verbs)

    def _method_named(self, verb: str, pattern: re.Pattern[str]) -> str | None:
        names = [name for name, nodes in self._members.items() if pattern.fullmatch(name)]
        exact = f"_{verb}_{STORAGE}"
        if len(names) > 1 and exact not in names:
            raise UsageError(
                f"{self._where}: which of {', '.join(names)} is it that should {verb} the buffer?"
            )
        return exact if exact in names else next(iter(names), None)

    def _find_init(self) -> Function:
        for node in self._members.get("__init__", ()):
            if isinstance(node, Function):
                return node
        raise NoBuffer(
            f"{self._where}: class {self._definition.name} has no __init__ that allocates the buffer"
        )

    def _body(self) -> list[ast.stmt]:
        """The buffer's methods, what they call and read, and the slice of `__init__` for it."""
        names = set(self.verbs.values())
        while True:
            nodes = [node for name in sorted(names) for node in self._members[name]]
            init = self._slice({name for node in nodes for name in reads(node)})
            used = {name for node in (*nodes, init) for name in reads(node)}
            more = {name for name in self._members if f"self.{name}" in used} - names - {"__init__"}
            if not more:
                return [*nodes, init]
            names |= more

    def _slice(self, read: set[str]) -> Function:
        of_instances = {name for name in read if "." in name}  # a method's own variables mean nothing here
        return backward_slice(self._init, of_instances, self._given, self._writes)

    def _writes(self, node: ast.AST) -> frozenset[str]:
        """What a statement changes, the methods of the class that it calls included."""
        found, called, done = writes(node), calls_itself(node), set[str]()
        while todo := called - done:
            done |= todo
            bodies = [
                each for name in todo for each in self._members.get(name, ()) if isinstance(each, Function)
            ]
            changed = {name for method in bodies for inner in method.body for name in writes(inner)}
            found |= {name for name in changed if name.startswith("self.")}
            called |= {name for method in bodies for name in calls_itself(method)}
        return found

    def _check_attributes(self, body: list[ast.stmt], host: type) -> None:
        """Refuse a method that reads an attribute nobody would have set."""
        functions = [node for node in body if isinstance(node, Function)]
        there = {name for function in functions for inner in function.body for name in binds(inner)}
        there |= {name for node in self._inherited_init for inner in node.body for name in binds(inner)}
        there |= self._given | {f"self.{name}" for name in (*self._members, *dir(host))}
        for function in functions:
            for name, line in required(function).items():
                if name not in there and ANY_OF_SELF not in there:
                    raise UsageError(
                        f"{self._filename}:{line}: {self._definition.name}.{function.name} needs {name}, "
                        "which its __init__ does not set: it cannot be supplied"
                    )


def class_named(tree: ast.Module, class_name: str, filename: str) -> ast.ClassDef:
    """The class statement at the top level of a file; raises `NoBuffer` when there is none."""
    for node in tree.body:
        if isinstance(node, ast.ClassDef) and node.name == class_name:
            return node
    raise NoBuffer(f"{filename} has no class {class_name}")


def members_of(definition: ast.ClassDef, tree: ast.Module) -> Members:
    """What the class and its bases in the same file define, by name; the class's own come first."""
    members: dict[str, list[ast.stmt]] = {}
    for node in definition.body:
        for name in _names_of(node):
            members.setdefault(name, []).append(node)
    for base in definition.bases:
        if isinstance(base, ast.Name):
            for node in tree.body:
                if isinstance(node, ast.ClassDef) and node.name == base.id and node is not definition:
                    members = {**members_of(node, tree), **members}
    return members


def _names_of(node: ast.stmt) -> list[str]:
    match node:
        case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
            return [name]
        case ast.Assign(targets=[ast.Name(id=name)]):
            return [name]
        case ast.AnnAssign(target=ast.Name(id=name), value=ast.expr()):
            return [name]
    return []
