"""Syntax trees of source files: look up classes, functions, imports, and the names that code uses.

`reads`, `binds` and `writes` know three kinds of names: `x` is a variable, `self.x` an attribute of the
instance, and `.x` an attribute of anything else.  The third kind separates `config.size = 1` from
`config.name = "a"` when only `config.size` is read.

`function_hashes` hashes functions of a source, to recognise versions that decide alike.
"""

import ast
import functools
import inspect
import re
import sys
import warnings
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from hashlib import sha256
from io import StringIO
from tokenize import TokenError
from typing import TypeGuard

from deepstack_harness.errors import Reason, SourceError, UsageError
from deepstack_harness.sources.source import DEPTH, MOST_DEPTH, Source, SourceFile

Function = ast.FunctionDef | ast.AsyncFunctionDef
Members = Mapping[str, list[ast.stmt]]
"""The statements of a class by the name that they define; overloads share a name."""


# Every class of a file looks up the same statements. An entry that was dropped is computed again.
_cached = functools.lru_cache(maxsize=1 << 16)


class NoBuffer(SourceError):
    """The class is not there, or has no deepstack buffer."""


def parameters_of(function: Function) -> list[ast.arg]:
    """Return the parameters of a function, those with a star left out."""
    arguments = function.args
    return [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]


def arguments_of(function: Function) -> list[str]:
    """Return the names of a method's arguments, without `self`."""
    return [parameter.arg for parameter in parameters_of(function)[1:]]


@functools.lru_cache(maxsize=32)  # trees are large; one that was dropped is parsed again
def parse(file: SourceFile) -> ast.Module:
    """Parse a file; raise `UsageError` with the line that does not parse.

    All callers share the tree: copy what you change.
    """
    try:
        with warnings.catch_warnings(action="ignore"):  # about style, and about other people's code
            return ast.parse(file.text, file.filename)
    except SyntaxError as error:
        python = ".".join(map(str, sys.version_info[:2]))
        reason = Reason(f"not valid in Python {python}: {error.msg}", file.filename, error.lineno or 1)
        raise SourceError(reason) from error
    except (ValueError, RecursionError, MemoryError) as error:  # MemoryError: the parser's stack is full
        deep = f"nested too deeply: {DEPTH.advice}, up to {MOST_DEPTH:,}"
        why = str(error) if isinstance(error, ValueError) else deep
        raise UsageError(f"{file.filename} cannot be parsed: {why}") from error


def class_named(file: SourceFile, name: str) -> ast.ClassDef:
    """Return the class statement at the top level of a file; raise `NoBuffer` when there is none."""
    for node in parse(file).body:
        if isinstance(node, ast.ClassDef) and node.name == name:
            return node
    raise NoBuffer(f"{file.filename} has no class {name}")


def members_of(definition: ast.ClassDef, file: SourceFile, derived: tuple[ast.ClassDef, ...] = ()) -> Members:
    """Return what a class and its bases in the same file define, by name; the class's own come first.

    `derived` are the classes that are derived from it, which a damaged file may name as its bases.
    """
    members = dict(own_members(definition))
    derived = (*derived, definition)
    names = [base.id for base in definition.bases if isinstance(base, ast.Name)]
    classes = [node for node in parse(file).body if isinstance(node, ast.ClassDef) and node not in derived]
    for base in (node for name in names for node in classes if node.name == name):
        members = {**members_of(base, file, derived), **members}
    return members


@_cached
def own_members(definition: ast.ClassDef) -> Members:
    """Return the statements of a class by the names that they bind or delete, those of its bases left out."""
    members: dict[str, list[ast.stmt]] = {}
    for node in definition.body:
        for name in sorted(scope_names(node)):
            members.setdefault(name, []).append(node)
    return members


@functools.lru_cache(maxsize=256)
def package_imports(file: SourceFile, member: str) -> Mapping[str, tuple[str, str]]:
    """Return what a file imports from its own package at the top level: bound name -> (module, real name).

    `member` is the file's place in the package, such as `vllm/model_executor/models/qwen3_vl.py`.
    """
    imports: dict[str, tuple[str, str]] = {}
    for node in parse(file).body:
        if isinstance(node, ast.ImportFrom) and (node.level or _is_in(member, node.module)):
            module = absolute_module(node, member)
            imports |= {alias.asname or alias.name: (module, alias.name) for alias in node.names}
    return imports


@_cached
def imported_files(file: SourceFile, member: str) -> frozenset[str]:
    """Return the files that a file may import from its own package, anywhere: a module or a package each."""
    modules = set[str]()
    for node in ast.walk(parse(file)):
        if isinstance(node, ast.ImportFrom) and (node.level or _is_in(member, node.module)):
            module = absolute_module(node, member)
            modules |= {module, *(f"{module}.{alias.name}" for alias in node.names)}
        elif isinstance(node, ast.Import):
            modules |= {alias.name for alias in node.names if _is_in(member, alias.name)}
    paths = {module.replace(".", "/") for module in modules}
    return frozenset(f"{path}{end}" for path in paths for end in (".py", "/__init__.py"))


