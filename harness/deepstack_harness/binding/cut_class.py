"""Cut the deepstack buffer out of a model class, and compile it unchanged.

These parts are cut: the methods that get, set, clear and resize the buffer; the methods of the
same class that they call; the statements of `__init__` that allocate what they read
(`slice_init`); and the module's own helpers and constants that all of these name (`extract`).
"""

import ast
import copy
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from types import CodeType

from deepstack_harness.binding.extract import extract
from deepstack_harness.binding.name_usage import (
    ANY_OF_SELF,
    binds,
    own_methods_called,
    reads,
    required,
    writes,
)
from deepstack_harness.binding.slice_init import slice_init
from deepstack_harness.binding.syntax import Function, Members, NoBuffer, class_named, members_of
from deepstack_harness.errors import UsageError
from deepstack_harness.sources.source import SourceFile

HOST = "__deepstack_host__"
"""The name of the class that takes the place of the model class's bases."""

STORAGE = "deepstack_input_embeds"
"""The word that the methods' names share, the attribute of the rows, and the start of the levels' names."""

_VERBS = {verb: re.compile(rf"_{verb}_\w*{STORAGE}\w*") for verb in ("get", "set", "clear", "resize")}
_NEEDED_VERBS = frozenset({"get", "set", "clear"})


@dataclass(frozen=True)
class ClassCut:
    """A compiled module that defines the class `class_name`, derived from `HOST`.

    `verbs` names the class's method for each of get, set, clear and resize.  `lines` has every
    method that was cut, with its line.  `replaced` maps each name that needs a stand-in to the
    imported name.  `of_host` has the attributes that nothing in the cut sets, each with the
    sentence that refuses the class where the host lacks it.
    """

    class_name: str
    filename: str
    code: CodeType
    verbs: Mapping[str, str]
    lines: Mapping[str, int]
    replaced: Mapping[str, str]
    of_host: Mapping[str, str]


@dataclass(frozen=True)
class Outside:
    """The code around a class: attributes that instances have before `__init__` runs, and those it reads."""

    given: Collection[str]
    reads: Collection[str] = ()


@dataclass(frozen=True)
class Inherited:
    """The contribution of a base class in another file: its parsed members, and how it was cut."""

    members: Members
    cut: ClassCut


def cut_class(
    file: SourceFile,
    class_name: str,
    *,
    outside: Outside,
    stand_ins: Collection[str],
    inherited: Inherited | None = None,
    verbs: Mapping[str, str] | None = None,
    init: bool = True,
) -> ClassCut:
    """Cut the buffer of `class_name` out of `file`.

    `outside` says what is given and read around the class, `stand_ins` are the imported names that can
    be replaced, `inherited` a base class that was cut from another file.  `verbs` names the methods to cut,
    where they are not get, set and clear.  Without `init` nothing of the class's `__init__` is kept, and
    what the methods read has to be given.  Raises `NoBuffer` when there is nothing to cut, and another
    `UsageError`, with file and line, for what does not parse or cannot be supplied.
    """
    definition = class_named(file, class_name)
    own = members_of(definition, file)
    buffer = _BufferMembers(definition, own, file.filename, outside, inherited, verbs, init=init)
    reduced = buffer.reduced()
    extracted = extract(file, reduced, stand_ins=stand_ins, given={HOST})
    lines = {
        node.name: node.lineno
        for node in reduced.body
        if isinstance(node, Function) and node.name != "__init__"
    }
    if inherited is not None:
        lines = {**inherited.cut.lines, **lines}
    return ClassCut(
        class_name, file.filename, extracted.code, buffer.verbs, lines, extracted.replaced, buffer.of_host
    )


