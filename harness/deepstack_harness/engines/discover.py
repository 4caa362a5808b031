"""Find every deepstack class of a source by what it does.  Nothing of the source runs.

Engines carry a payload in one of three ways:

- A class keeps it between calls (`Finder`): its `forward`, its own or an inherited one, passes
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
from dataclasses import dataclass, field, replace
from functools import cached_property

from deepstack_harness.engines.carriers import EMBED, FORWARD, Carrier, find_carrier
from deepstack_harness.engines.class_facts import STORAGE
from deepstack_harness.engines.model_class import (
    BY_FORWARD,
    PLAIN_PARTS,
    EngineParts,
    FoundPatch,
    ModelClass,
    Way,
)
from deepstack_harness.engines.syntax import (
    Function,
    NoBuffer,
    acts_on,
    class_named,
    imported_files,
    package_imports,
    parse,
)
from deepstack_harness.engines.text_model import (
    CompiledText,
    arguments_of,
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
    """Methods of one class that an engine is driven by.

    `settings` are the engine's options that lead to the class, where they are not those of its orders, and
    `note` is a sentence about the class for whoever reads a verdict about it.
    """

    member: str
    class_name: str
    way: Way
    settings: str = ""
    note: str = ""

    @property
    def model(self) -> ModelClass:
        """The class."""
        return ModelClass(self.member, self.class_name, SINCE)


@dataclass(frozen=True)
class Writer:
    """The function that writes the payload of a step."""

    member: str
    function: str


@dataclass(frozen=True)
class ArgumentFiles:
    """The places of an engine whose payload is the argument `argument` of its text models.

    `text` says how a text model is called, `wrapper` is the class that the writer asks about a payload, and
    `replay` has the runners, newest first, or is a sentence that says why there is none.  `slots` is the file
    that registers the inputs of a captured graph by their names.  `members` are the files of text models,
    where they do not lie right in `folder`.  A class is judged if its method `adds` is given `argument` and
    reads `self.KEEPS`.  `by_family` names the text model of each family.
    """

    argument: str
    folder: str
    text: Way
    replay: tuple[ClassPart, ...] | str
    wrapper: ClassPart | None = None
    writer: Writer | None = None
    slots: str = ""
    members: tuple[str, ...] = ()
    adds: str = "forward"
    keeps: str = "layers"
    by_family: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class ArgumentModel:
    """One text model of a source that is given the payload, with the engine around it; nothing of it has run.

    `runner` captures and replays it, or is a sentence where the source has no runner that can be driven.
    `has_slot` says that the payload is registered as an input of captured graphs.  `replayed_at` is the place
    of the replay, `MEMBER:FIRST-LAST`.
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
class Parallel:
    """The class that a splitter asks for the part of a rank, in one of the files right in `folders`."""

    folders: tuple[str, ...]
    class_name: str
    way: Way


@dataclass(frozen=True)
class SplitFiles:
    """The place of a splitter: the function `function`, in the files right in `folders` that name it.

    Releases that lack one of the folders have another one.  `parallel` is the class that it asks.
    """

    folders: tuple[str, ...]
    function: str
    parallel: Parallel | None = None


@dataclass(frozen=True)
class FoundSplitter:
    """A splitter of a source in the file `member`, and the class that it asks; nothing of them has run."""

    member: str
    files: SplitFiles
    parallel: ModelClass | None = None


@dataclass(frozen=True)
class ModelFiles:
    """The place of a package's model files: a folder, and a word that all files of interest have.

    `known` are the classes of which more is known than their names; `parts` are those of the engine.
    `payload_argument` is the argument by which a class passes its payload to its language model.
    `forward` says how a class is called by its forward; None where it never is.
    """

    folder: str
    word: str
    known: Sequence[ModelClass] = ()
    parts: EngineParts = PLAIN_PARTS
    payload_argument: str = STORAGE
    forward: Way | None = BY_FORWARD


@dataclass(frozen=True)
class FoundClass:
    """One class of a source that syntax shows to keep or take a payload; nothing of it has run.

    `methods` is the engine around a text model whose payload is an argument, or a function that splits a
    payload over ranks.  For all other classes it says that they are made by an import, or why a plugin's
    patch is not there.  `forward` says why no class of the engine is called by its own forward.  `text` is
    the compiled text model behind the class, or a sentence that says why there is none, and `patch` is what
    a plugin does to the class.
    """

    model_class: str
    member: str
    methods: ArgumentModel | FoundSplitter | Reason
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