def _is_in(member: str, module: str | None) -> bool:
    return (module or "").startswith(f"{member.partition('/')[0]}.")


def module_name(member: str) -> str:
    """Return the dotted name of a file as a module: `vllm.a` of `vllm/a.py` and of `vllm/a/__init__.py`."""
    return member.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


def absolute_module(node: ast.ImportFrom, member: str) -> str:
    """Return the full name of the module, also for `from ..x import y`."""
    packages = member.split("/")[: -node.level] if node.level else []
    return ".".join([*packages, *filter(None, [node.module])])


_NESTED = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)


def scope_names(statement: ast.stmt) -> frozenset[str]:
    """Return the names that a statement, its blocks included, binds or deletes in its own scope."""
    names, todo = set[str](), list[ast.AST]([statement])
    while todo:
        node = todo.pop()
        if isinstance(node, _NESTED):
            names.add(node.name)
            continue
        if isinstance(node, ast.Lambda | ast.comprehension) or (
            isinstance(node, ast.AnnAssign) and node.value is None
        ):
            continue
        if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load):
            names.add(node.id)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            names |= {alias.asname or alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ExceptHandler | ast.MatchAs | ast.MatchStar) and node.name:
            names.add(node.name)
        todo += ast.iter_child_nodes(node)
    return frozenset(names)


def statements_in(nodes: Iterable[ast.AST]) -> Iterator[ast.stmt]:
    """Yield statements, and those in their blocks and bodies, in source order, without expressions."""
    todo = [*nodes][::-1]
    while todo:
        node = todo.pop()
        if isinstance(node, ast.stmt):
            yield node
        parts = ("body", "handlers", "cases", "orelse", "finalbody")
        todo += [child for part in parts for child in getattr(node, part, ())][::-1]


ANY_OF_SELF = "self.*"
"""The name of an attribute that is known at run time only, as in `setattr(self, name, value)`."""

_REGISTERS = {"register_buffer", "register_parameter", "register_module", "add_module"}


@_cached
def reads(node: ast.AST) -> frozenset[str]:
    """Return every name that `node` reads, without those that its own comprehensions bind."""
    names = frozenset(name for part in ast.walk(node) for name in _read_by(part))
    return names - _comprehension_names(node)


@_cached
def binds(node: ast.AST) -> frozenset[str]:
    """Return every name that `node` gives a value to."""
    if isinstance(node, _NESTED):
        return frozenset({node.name})
    names = frozenset(name for part in ast.walk(node) for name in _bound_by(part))
    return names - _comprehension_names(node)


@_cached
def writes(node: ast.AST) -> frozenset[str]:
    """Return every name that `node` binds, changes in place or deletes.

    A statement that is a call, such as `x.append(..)`, changes x: nothing else is done with its result.
    """
    if isinstance(node, _NESTED):
        return frozenset({node.name})
    changed = set(binds(node))
    for part in ast.walk(node):
        if isinstance(part, ast.Subscript) and isinstance(part.ctx, ast.Store):
            changed.add(_place(part))
        elif isinstance(part, ast.Delete):
            changed.update(map(_place, part.targets))
    match node:
        case ast.Expr(value=ast.Call(func=ast.Attribute(value=of) as called)) if not _is_of(called, "self"):
            changed.add(_place(of))
    return frozenset(changed)


@_cached
def own_methods_called(node: ast.AST) -> frozenset[str]:
    """Return the x of every `self.x(...)` and `cls.x(...)`."""
    calls = [part.func for part in ast.walk(node) if isinstance(part, ast.Call)]
    return frozenset(called.attr for called in calls if _is_of(called, "self", "cls"))


@_cached
def super_attributes(node: ast.AST) -> frozenset[str]:
    """Return the x of every `super().x`."""
    names = set()
    for part in ast.walk(node):
        match part:
            case ast.Attribute(value=ast.Call(func=ast.Name(id="super")), attr=name):
                names.add(name)
    return frozenset(names)


def read_with_default(node: ast.AST) -> frozenset[str]:
    """Return the names that `node` reads by `hasattr`, or by `getattr` with a default."""
    names = set()
    for part in ast.walk(node):
        match part:
            case (
                ast.Call(func=ast.Name(id="hasattr"), args=[_, ast.Constant(value=name)])
                | ast.Call(func=ast.Name(id="getattr"), args=[_, ast.Constant(value=name), _])
            ):
                names.add(str(name))
    return frozenset(names)


