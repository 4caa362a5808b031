"""Find every deepstack class of a source by what it does.  Nothing of the source runs.

Engines carry a payload in one of three ways:

- A class stores it between calls (`Finder`): its `forward`, its own or an inherited one, passes
  `deepstack_input_embeds` (or the engine's name for it) to the language model without being given it.
- The payload is an argument of the text model (`find_argument_models`), whose `forward` adds it.  Around it
  are the function that writes a step's payload, and the runner that captures and replays the text model.
- Functions split the payload over ranks (`find_splitters`).
"""

import ast
import gc
import re
import sys
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import cached_property

from deepstack_harness.engines.carriers import EMBED, FORWARD, Carrier, find_carrier
from deepstack_harness.engines.model_class import (
    BY_METHODS,
    CalledMethods,
    EngineParts,
    FoundPatch,
    ModelClass,
)
from deepstack_harness.engines.syntax import (
    Function,
    NoBuffer,
    acts_on,
    arguments_of,
    class_named,
    imported_files,
    package_imports,
    parse,
)
from deepstack_harness.engines.text_model import (
    CompiledText,
    classes_made,
    is_compiled,
)
from deepstack_harness.errors import Reason, UsageError, reason_of
from deepstack_harness.sources.source import (
    DEPTH,
    MOST_DEPTH,
    NoSuchMember,
    Source,
    SourceFile,
)

SINCE = "this release"
IMPORTED = Reason("the class is made by importing its package")


@dataclass(frozen=True)
class ClassPart:
    """Methods of one class that are called in the place of its engine.

    `settings` are the engine's options that lead to the class, where they are not those of its orders, and
    `note` is a sentence about the class for whoever reads a verdict about it.
    """

    member: str
    class_name: str
    called: CalledMethods
    settings: str = ""
    note: str = ""

    @property
    def model(self) -> ModelClass:
        """The class."""
        return ModelClass(self.member, self.class_name, SINCE)


@dataclass(frozen=True)
class ArgumentFiles:
    """The places of an engine whose payload is the argument `argument` of its text models.

    `text` are the methods of a text model that are called. The writer calls methods of the class `wrapper`
    about a payload. `replay` has the runners, newest first, or is the reason why there is none. `slots` is
    the file that registers the inputs of a captured graph by their names. `members` are the files of text
    models, where they are not right in `folder`. A class is judged if its method `adds` is given `argument`
    and reads the attribute `reads`. `by_family` names the text model of each family. `writer` is the file
    and the name of the function that writes the payload of a step.
    """

    argument: str
    folder: str
    text: CalledMethods
    replay: tuple[ClassPart, ...] | str
    wrapper: ClassPart | None = None
    writer: tuple[str, str] | None = None
    slots: str = ""
    members: tuple[str, ...] = ()
    adds: str = "forward"
    reads: str = "layers"
    by_family: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class ArgumentModel:
    """One text model of a source that is given the payload, with the engine around it; nothing of it has run.

    `runner` captures and replays it, or is a sentence where the source has no runner that can be called.
    With `has_slot` the payload is registered as an input of captured graphs. `replayed_at` is the place of
    the replay, `MEMBER:FIRST-LAST`.
    """

    text: ModelClass
    files: ArgumentFiles
    runner: ClassPart | Reason
    has_slot: bool = False
    replayed_at: str = ""

    @property
    def settings(self) -> str:
        """The settings by which the engine reaches its runner."""
        return self.runner.settings if isinstance(self.runner, ClassPart) else ""

    @property
    def note(self) -> str:
        """A sentence about the runner."""
        return self.runner.note if isinstance(self.runner, ClassPart) else ""


@dataclass(frozen=True)
class SplitFiles:
    """The place of a splitter: the function `function`, in the files right in `folders` that name it.

    The part of a rank may be computed by the class `class_name`, in one of the files right in
    `class_folders`, whose methods `called` are called. Each release has some of the folders.
    """

    folders: tuple[str, ...]
    function: str
    class_folders: tuple[str, ...] = ()
    class_name: str = ""
    called: CalledMethods = BY_METHODS