def _classes(source: Source, files: ModelFiles) -> Iterator[_SourceClass]:
    """Yield every class of the files that have the engine's word, or a method that may store a payload."""
    words = (files.word, f"def {EMBED}(")
    for member in sorted({member for word in words for member in source.mentioning(files.folder, word)}):
        file = source.read(member)
        statements = _CLASS.findall(file.text)
        for name in dict.fromkeys(name for name, _ in statements):
            named = {word for each, bases in statements if each == name for word in re.findall(r"\w+", bases)}
            yield _SourceClass(name, member, file, frozenset(named))


class Finder:
    """The classes of one source."""

    def __init__(self, source: Source, files: ModelFiles) -> None:
        """List the classes of the files that `files` describes; a file is parsed when one of them is used."""
        self._source = source
        self._files = files
        self._classes = {source_class.place: source_class for source_class in _classes(source, files)}
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
        found = self._of_name(model_class)
        if found is None:
            return None
        return FoundClass(model_class, found.member, IMPORTED, None, text=self._text_model(found))

    def _of_name(self, model_class: str) -> _SourceClass | None:
        class_name = model_class.rpartition(".")[2]
        equals = [source_class for source_class in self._classes.values() if source_class.name == class_name]
        return _by_unique_name(filter(self.keeps_payload, equals)).get(model_class)

    @cached_property
    def carriers(self) -> Mapping[str, _SourceClass]:
        """The classes that keep a payload, by the names under which they are judged."""
        return _by_unique_name(filter(self.keeps_payload, self._classes.values()))

    def assume(self, known: Collection[tuple[str, str]], changed: Collection[str]) -> None:
        """Take it that of the classes in files that are not `changed` the `known` ones keep a payload.

        They are given by file and name.  Classes with a base in a changed file are looked at.
        """
        touched = {each.name for each in self._classes.values() if each.member in changed}
        while more := {each.name for each in self._classes.values() if each.named & touched} - touched:
            touched |= more
        self.carriers = _by_unique_name(
            each
            for each in self._classes.values()
            if (self.keeps_payload(each) if each.name in touched else each.place in known)
        )

    def derived_from(self, model_class: str) -> list[str]:
        """Return the names of the classes with a payload that a class is derived from, the nearest first."""
        names = {each.place: name for name, each in self.carriers.items()}
        lineage = self._lineage(self.carriers[model_class])
        return [names[each.place] for each in lineage[1:] if each.place in names]

    def files_of(self, model_class: str) -> frozenset[str]:
        """Return the files of a class and of its text model, what these import, and what changes the class.

        Files of classes above them are among them, and what a file imports that lies beside one of these.
        """
        source_class = self.carriers[model_class]
        module = source_class.member.partition("/")[0]
        lineage = self._lineage(source_class)
        text = self._text_model(source_class)
        if isinstance(text, CompiledText):
            lineage += self._lineage(self._classes[text.model.member, text.model.class_name])
        members = {each.member for each in lineage}
        members |= {
            member
            for name in {each.name for each in lineage}
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
    ) -> list[_SourceClass]:
        """Return a class and the classes above it in this source, the nearest first."""
        on_the_way = (*derived, source_class.place)
        above = [self._lineage(base, on_the_way) for base in self._bases(source_class, on_the_way)]
        return [source_class, *(each for lineage in above for each in lineage)]

    def keeps_payload(self, source_class: _SourceClass) -> bool:
        """Return whether the class hands its payload on without being given it.

        It does by the name of the argument that it hands to its language model, or by its shape.
        """
        forward = self._inherited_method(source_class, FORWARD, ())
        if forward is None:
            return False
        arguments = {argument.arg for argument in (*forward.args.args, *forward.args.kwonlyargs)}
        payload_argument = self._files.payload_argument
        named = payload_argument not in arguments and any(
            isinstance(node, ast.keyword) and node.arg == payload_argument for node in ast.walk(forward)
        )
        return named or self.carrier(source_class) is not None

    def carrier(self, source_class: _SourceClass) -> Carrier | None:
        """Return what the class carries, by its shape."""
        if source_class.place not in self._carriers:
            self._carriers[source_class.place] = find_carrier(
                lambda name: self._inherited_method(source_class, name, ())
            )
        return self._carriers[source_class.place]

    def _inherited_method(
        self, source_class: _SourceClass, name: str, derived: tuple[tuple[str, str], ...]
    ) -> ast.FunctionDef | None:
        own = source_class.method(name)
        if own is not None:
            return own
        on_the_way = (*derived, source_class.place)
        bases = self._bases(source_class, on_the_way)
        inherited = (self._inherited_method(base, name, on_the_way) for base in bases)
        return next(filter(None, inherited), None)

    def _bases(self, source_class: _SourceClass, derived: tuple[tuple[str, str], ...]) -> list[_SourceClass]:
        """Return the base classes in this source; a damaged one may name a derived class as a base."""
        bases = (self._base(source_class, name) for name in source_class.bases)
        return [base for base in bases if base is not None and base.place not in derived]

    def _base(self, source_class: _SourceClass, name: str) -> _SourceClass | None:
        """Return a base by its name: of the same file, of the file it is imported from, or else of any."""
        module, real_name = package_imports(source_class.file, source_class.member).get(name, ("", name))
        there = f"{module.replace('.', '/')}.py" if module else source_class.member
        return self._classes.get((there, real_name)) or self._named.get(name)

    def _text_model(self, source_class: _SourceClass) -> CompiledText | str:
        """Find the compiled text model that a class hands its payload to, or say why there is none."""
        carrier = self.carrier(source_class)
        payload_names = set(carrier.arguments if carrier else ()) or {self._files.payload_argument}
        todo, seen, uncompiled = [source_class], {source_class.place}, ""
        while todo:
            owner = todo.pop(0)
            init = self._inherited_method(owner, "__init__", ())
            for made in (self._base(owner, name) for name in classes_made(init)) if init else ():
                if made is None or made.place in seen:
                    continue
                seen.add(made.place)
                todo.append(made)
                defining = self._defining_class(made, FORWARD, ())
                forward = defining.method(FORWARD) if defining else None
                if defining is None or forward is None:
                    continue
                arguments = [name for name in arguments_of(forward) if name in payload_names]
                if not arguments or not _has_layers(forward):
                    continue
                at = f"{made.member}:{made.node.lineno if made.node else 1}"
                if any(each.node and is_compiled(each.node) for each in (made, defining)):
                    model = ModelClass(made.member, made.name, SINCE, parts=self._files.parts)
                    return CompiledText(model, arguments[0], at)
                uncompiled = f"its text model {made.name} ({at}) is not compiled"
        return uncompiled or "no compiled text model was found behind it"

    def _defining_class(
        self, source_class: _SourceClass, name: str, derived: tuple[tuple[str, str], ...]
    ) -> _SourceClass | None:
        """Return the class, itself or a base, that defines a method."""
        if source_class.method(name) is not None:
            return source_class
        on_the_way = (*derived, source_class.place)
        defining = (
            self._defining_class(base, name, on_the_way) for base in self._bases(source_class, on_the_way)
        )
        return next(filter(None, defining), None)


