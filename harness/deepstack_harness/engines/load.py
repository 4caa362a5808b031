"""Import the package of a source from its own Python files, whatever of its surroundings is missing.

Python makes the classes: bases, decorators, metaclasses, `__init_subclass__` and patches by other modules are
what they are.  Code of the source runs, so this belongs into a sandboxed worker.  Four rules:

- The package is the source's, whether or not one of that name is installed or was imported before.
- Of other packages it finds those that torch itself needs (`SUPPLIED`).  All others are missing, installed or
  not, so that a class is the same on every machine.
- A missing import that somebody on the way to it is prepared for (`try: import x` with a handler for
  `ImportError` that goes on) fails, as it does where x is not installed.  Any other gets a stub.
- A statement of a module that raises is noted; the names that it would bind are stubs, the module goes on.

Afterwards stubs are strict (`engines.stubs`): code that meets one is refused with file and line.
"""

import ast
import builtins
import functools
import importlib
import importlib.abc
import importlib.util
import inspect
import itertools
import linecache
import re
import shutil
import sys
import tempfile
import traceback
import warnings
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.machinery import ModuleSpec
from io import StringIO
from pathlib import Path
from types import CodeType, FrameType, FunctionType, ModuleType
from typing import Any

from typing_extensions import override

from deepstack_harness.compile.torch_compat.facts import changed, facts
from deepstack_harness.engines.model_class import CannotSupply
from deepstack_harness.engines.stubs import Absent, StubModule, is_stub, make_stub, path_of
from deepstack_harness.engines.syntax import Function, module_name, parse, scope_names, statements_in
from deepstack_harness.errors import Reason, SourceError, passes_through, shorten_list, text_of
from deepstack_harness.sources.request import every_python_file
from deepstack_harness.sources.source import Source, SourceFile
from deepstack_harness.text import plural

SUPPLIED = frozenset(
    {"torch", "numpy", "packaging", "typing_extensions", "sympy", "networkx", "jinja2", "fsspec", "filelock"}
)
"""What a machine with torch has: torch's own requirements, numpy and packaging."""
_NAMES_GUARDED = frozenset({"ImportError", "ModuleNotFoundError", "Exception", "BaseException"})
_SAME = {"regex": "re"}
"""A missing module, and the one of Python that does what packages use of it when they are imported."""


class _Builtins(dict[str, object]):
    """The builtins of one module; a name of the module that is bound to a stub is looked up here.

    Python looks names up in the builtins last, and by `__missing__` only in a subclass of dict.
    """

    def __init__(self, module: str, importing: Callable[..., object], absent: Absent) -> None:
        super().__init__(vars(builtins))
        self["__import__"] = importing
        self.stubs: dict[str, object] = {}
        self._module, self._absent = module, absent

    def __missing__(self, name: str) -> object:
        stub = self.stubs[name]
        self._absent.use(f"{self._module}.{name}", "read")
        return stub


class LoadedModule(ModuleType):
    """A module of the source; its names that are bound to stubs are used by being read."""

    def __getattr__(self, name: str) -> object:
        known = vars(self).get("__builtins__")
        if isinstance(known, _Builtins) and name in known.stubs:
            return known[name]
        raise AttributeError(f"module '{self.__name__}' has no attribute '{name}'", name=name, obj=self)