@dataclass(frozen=True)
class FoundClass:
    """One class of a source that stores a payload or is given one, as syntax shows; nothing of it has run.

    `methods` is the engine around a text model whose payload is an argument, or the class that computes the
    part of a rank for a splitter. For all others it is `IMPORTED`, or the reason why a plugin's patch or
    the class of a splitter is missing. `forward` is the reason why the class is not called by its own
    forward. `text` is the compiled text model that the class calls, or the reason why there is none, and
    `patch` is what a plugin does to the class.
    """

    model_class: str
    member: str
    methods: ArgumentModel | ModelClass | Reason
    forward: Reason | None
    patch: FoundPatch | None = None
    text: CompiledText | str = ""

    @property
    def class_name(self) -> str:
        """The name in the file: `model_class` has a folder in front of it where several classes have it."""
        return self.model_class.rpartition(".")[2]


@dataclass(frozen=True)
class _SourceClass:
    """A class by its name, and the file that it is in, which is parsed when `node` is read."""

    name: str
    member: str
    file: SourceFile
    named: frozenset[str] = frozenset()
    """The words between the parentheses of the statement."""

    @property
    def place(self) -> tuple[str, str]:
        """Its file and its name, which no other class has both of."""
        return self.member, self.name

    @cached_property
    def node(self) -> ast.ClassDef | None:
        """The statement; None where the text only looks like one, as in a docstring."""
        classes = (node for node in parse(self.file).body if isinstance(node, ast.ClassDef))
        return next((node for node in classes if node.name == self.name), None)

    @property
    def bases(self) -> list[str]:
        bases = self.node.bases if self.node else ()
        return [base.id for base in bases if isinstance(base, ast.Name)]

    def method(self, name: str) -> ast.FunctionDef | None:
        body = self.node.body if self.node else ()
        methods = (node for node in body if isinstance(node, ast.FunctionDef) and node.name == name)
        return next(methods, None)


@contextmanager
def depth_limited(source: Source) -> Iterator[None]:
    """Set the limit on depth for a while, and turn its error into a `UsageError` that names the source."""
    before = sys.getrecursionlimit()
    sys.setrecursionlimit(max(before, min(DEPTH.value(), MOST_DEPTH)))
    try:
        yield
    except RecursionError:
        raise UsageError(
            f"{source.label} has classes or expressions that are nested too deeply: {DEPTH.advice}, "
            f"up to {MOST_DEPTH:,}"
        ) from None
    finally:
        sys.setrecursionlimit(before)


@contextmanager
def collector_paused() -> Iterator[None]:
    """Pause Python's collector, and leave what was made out of its later collections.

    Syntax trees and modules of a package stay: to visit them took 17 s of 46 for the classes of vLLM 0.33.0.
    """
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.freeze()
            gc.enable()


_CLASS = re.compile(r"^class +(\w+)(?:\(([^)]*)\))?", re.MULTILINE)


def _classes(source: Source, folder: str, word: str) -> Iterator[_SourceClass]:
    """Yield every class of the files that have a word, or a method that may store a payload."""
    words = (word, f"def {EMBED}(")
    for member in sorted({member for word in words for member in source.mentioning(folder, word)}):
        file = source.read(member)
        statements = _CLASS.findall(file.text)
        for name in dict.fromkeys(name for name, _ in statements):
            bases = " ".join(bases for other, bases in statements if other == name)
            yield _SourceClass(name, member, file, frozenset(re.findall(r"\w+", bases)))