def _has_layers(forward: ast.FunctionDef) -> bool:
    """Return whether a `forward` runs layers one after the other."""
    return any(isinstance(node, ast.For | ast.comprehension) for node in ast.walk(forward))


def _by_unique_name(classes: Iterable[_SourceClass]) -> dict[str, _SourceClass]:
    """Return classes by their names; those of one name get the name of their folder too."""
    carriers = list(classes)
    names = Counter(source_class.name for source_class in carriers)
    return {
        each.name if names[each.name] == 1 else _qualified_name(each, carriers): each for each in carriers
    }


def _qualified_name(source_class: _SourceClass, others: Sequence[_SourceClass]) -> str:
    """Return the name of a class after the last folder or file that tells it from its equals."""
    equals = [each for each in others if each.name == source_class.name and each.place != source_class.place]
    parts = source_class.member.removesuffix(".py").split("/")
    theirs = [set(other.member.removesuffix(".py").split("/")) for other in equals]
    apart = [part for part in parts if not any(part in each for each in theirs)]
    return f"{apart[-1] if apart else '.'.join(parts)}.{source_class.name}"


_NO_CALLS = Reason("the payload is an argument: nothing is called between the writer and the text model")


def find_argument_models(source: Source, files: ArgumentFiles) -> list[FoundClass]:
    """Find every text model that is given the payload, in the order of their files.

    Raises `UsageError` for a file that does not parse, `MachineError` when the source cannot be fetched.
    """
    with depth_limited(source):
        return [
            FoundClass(node.name, member, _argument_model(source, files, member, node.name), _NO_CALLS)
            for member, node in _text_models(source, files)
        ]