class _BufferMembers:
    """Members of one class that belong to its buffer."""

    def __init__(
        self,
        definition: ast.ClassDef,
        members: Members,
        filename: str,
        outside: Outside,
        inherited: Inherited | None,
        verbs: Mapping[str, str] | None,
        *,
        init: bool,
    ) -> None:
        self._definition = definition
        self._own = {id(node) for nodes in members.values() for node in nodes}
        self._members = {**(inherited.members if inherited else {}), **members}
        theirs = inherited.members.get("__init__", ()) if inherited else ()
        self._inherited_init = [node for node in theirs if isinstance(node, Function)]
        self._where = f"{filename}:{definition.lineno}"
        self._filename = filename
        self._given = {f"self.{name}" for name in outside.given}
        self._read_outside = {f"self.{name}" for name in outside.reads}
        self.verbs = self._find_verbs() if verbs is None else self._named(verbs)
        self._init = self._find_init() if init else self._no_init()
        self._body = self._needed_members()
        self.of_host = self._unset_attributes()

    def reduced(self) -> ast.ClassDef:
        """Return the class with nothing but its buffer, over `HOST`."""
        reduced = copy.copy(self._definition)
        reduced.bases = [ast.copy_location(ast.Name(HOST, ast.Load()), self._definition)]
        reduced.keywords, reduced.decorator_list = [], []
        own = [node for node in self._body if id(node) in self._own or node is self._body[-1]]
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
        names = [name for name in self._members if pattern.fullmatch(name)]
        exact = f"_{verb}_{STORAGE}"
        if len(names) > 1 and exact not in names:
            raise UsageError(
                f"{self._where}: cannot tell which of {', '.join(names)} should {verb} the buffer"
            )
        return exact if exact in names else next(iter(names), None)

    def _find_init(self) -> Function:
        for node in self._members.get("__init__", ()):
            if isinstance(node, Function):
                return node
        raise NoBuffer(
            f"{self._where}: class {self._definition.name} has no __init__ that allocates the buffer"
        )

    def _no_init(self) -> Function:
        """Return an `__init__` that does nothing, at the place of the class."""
        made = ast.parse("def __init__(self): pass").body[0]
        assert isinstance(made, ast.FunctionDef)
        for node in ast.walk(made):
            ast.copy_location(node, self._definition)
        return made

    def _needed_members(self) -> list[ast.stmt]:
        """Return the buffer's methods, what they call and read, and last the slice of `__init__`."""
        names = set(self.verbs.values())
        while True:
            nodes = [node for name in sorted(names) for node in self._members[name]]
            init = self._slice({name for node in nodes for name in reads(node)} | self._read_outside)
            used = {name for node in (*nodes, init) for name in reads(node)}
            of_class = {name for name in self._members if f"self.{name}" in used - self._given}
            more = of_class - names - {"__init__"}
            if not more:
                return [*nodes, init]
            names |= more

    def _slice(self, read: set[str]) -> Function:
        of_instances = {name for name in read if "." in name}  # `x` is another variable in every method
        return slice_init(self._init, of_instances, self._given, self._writes)

    def _writes(self, node: ast.AST) -> frozenset[str]:
        """Return what a statement changes, by the methods of the class that it calls too."""
        found, called, done = writes(node), own_methods_called(node), set[str]()
        while todo := called - done:
            done |= todo
            bodies = [
                each for name in todo for each in self._members.get(name, ()) if isinstance(each, Function)
            ]
            changed = {name for method in bodies for inner in method.body for name in writes(inner)}
            found |= {name for name in changed if name.startswith("self.")}
            called |= {name for method in bodies for name in own_methods_called(method)}
        return found

    def _unset_attributes(self) -> dict[str, str]:
        """Return the attributes that are read and that nothing in the cut sets, with a refusal for each."""
        functions = [node for node in self._body if isinstance(node, Function)]
        there = self._attributes_set([*functions, *self._inherited_init])
        if ANY_OF_SELF in there:
            return {}
        found: dict[str, str] = {}
        for function in functions:
            for name, line in required(function).items():
                if name not in there:
                    found.setdefault(name.removeprefix("self."), self._lacks(function, name, line))
        return found

    def _attributes_set(self, functions: Sequence[Function]) -> set[str]:
        bound = {name for function in functions for inner in function.body for name in binds(inner)}
        return bound | self._given | {f"self.{name}" for name in self._members}

    def _lacks(self, function: Function, name: str, line: int) -> str:
        return (
            f"{self._filename}:{line}: {self._definition.name}.{function.name} needs {name}, "
            "which its __init__ does not set: it cannot be supplied"
        )