class Finder:
    """The classes of one source."""

    def __init__(
        self, source: Source, folder: str, word: str, parts: EngineParts, payload_argument: str
    ) -> None:
        """List the classes of the files below `folder` that have the engine's word.

        A file is parsed when one of them is used. `payload_argument` is the argument by which a class passes
        its payload to its language model.
        """
        self._source, self._parts, self._payload_argument = source, parts, payload_argument
        self._classes = {item.place: item for item in _classes(source, folder, word)}
        self._named = {source_class.name: source_class for source_class in self._classes.values()}
        self._carriers: dict[tuple[str, str], Carrier | None] = {}

    def found(self, wanted: Callable[[str, str], bool] = lambda *_: True) -> list[FoundClass]:
        """Return the classes that are `wanted`, by name and file, in the order of files."""
        return [
            FoundClass(name, source_class.member, IMPORTED, None)
            for name, source_class in self.carriers.items()
            if wanted(name, source_class.member)
        ]

    def found_named(self, model_class: str) -> FoundClass | None:
        """Return one class of `found`, with its text model; None where there is none."""
        class_name = model_class.rpartition(".")[2]
        equals = (item for item in self._classes.values() if item.name == class_name)
        found = _by_unique_name(filter(self.stores_payload, equals)).get(model_class)
        if found is None:
            return None
        return FoundClass(model_class, found.member, IMPORTED, None, text=self._text_model(found))

    @cached_property
    def carriers(self) -> Mapping[str, _SourceClass]:
        """The classes that store a payload, by the names under which they are judged."""
        return _by_unique_name(filter(self.stores_payload, self._classes.values()))

    def assume(self, known: Collection[tuple[str, str]], changed: Collection[str]) -> None:
        """Look only at classes in `changed` files, and those with a base there; of the rest trust `known`.

        `known` are the classes of another state of the source that store a payload, by file and name.
        """
        classes = self._classes.values()
        touched = {item.name for item in classes if item.member in changed}
        while more := {item.name for item in classes if item.named & touched} - touched:
            touched |= more
        self.carriers = _by_unique_name(
            item
            for item in classes
            if (self.stores_payload(item) if item.name in touched else item.place in known)
        )

    def derived_from(self, model_class: str) -> list[str]:
        """Return the names of the classes with a payload that a class is derived from, the nearest first."""
        names = {item.place: name for name, item in self.carriers.items()}
        _, *above = self._lineage(self.carriers[model_class])
        return [names[item.place] for item in above if item.place in names]

    def files_of(self, model_class: str) -> frozenset[str]:
        """Return the files of a class and of its text model, what these import, and what changes the class.

        The files of their bases are among them. An imported file counts with its own imports, if it is in the
        same folder as one of these.
        """
        source_class = self.carriers[model_class]
        module = source_class.member.partition("/")[0]
        lineage = [*self._lineage(source_class)]
        text = self._text_model(source_class)
        if isinstance(text, CompiledText):
            lineage += self._lineage(self._classes[text.model.member, text.model.class_name])
        members = {item.member for item in lineage}
        members |= {
            member
            for name in {item.name for item in lineage}
            for member in self._source.mentioning(module, name)
            if acts_on(self._source.read(member), name)
        }
        folders = {member.rpartition("/")[0] for member in members}
        imported = self._imported_by(members)
        return frozenset(
            members | imported | self._imported_by({m for m in imported if m.rpartition("/")[0] in folders})
        )

    def _imported_by(self, members: Collection[str]) -> set[str]:
        found = set[str]()
        for member in members:
            with suppress(NoSuchMember):
                found |= imported_files(self._source.read(member), member)
        return found

    def _lineage(
        self, source_class: _SourceClass, derived: tuple[tuple[str, str], ...] = ()
    ) -> Iterator[_SourceClass]:
        """Yield a class and its bases in this source, depth first.

        `derived` are the classes on the way here: a damaged source may name one of them as a base.
        """
        yield source_class
        derived = (*derived, source_class.place)
        for name in source_class.bases:
            base = self._base(source_class, name)
            if base is not None and base.place not in derived:
                yield from self._lineage(base, derived)

    def stores_payload(self, source_class: _SourceClass) -> bool:
        """Return whether the class passes a payload on without being given it.

        Either it passes the engine's argument to its language model, or it is a carrier of any names.
        """
        forward = self._inherited_method(source_class, FORWARD)
        if forward is None:
            return False
        arguments = {argument.arg for argument in (*forward.args.args, *forward.args.kwonlyargs)}
        named = self._payload_argument not in arguments and any(
            isinstance(node, ast.keyword) and node.arg == self._payload_argument for node in ast.walk(forward)
        )
        return named or self.carrier(source_class) is not None

    def carrier(self, source_class: _SourceClass) -> Carrier | None:
        """Return what the class carries between two calls, if it does."""
        if source_class.place not in self._carriers:
            self._carriers[source_class.place] = find_carrier(
                lambda name: self._inherited_method(source_class, name)
            )
        return self._carriers[source_class.place]

    def _inherited_method(self, source_class: _SourceClass, name: str) -> ast.FunctionDef | None:
        methods = (item.method(name) for item in self._lineage(source_class))
        return next(filter(None, methods), None)

    def _base(self, source_class: _SourceClass, name: str) -> _SourceClass | None:
        """Return a base by its name: of the same file, of the file it is imported from, or else of any."""
        module, real_name = package_imports(source_class.file, source_class.member).get(name, ("", name))
        there = f"{module.replace('.', '/')}.py" if module else source_class.member
        return self._classes.get((there, real_name)) or self._named.get(name)

    def _text_model(self, source_class: _SourceClass) -> CompiledText | str:
        """Return the compiled text model that a class passes its payload to, or why there is none."""
        carrier = self.carrier(source_class)
        payload_names = set(carrier.arguments if carrier else ()) or {self._payload_argument}
        todo, seen, uncompiled = [source_class], {source_class.place}, ""
        while todo:
            owner = todo.pop(0)
            init = self._inherited_method(owner, "__init__")
            for made in (self._base(owner, name) for name in classes_made(init)) if init else ():
                if made is None or made.place in seen:
                    continue
                seen.add(made.place)
                todo.append(made)
                defining = next((item for item in self._lineage(made) if item.method(FORWARD)), made)
                forward = defining.method(FORWARD)
                if forward is None:
                    continue
                arguments = [name for name in arguments_of(forward) if name in payload_names]
                # A text model runs its layers one after the other.
                has_loop = any(isinstance(node, ast.For | ast.comprehension) for node in ast.walk(forward))
                if not arguments or not has_loop:
                    continue
                at = f"{made.member}:{made.node.lineno if made.node else 1}"
                if any(item.node and is_compiled(item.node) for item in (made, defining)):
                    model = ModelClass(made.member, made.name, SINCE, parts=self._parts)
                    return CompiledText(model, arguments[0], at)
                uncompiled = f"its text model {made.name} ({at}) is not compiled"
        return uncompiled or "it calls no compiled text model that was found"