def _text_models(source: Source, files: ArgumentFiles) -> Iterator[tuple[str, ast.ClassDef]]:
    """Yield the classes whose own method `files.adds` is given the payload and reads `self.KEEPS`."""
    for member in files.members or source.mentioning(files.folder, files.argument):
        for node in _statements(source, member):
            if isinstance(node, ast.ClassDef) and any(_adds_payload(each, files) for each in node.body):
                yield member, node


def _statements(source: Source, member: str) -> list[ast.stmt]:
    """Return the statements of a file; none where this release does not have it."""
    try:
        return parse(source.read(member)).body
    except NoSuchMember:
        return []


def _adds_payload(node: ast.stmt, files: ArgumentFiles) -> bool:
    if not isinstance(node, Function) or node.name != files.adds:
        return False
    names = {each.arg for each in (*node.args.args, *node.args.kwonlyargs)}
    runs = any(isinstance(each, ast.Attribute) and each.attr == files.keeps for each in ast.walk(node))
    return files.argument in names and runs


def _argument_model(source: Source, files: ArgumentFiles, member: str, name: str) -> ArgumentModel:
    found = ArgumentModel(ModelClass(member, name, SINCE), files, Reason(""))
    if isinstance(files.replay, str):
        return replace(found, runner=Reason(files.replay))
    try:
        part = _runner_part(source, files.replay)
    except UsageError as error:
        return replace(found, runner=reason_of(error))
    return replace(
        found, runner=part, has_slot=_registers_payload(source, files), replayed_at=_replayed_at(source, part)
    )


def _runner_part(source: Source, parts: tuple[ClassPart, ...]) -> ClassPart:
    """Return the first runner of the first file that is there; raise `UsageError` where none has its methods.

    Runners of other files are not tried: an engine that has a newer runner serves with it.
    """
    member = next((part.member for part in parts if _has_file(source, part.member)), parts[0].member)
    file, refusals = source.read(member), list[NoBuffer]()
    for part in parts:
        if part.member != member:
            continue
        node = class_named(file, part.class_name)
        own = {each.name for each in node.body if isinstance(each, Function)}
        lacking = sorted(set((part.way.verbs or {}).values()) - own)
        if not lacking:
            return part
        text = f"class {part.class_name} has no {', '.join(lacking)}"
        refusals.append(NoBuffer(Reason(text, file.filename, node.lineno)))
    raise refusals[0]


def _has_file(source: Source, member: str) -> bool:
    try:
        source.read(member)
    except NoSuchMember:
        return False
    return True


def _registers_payload(source: Source, files: ArgumentFiles) -> bool:
    """Return True if the file of slots names the payload."""
    try:
        tree = parse(source.read(files.slots))
    except NoSuchMember:
        return False
    return any(isinstance(node, ast.Constant) and node.value == files.argument for node in ast.walk(tree))


def _replayed_at(source: Source, part: ClassPart) -> str:
    """Return the lines of the closure that replays the graph, or those of the method around it."""
    name = (part.way.verbs or {})["set"]
    body = class_named(source.read(part.member), part.class_name).body
    method = next(node for node in body if isinstance(node, Function) and node.name == name)
    closures = (node for node in ast.walk(method) if isinstance(node, ast.FunctionDef) and node is not method)
    replays = (
        node
        for node in closures
        if any(isinstance(each, ast.Attribute) and each.attr == "replay" for each in ast.walk(node))
    )
    closure: Function = next(replays, method)
    return f"{part.member}:{closure.lineno}-{closure.end_lineno}"


def find_splitters(source: Source, files: SplitFiles) -> list[FoundClass]:
    """Find every splitter of a source, in the order of their files.

    Raises `UsageError` for a file that does not parse, `MachineError` when the source cannot be fetched.
    """
    with depth_limited(source):
        return [
            FoundClass(files.function, member, _splitter(source, files, member), None)
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


def _splitter(source: Source, files: SplitFiles, member: str) -> FoundSplitter | Reason:
    part = files.parallel
    if part is None:
        return FoundSplitter(member, files)
    members = _files_defining(source, part.folders, part.class_name)
    if not members:
        return Reason(f"{source.label} has no class {part.class_name} in {' or '.join(part.folders)}")
    return FoundSplitter(member, files, ModelClass(members[0], part.class_name, SINCE))