class LoadedSource:
    """The package of one source, imported in this process: at most one at a time."""

    def __init__(self, source: Source) -> None:
        """Take the files of a source; nothing is imported.  Raises what `Source.python_files` raises."""
        self.source = source
        self.absent = Absent(lambda: self._place(frame for frame, _ in traceback.walk_stack(None)))
        self.files = every_python_file(source)
        self.roots = frozenset(member.partition("/")[0] for member in self.files)
        self.folder = Path(tempfile.mkdtemp(prefix="source-"))
        self._watched = set[str]()
        self._mentioning: dict[tuple[str, str], list[str]] = {}
        self._read: dict[str, SourceFile] = {}
        self._imported: dict[str, ModuleType] = {}
        self._by_name: dict[str, str] = {}
        self._members: dict[str, str] = {}
        self._called: set[tuple[str, int]] = set()
        self._defined: dict[str, dict[tuple[int, str], Function | ast.ClassDef]] = {}
        self._facts = facts()
        for member, data in self.files.items():  # code looks for its own files
            path = self.folder / member
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)
        self._evicted = self._evict()
        self._finder = _Finder(self)
        sys.meta_path.insert(0, self._finder)

    def close(self) -> None:
        """Forget the package, and give modules of the same name back."""
        sys.meta_path.remove(self._finder)
        self._evict()
        sys.modules.update(self._evicted)
        shutil.rmtree(self.folder, ignore_errors=True)

    def _evict(self) -> dict[str, ModuleType]:
        names = [name for name in sys.modules if name.partition(".")[0] in self.roots]
        return {name: sys.modules.pop(name) for name in names}

    def module(self, member: str) -> ModuleType:
        """Import the file `member`, with all that it needs.

        Raises `SourceError` with the place where it cannot be imported.
        """
        try:
            with self.absent.permissive():
                return importlib.import_module(module_name(member))
        except BaseException as error:
            if passes_through(error) or isinstance(error, SourceError):  # it has its own place
                raise
            file, line = self.raised_at(error)
            text = f"{member} cannot be imported: {type(error).__name__}: {text_of(error)}"
            raise SourceError(Reason(text, file or member, line)) from error

    def named(self, member: str, name: str) -> object:
        """Return what the imported file `member` has under a name.

        Raises `SourceError` with the place of the statement that should make it, where that has raised.
        """
        found = vars(self.module(member)).get(name)
        if found is not None:
            return found
        file = self.read(member)
        node = next((node for node in parse(file).body if name in scope_names(node)), None)
        line = node.lineno if node else None
        raised = [why.text for why in self.absent.failed if why.file == file.filename and why.line == line]
        text = f"{name} could not be made: {raised[0]}" if raised else f"{name} is not there"
        raise SourceError(Reason(text, file.filename, line))

    def supplied(self, member: str, name: str, names: Mapping[str, object]) -> Any:  # noqa: ANN401  # of the engine
        """Return what a file has under a name, and whose code finds the objects of `names`.

        Raises `SourceError`, with its place, where it cannot be made.
        """
        found = self.named(member, name)
        self.check_instrument()
        self.supply(names)
        return found

    def sentence(self) -> str:
        """Return what was imported, and what was missing, as a sentence."""
        absent, failed = self.absent.modules, self.absent.failed
        text = f"{plural(len(self._imported), 'module')} imported, {plural(len(absent), 'name')} missing"
        if not failed:
            return text
        return f"{text}, {plural(len(failed), 'statement')} raised, first {failed[0].where}: {failed[0].text}"

    def by_name(self, name: str) -> str | None:
        """Return the imported file of a module; None for a module of another package."""
        return self._by_name.get(name)

    def imported(self, member: str) -> ModuleType | None:
        """Return the module of a file that was imported to its end; None for any other."""
        return self._imported.get(member)

    def read(self, member: str) -> SourceFile:
        """Return a file, read once; raises what `Source.read` raises."""
        if member not in self._read:
            self._read[member] = self.source.read(member)
        return self._read[member]

    def mentioning(self, folder: str, word: str) -> list[str]:
        """Return the files below a folder whose text has a word."""
        if (folder, word) not in self._mentioning:
            self._mentioning[folder, word] = self.source.mentioning(folder, word)
        return self._mentioning[folder, word]

    def statement_of(self, function: FunctionType) -> Function | None:
        """Return the statement of a function of the source."""
        code = function.__code__
        member = self.member_of(code.co_filename)
        node = self._definitions(member).get((code.co_firstlineno, code.co_name)) if member else None
        return node if isinstance(node, Function) else None

    def class_in(self, member: str, name: str) -> ast.ClassDef | None:
        """Return the first statement that makes a class of a name, also in a function or a block."""
        nodes = self._definitions(member).values()
        found = [node for node in nodes if isinstance(node, ast.ClassDef) and node.name == name]
        return min(found, key=lambda node: (node.col_offset, node.lineno), default=None)

    def _definitions(self, member: str) -> Mapping[tuple[int, str], Function | ast.ClassDef]:
        if member not in self._defined:
            self._defined[member] = {
                (_first_line(node), node.name): node
                for node in statements_in([parse(self.read(member))])
                if isinstance(node, Function | ast.ClassDef)
            }
        return self._defined[member]

    def check_instrument(self) -> None:
        """Raise `SourceError` where the import has changed what measuring relies on."""
        if names := changed(self._facts):
            raise SourceError(
                f"not driven: importing {self.source.package} changes {shorten_list(names)}, "
                "on which measuring relies"
            )

    def member_of(self, filename: str) -> str | None:
        """Return the imported file that tracebacks show as `filename`; None for any other."""
        return self._members.get(filename)

    def watch(self, members: Collection[str]) -> None:
        """Note the functions that run while these files are imported, for `ran`."""
        self._watched |= set(members)

    def supply(self, names: Mapping[str, object]) -> None:
        """Put objects of ours in the place of what the modules have under these names, missing ones too.

        Modules that are imported later get them as well.
        """
        self.absent.supplied = names
        for module in self._imported.values():
            self._supply(module)

    def _supply(self, module: ModuleType) -> None:
        stubs, supplied = vars(module)["__builtins__"].stubs, self.absent.supplied
        names = {name: name for name in supplied if name in vars(module)}
        for name, stub in stubs.items():
            path = path_of(stub)
            wanted = (name, path, path.rpartition(".")[2])  # a file may import it under another name
            if item := next((item for item in wanted if item in supplied), None):
                names[name] = item
        for name, item in names.items():
            stubs.pop(name, None)
            vars(module)[name] = supplied[item]

    @contextmanager
    def without_stubs(self) -> Iterator[None]:
        """Raise `CannotSupply` at the end for a stub that was met, also where the code under test went on."""
        self.absent.touched.clear()
        yield
        if self.absent.touched:
            raise CannotSupply(self.absent.touched[0])

    def modules(self) -> list[ModuleType]:
        """Return the modules that were imported."""
        return list(self._imported.values())

    def ran(self, member: str, line: int) -> bool:
        """Return whether a line of a file has run, as far as is known.

        One at the top level has, if the file was imported and the statement did not raise.  One in a function
        has, if that was called while a watched file was imported.
        """
        if member not in self._imported:
            return False
        filename = next(shown for shown, known in self._members.items() if known == member)
        parsed = parse(self.read(member))
        functions = [
            node for node in self._definitions(member).values()
            if isinstance(node, Function) and _spans(node, line)
        ]  # fmt: skip
        if functions:
            return (filename, max(map(_first_line, functions))) in self._called
        statement = next((node for node in parsed.body if _spans(node, line)), None)
        raised = {why.line for why in self.absent.failed if why.file == filename}
        return statement is not None and statement.lineno not in raised

    def raised(self, members: Collection[str], words: frozenset[str]) -> Iterator[Reason]:
        """Yield the statements of some files that raised and have one of `words`.

        Imports and definitions are not among them: what they would bind is a stub.
        """
        for why in self.absent.failed:
            member = self._members.get(why.file)
            if member is None or member not in members:
                continue
            file = self.read(member)
            statement = next((node for node in parse(file).body if node.lineno == why.line), None)
            if statement is None or isinstance(statement, _BINDS_ITS_NAME):
                continue
            text = ast.get_source_segment(file.text, statement) or ""
            if not words.isdisjoint(re.findall(r"\w+", text)):
                yield why

    # -- what the finder and the modules call

    def execute(self, module: ModuleType, member: str) -> None:
        """Run a file in its module; after a statement that raises it goes on with the next one."""
        shown = self.read(member)
        self._members[shown.filename] = member
        known = _Builtins(module.__name__, self._import, self.absent)
        names = vars(module)
        names["__builtins__"] = known
        # Tracebacks quote the lines that were compiled, also when they lie inside a wheel. Without a
        # modification time linecache never drops the entry.
        lines = StringIO(shown.text, newline=None).readlines()  # a form feed ends no line
        linecache.cache[shown.filename] = (len(shown.text), None, lines, shown.filename)
        # torch looks up the place of a custom operator by `inspect`, which would search all modules.
        inspect.modulesbyfile[shown.filename] = module.__name__
        before = sys.gettrace()
        sys.settrace(self._call if member in self._watched else None)
        try:
            with self.absent.permissive():
                rest: CodeType | None = _compiled(shown)
                while rest:
                    rest = self._run(rest, module, shown)
        finally:
            sys.settrace(before)
            known.stubs.update({name: value for name, value in names.items() if is_stub(value)})
            for name in known.stubs:
                names.pop(name, None)
            self._supply(module)
        self._imported[member], self._by_name[module.__name__] = module, member

    def _run(self, code: CodeType, module: ModuleType, file: SourceFile) -> CodeType | None:
        """Run statements of a module until one raises; note that one, and return the code of those after it.

        The names that it would bind become stubs.  Raises what a `raise` at the top level raises, and an
        `ImportError` that somebody on the way to this file is prepared for.
        """
        try:
            exec(code, vars(module))
        except BaseException as error:
            awaited = isinstance(error, ImportError) and self._is_awaited(inspect.currentframe())
            body = parse(file).body
            # The frame that ran `code`, if Python came so far as to make it. Two statements on one line
            # differ in their columns.
            number: int | None = None
            entry = error.__traceback__
            while entry and entry.tb_frame.f_code is not code:
                entry = entry.tb_next
            if entry:
                positions = itertools.islice(code.co_positions(), entry.tb_lasti // 2, None)
                line, _, column, _ = next(positions)
                place = (line or entry.tb_lineno, sys.maxsize if column is None else column)
                number = max(
                    n for n, node in enumerate(body) if (_first_line(node), node.col_offset) <= place
                )
            del entry  # it refers to this frame
            if number is None or passes_through(error) or awaited or isinstance(body[number], ast.Raise):
                raise
            statement, text = body[number], f"{type(error).__name__}: {text_of(error)}"
            self.absent.failed.append(Reason(text, file.filename, statement.lineno))
            for name in sorted(scope_names(statement)):
                vars(module).setdefault(name, make_stub(f"{module.__name__}.{name}", self.absent))
            futures = [n for n in body if isinstance(n, ast.ImportFrom) and n.module == "__future__"]
            return _compiled(file, [*futures, *body[number + 1 :]])
        return None

    def _call(self, frame: FrameType, _event: str, _argument: object) -> None:
        """Note a call; it is a trace function that follows no frame."""
        self._called.add((frame.f_code.co_filename, frame.f_code.co_firstlineno))

    def _import(
        self,
        name: str,
        globals: Mapping[str, object] | None = None,  # noqa: A002  # as `__import__` calls it
        locals: Mapping[str, object] | None = None,  # noqa: A002
        fromlist: Sequence[str] = (),
        level: int = 0,
    ) -> object:
        """Import for code of the source; give stubs for what is missing and nobody is prepared for."""
        caller, absolute = sys._getframe(1), name  # noqa: SLF001  # inspect's may be None
        if level:
            absolute = importlib.util.resolve_name("." * level + name, str((globals or {})["__package__"]))
        root = absolute.partition(".")[0]
        try:
            if root not in self.roots | SUPPLIED | sys.stdlib_module_names:
                raise ModuleNotFoundError(f"No module named {absolute!r}", name=absolute)
            module = builtins.__import__(name, globals, locals, fromlist or (), level)
        except ImportError:
            if self._is_awaited(caller):
                raise
            if absolute in _SAME:
                return importlib.import_module(_SAME[absolute])
            stub = self._missing(absolute, caller)
            return stub if fromlist or root == absolute else self._missing(root, caller)
        missing = [item for item in fromlist or () if item != "*" and not hasattr(module, item)]
        is_initialising = getattr(getattr(module, "__spec__", None), "_initializing", False)
        if not missing or is_initialising or self._is_awaited(caller):
            return module
        there = LoadedModule(module.__name__)
        for item in fromlist:
            whole = f"{module.__name__}.{item}"
            value = self._missing(whole, caller, make_stub) if item in missing else getattr(module, item)
            vars(there)[item] = value
        return there

    def _missing(
        self, name: str, caller: FrameType, make: Callable[[str, Absent], object] = StubModule
    ) -> object:
        filename = caller.f_code.co_filename
        self.absent.modules.setdefault(name, Reason("imported", filename, caller.f_lineno).where)
        return make(name, self.absent)

    def _is_awaited(self, frame: FrameType | None) -> bool:
        """Return whether code of the source takes an ImportError, here or in a frame that waits."""
        return any(
            not _is_bare_import(shown, line) and line in _guarded_lines(self.read(member))
            for item, line in traceback.walk_stack(frame)
            if (member := self.member_of(shown := item.f_code.co_filename))
        )

    def raised_at(self, error: BaseException) -> tuple[str, int | None]:
        """Return the innermost place of the source that an exception came through, if there is one."""
        frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
        return self._place(reversed(frames))

    def _place(self, frames: Iterable[FrameType]) -> tuple[str, int | None]:
        for frame in frames:
            if frame.f_code.co_filename in self._members:
                return frame.f_code.co_filename, frame.f_lineno
        return "", None


_LOADED: list[LoadedSource] = []


def loaded_of(source: Source) -> LoadedSource:
    """Return the package of a source as it is imported in this process; one at a time."""
    if not (_LOADED and _LOADED[0].source is source):
        unload()
        _LOADED.append(LoadedSource(source))
    return _LOADED[0]


def unload() -> None:
    """Forget the package that `loaded_of` has imported."""
    while _LOADED:
        _LOADED.pop().close()


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """The finder and loader of the files of a source, before all that is installed."""

    finds_a_source = True

    def __init__(self, loaded: LoadedSource) -> None:
        self._loaded = loaded

    @override
    def find_spec(self, fullname: str, path: object, target: object = None) -> ModuleSpec | None:
        inside = fullname.replace(".", "/")
        if inside.partition("/")[0] not in self._loaded.roots:
            return None
        files, folder = self._loaded.files, self._loaded.folder
        for member in (f"{inside}/__init__.py", f"{inside}.py"):
            if member in files:
                spec = ModuleSpec(fullname, self, origin=str(folder / member), loader_state=member)
                spec.has_location = True
                if member.endswith("/__init__.py"):
                    spec.submodule_search_locations = [str(folder / inside)]
                return spec
        if any(member.startswith(f"{inside}/") for member in files):  # a folder without an __init__.py
            spec = ModuleSpec(fullname, self, is_package=True)
            spec.submodule_search_locations = [str(folder / inside)]
            return spec
        raise ModuleNotFoundError(f"No module named {fullname!r}", name=fullname)

    @override
    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return LoadedModule(spec.name)

    @override
    def exec_module(self, module: ModuleType) -> None:
        assert module.__spec__ is not None
        member = module.__spec__.loader_state
        if member is not None:
            self._loaded.execute(module, member)

    def get_source(self, fullname: str) -> str | None:
        """Return the text of a module, for `inspect`."""
        spec = getattr(sys.modules.get(fullname), "__spec__", None)
        return None if spec is None else self._loaded.read(spec.loader_state).text


_BINDS_ITS_NAME = (ast.Import, ast.ImportFrom, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


def _first_line(node: ast.stmt) -> int:
    decorators: list[ast.expr] = getattr(node, "decorator_list", [])
    return min((node.lineno, *(item.lineno for item in decorators)))


def _spans(node: ast.stmt, line: int) -> bool:
    return _first_line(node) <= line <= (node.end_lineno or node.lineno)


def _compiled(file: SourceFile, statements: list[ast.stmt] | None = None) -> CodeType:
    """Compile a file, or some statements of it; raises what `parse` raises for what is no Python."""
    text = file.text if statements is None else ast.Module(statements, [])
    with warnings.catch_warnings(action="ignore"):  # as `parse` does
        try:
            return compile(text, file.filename, "exec", dont_inherit=True)
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            parse(file)
            raise


def _is_bare_import(filename: str, line: int) -> bool:
    """Return whether a line is an import in no block, as most that wait are: their files need no parsing."""
    is_import = linecache.getline(filename, line).startswith(("import ", "from "))
    return is_import and not linecache.getline(filename, line - 1).rstrip().endswith("\\")


@functools.lru_cache(maxsize=4096)  # the files of one source; a package has fewer
def _guarded_lines(file: SourceFile) -> frozenset[int]:
    """Return the lines at which an ImportError is taken by code that goes on."""
    lines = set[int]()
    if not re.search(r"\bexcept\b|suppress", file.text):
        return frozenset()
    for node in statements_in([parse(file)]):
        guarded: Sequence[ast.stmt] = ()
        if isinstance(node, ast.Try):
            going_on = [item.type for item in node.handlers if not isinstance(item.body[-1], ast.Raise)]
            guarded = node.body if any(map(_takes_import_error, going_on)) else ()
        elif isinstance(node, ast.With):
            managers = [item.context_expr for item in node.items if isinstance(item.context_expr, ast.Call)]
            suppressing = [call for call in managers if "suppress" in ast.unparse(call.func)]
            guarded = [node] if any(map(_takes_import_error, suppressing)) else ()
        for item in guarded:
            lines.update(range(item.lineno, (item.end_lineno or item.lineno) + 1))
    return frozenset(lines)


def _takes_import_error(node: ast.expr | None) -> bool:
    """Return whether the type of a handler, or a call of `suppress`, takes an ImportError."""
    return node is None or any(
        isinstance(part, ast.Name) and part.id in _NAMES_GUARDED for part in ast.walk(node)
    )