def _by_unique_name(classes: Iterable[_SourceClass]) -> dict[str, _SourceClass]:
    """Return classes by their names; those of one name get the name of their folder too."""
    carriers = list(classes)
    names = Counter(source_class.name for source_class in carriers)
    return {
        item.name if names[item.name] == 1 else _qualified_name(item, carriers): item for item in carriers
    }


def _qualified_name(source_class: _SourceClass, others: Sequence[_SourceClass]) -> str:
    """Return the name of a class after the last folder or file that no other class of this name is in."""
    parts = source_class.member.removesuffix(".py").split("/")
    theirs = {
        part
        for other in others
        if other.name == source_class.name and other.place != source_class.place
        for part in other.member.removesuffix(".py").split("/")
    }
    apart = [part for part in parts if part not in theirs]
    return f"{apart[-1] if apart else '.'.join(parts)}.{source_class.name}"


_NO_CALLS = Reason("the payload is an argument: nothing is called between the writer and the text model")


def find_argument_models(source: Source, files: ArgumentFiles) -> list[FoundClass]:
    """Find every text model that is given the payload, in the order of their files.

    Raises `UsageError` for a file that does not parse, `MachineError` when the source cannot be fetched.
    """
    found = []
    with depth_limited(source):
        for member in files.members or source.mentioning(files.folder, files.argument):
            file = _file(source, member)
            for node in parse(file).body if file else ():
                if isinstance(node, ast.ClassDef) and any(_adds_payload(part, files) for part in node.body):
                    model = _argument_model(source, files, ModelClass(member, node.name, SINCE))
                    found.append(FoundClass(node.name, member, model, _NO_CALLS))
    return found