def _read_by(node: ast.AST) -> Iterator[str]:
    if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
        yield node.id
    elif isinstance(node, ast.Attribute):
        if _is_of(node, "self", "cls"):
            yield f"self.{node.attr}"
        if isinstance(node.ctx, ast.Load):
            yield f".{node.attr}"
    match node:
        case ast.Call(
            func=ast.Name(id="getattr" | "hasattr"),
            args=[ast.Name(id="self"), ast.Constant(value=str(name)), *_],
        ):
            yield f"self.{name}"


def _bound_by(node: ast.AST) -> Iterator[str]:
    if isinstance(node, ast.Name | ast.Attribute) and isinstance(node.ctx, ast.Store):
        yield _place(node)
    elif isinstance(node, _NESTED):
        yield node.name
    elif isinstance(node, ast.Import | ast.ImportFrom):
        yield from (alias.asname or alias.name.partition(".")[0] for alias in node.names)
    elif isinstance(node, ast.Call) and is_setattr(node):
        match set_arguments(node):
            case [ast.Name(id="self"), ast.Constant(value=str(name)), _]:
                yield f"self.{name}"
            case [ast.Name(id="self"), *_]:
                yield ANY_OF_SELF
            case [_, ast.Constant(value=str(name)), _]:  # of another object only a literal name counts
                yield f".{name}"
    elif isinstance(node, ast.Call) and _is_of(node.func, "self") and node.func.attr in _REGISTERS:
        match node.args:
            case [ast.Constant(value=str(name)), *_]:
                yield f"self.{name}"
            case _:
                yield ANY_OF_SELF


def is_setattr(call: ast.Call) -> bool:
    """Return whether a call is `setattr(..)`, or `x.__setattr__(..)`."""
    match call.func:
        case ast.Name(id="setattr") | ast.Attribute(attr="__setattr__"):
            return True
    return False


def set_arguments(call: ast.Call) -> list[ast.expr]:
    """Return the object, the name and the value of a call of `setattr` or `__setattr__`."""
    if isinstance(call.func, ast.Attribute) and len(call.args) == 2:  # a bound method
        of_super = isinstance(call.func.value, ast.Call)
        return [ast.Name("self", ast.Load()) if of_super else call.func.value, *call.args]
    return call.args


def _place(node: ast.AST) -> str:
    """Return the name that an assignment to `node` changes."""
    match node:
        case ast.Name(id=name):
            return name
        case ast.Attribute(value=ast.Name(id="self"), attr=name):
            return f"self.{name}"
        case ast.Attribute(attr=name):
            return f".{name}"
        case ast.Call(func=ast.Name(id="vars"), args=[ast.Name(id="self")]):
            return "self.__dict__"
        case ast.Subscript(value=inner) | ast.Starred(value=inner) | ast.Call(func=inner):
            return _place(inner)
    return ""


def _is_of(node: ast.AST, *owners: str) -> TypeGuard[ast.Attribute]:
    """Return whether an expression is an attribute of a variable with one of these names."""
    return isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in owners


def _comprehension_names(node: ast.AST) -> set[str]:
    targets = [part.target for part in ast.walk(node) if isinstance(part, ast.comprehension)]
    return {name.id for target in targets for name in ast.walk(target) if isinstance(name, ast.Name)}


def function_hashes(source: Source, names: Iterable[str]) -> dict[str, str]:
    """Return the SHA-256 of the text of each function, `module.Class.method`, that the source has.

    The text is that of `inspect.getsource`, decorators included, so that a running engine computes the same
    hashes.  A function, class or file that is not there, and a file that does not parse, has none.  Raises
    `MachineError` where a file has to be fetched and cannot.
    """
    hashes = {}
    for name in sorted(names):
        module, class_name, method = name.rsplit(".", 2)
        with suppress(UsageError, TokenError):
            file = source.read(f"{module.replace('.', '/')}.py")
            body = class_named(file, class_name).body
            defined = [node for node in body if isinstance(node, ast.FunctionDef) and node.name == method]
            for node in defined[-1:]:  # of several with one name the last one counts
                first = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
                text = "".join(inspect.getblock(StringIO(file.text).readlines()[first - 1 :]))
                hashes[name] = sha256(text.encode()).hexdigest()
    return hashes


_WITHOUT_ACT = re.compile(
    r"""^\s*from\s[^\n]*?import\s*\([^)]*\)|^\s*from\s[^\n]*|^\s*class\s+\w+\s*\([^)]*\)|["'][^"'\n]*["']""",
    re.MULTILINE,
)


@functools.lru_cache(maxsize=512)
def _acting_words(file: SourceFile) -> frozenset[str]:
    return frozenset(re.findall(r"\w+", _WITHOUT_ACT.sub("", file.text)))


def acts_on(file: SourceFile, name: str) -> bool:
    """Return whether a file does more with a class than to import it, to derive one and to write its name."""
    return name in file.text and name in _acting_words(file)