def _file(source: Source, member: str) -> SourceFile | None:
    """Return a file; None where this release does not have it."""
    try:
        return source.read(member)
    except NoSuchMember:
        return None


def _adds_payload(node: ast.stmt, files: ArgumentFiles) -> bool:
    """Return whether a statement is the method `files.adds`, is given the payload and reads `files.reads`."""
    if not isinstance(node, Function) or node.name != files.adds:
        return False
    names = {argument.arg for argument in (*node.args.args, *node.args.kwonlyargs)}
    return files.argument in names and any(
        isinstance(part, ast.Attribute) and part.attr == files.reads for part in ast.walk(node)
    )


def _argument_model(source: Source, files: ArgumentFiles, text: ModelClass) -> ArgumentModel:
    if isinstance(files.replay, str):
        return ArgumentModel(text, files, Reason(files.replay))
    try:
        part = _runner_part(source, files.replay)
    except UsageError as error:
        return ArgumentModel(text, files, reason_of(error))
    slots = _file(source, files.slots)
    has_slot = slots is not None and any(
        isinstance(node, ast.Constant) and node.value == files.argument for node in ast.walk(parse(slots))
    )
    # The lines of the closure that replays the graph, or those of the method around it.
    name = (part.called.verbs or {})["set"]
    body = class_named(source.read(part.member), part.class_name).body
    method: Function = next(node for node in body if isinstance(node, Function) and node.name == name)
    closures = (
        node
        for node in ast.walk(method)
        if isinstance(node, ast.FunctionDef) and node is not method
        if any(isinstance(inner, ast.Attribute) and inner.attr == "replay" for inner in ast.walk(node))
    )
    replaying = next(closures, method)
    at = f"{part.member}:{replaying.lineno}-{replaying.end_lineno}"
    return ArgumentModel(text, files, part, has_slot, at)


def _runner_part(source: Source, parts: tuple[ClassPart, ...]) -> ClassPart:
    """Return the first runner of the first file that is there; raise `UsageError` where none has its methods.

    Runners of other files are not tried: an engine that has a newer runner serves with it.
    """
    member = next((part.member for part in parts if _file(source, part.member)), parts[0].member)
    file, refusals = source.read(member), list[NoBuffer]()
    for part in parts:
        if part.member != member:
            continue
        node = class_named(file, part.class_name)
        own = {method.name for method in node.body if isinstance(method, Function)}
        lacking = sorted(set((part.called.verbs or {}).values()) - own)
        if not lacking:
            return part
        text = f"class {part.class_name} has no {', '.join(lacking)}"
        refusals.append(NoBuffer(Reason(text, file.filename, node.lineno)))
    raise refusals[0]


def find_splitters(source: Source, files: SplitFiles) -> list[FoundClass]:
    """Find every splitter of a source, in the order of their files.

    Raises `UsageError` for a file that does not parse, `MachineError` when the source cannot be fetched.
    """
    with depth_limited(source):
        parallel: ModelClass | Reason = IMPORTED
        if files.class_name:
            where = " or ".join(files.class_folders)
            parallel = Reason(f"{source.label} has no class {files.class_name} in {where}")
            for member in _files_defining(source, files.class_folders, files.class_name)[:1]:
                parallel = ModelClass(member, files.class_name, SINCE)
        return [
            FoundClass(files.function, member, parallel, None)
            for member in _files_defining(source, files.folders, files.function)
        ]


def _files_defining(source: Source, folders: Iterable[str], name: str) -> list[str]:
    """Return the files right in some folders, as far as there are these, that define a function or class."""
    mentioning: list[str] = []
    for folder in folders:
        with suppress(NoSuchMember):
            mentioning += source.mentioning(folder, name)
    return [
        member
        for member in mentioning
        if any(
            isinstance(node, ast.FunctionDef | ast.ClassDef) and node.name == name
            for node in parse(source.read(member)).body
        )
    ]
