"""Find every deepstack class of a source by what it does, and cut it.

A class is one when its `forward`, its own or an inherited one, hands `deepstack_input_embeds` (or what the
engine calls it) to the language model without being given it: then it keeps the payload itself between calls.
"""

import ast
import gc
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

from deepstack_harness.binding.argument_files import ArgumentCut
from deepstack_harness.binding.cut_class import STORAGE
from deepstack_harness.binding.cut_model import (
    BY_FORWARD,
    BY_METHODS,
    PLAIN_PARTS,
    EngineParts,
    ModelClass,
    ModelCut,
    Way,
    cut_model,
)
from deepstack_harness.binding.cut_patch import PatchCut
from deepstack_harness.binding.split_files import SplitCut
from deepstack_harness.binding.syntax import parse
from deepstack_harness.errors import UsageError
from deepstack_harness.sources.limits import DEPTH, MOST_DEPTH
from deepstack_harness.sources.source import Source, SourceFile


@dataclass(frozen=True)
class ModelFiles:
    """The place of a package's model files: a folder, and a word that all files of interest have.

    `known` are the classes of which more is known than their names; `parts` are those of the engine.
    `handed` is the argument by which a class hands its payload to its language model.  `methods` and
    `forward` say how a class is cut; None for a `forward` that is never driven.
    """

    folder: str
    word: str
    known: Sequence[ModelClass] = ()
    parts: EngineParts = PLAIN_PARTS
    handed: str = STORAGE
    methods: Way = BY_METHODS
    forward: Way | None = BY_FORWARD


@dataclass(frozen=True)
class FoundCut:
    """One class that was found, cut in both ways: `BY_METHODS` and `BY_FORWARD`.

    An engine whose payload is an argument, or one that splits it over ranks, is cut as a whole in place of
    methods.  A sentence stands where a way cannot be taken, an empty one where no class of the engine is
    driven so; `note` says what the class shares with another one.  `patch` is what a plugin does to the
    class.
    """

    model_class: str
    member: str
    methods: ModelCut | ArgumentCut | SplitCut | str
    forward: ModelCut | str
    note: str = ""
    patch: PatchCut | None = None


@dataclass(frozen=True)
class _Class:
    """A class statement, and the file it stands in."""

    node: ast.ClassDef
    member: str
    file: SourceFile

    @property
    def bases(self) -> list[str]:
        return [base.id for base in self.node.bases if isinstance(base, ast.Name)]

    def method(self, name: str) -> ast.FunctionDef | None:
        methods = (node for node in self.node.body if isinstance(node, ast.FunctionDef) and node.name == name)
        return next(methods, None)


def find_cuts(source: Source, files: ModelFiles) -> list[FoundCut]:
    """Find and cut all deepstack classes, in the order of their files.

    Raises `UsageError` for a file that does not parse, and for bases or expressions that are nested too
    deeply, `MachineError` when the source cannot be fetched.
    """
    with _collector_paused(), depth_limited(source):
        classes = {found.node.name: found for found in _classes(source, files)}
        finder = _Finder(source, files, classes)
        return [finder.cut(one) for one in classes.values() if finder.keeps_payload(one)]


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
def _collector_paused() -> Iterator[None]:
    """Pause Python's collector: it would visit hundreds of thousands of nodes that stay, again and again."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def _classes(source: Source, files: ModelFiles) -> Iterator[_Class]:
    for member in source.mentioning(files.folder, files.word):
        file = source.read(member)
        for node in parse(file).body:
            if isinstance(node, ast.ClassDef):
                yield _Class(node, member, file)


class _Finder:
    """The classes of one source, each cut once, base classes first."""

    def __init__(self, source: Source, files: ModelFiles, classes: Mapping[str, _Class]) -> None:
        self._source = source
        self._files = files
        self._classes = classes
        self._done: dict[str, FoundCut] = {}

    def keeps_payload(self, one: _Class) -> bool:
        """Tell whether the class hands its payload on without being given it."""
        forward = self._inherited_method(one, "forward", ())
        if forward is None:
            return False
        given = {argument.arg for argument in (*forward.args.args, *forward.args.kwonlyargs)}
        handed = self._files.handed
        return handed not in given and any(
            isinstance(node, ast.keyword) and node.arg == handed for node in ast.walk(forward)
        )

    def cut(self, one: _Class, derived: tuple[str, ...] = ()) -> FoundCut:
        """Cut a class; `derived` are the classes on the way here."""
        name = one.node.name
        if name not in self._done:
            self._done[name] = self._cut(one, (*derived, name))
        return self._done[name]

    def _inherited_method(self, one: _Class, name: str, derived: tuple[str, ...]) -> ast.FunctionDef | None:
        own = one.method(name)
        if own is not None:
            return own
        on_the_way = (*derived, one.node.name)
        bases = self._bases(one, on_the_way)
        found = (self._inherited_method(base, name, on_the_way) for base in bases)
        return next(filter(None, found), None)

    def _bases(self, one: _Class, derived: tuple[str, ...]) -> list[_Class]:
        """Return the base classes in this source; a damaged one may name a derived class as a base."""
        return [self._classes[name] for name in one.bases if name in self._classes and name not in derived]

    def _cut(self, one: _Class, derived: tuple[str, ...]) -> FoundCut:
        base = next(filter(self.keeps_payload, self._bases(one, derived)), None)
        inherited = self.cut(base, derived) if base else None
        if inherited is not None and one.method("__init__") is None:
            note = f"inherits all of {inherited.model_class}"
            return replace(inherited, model_class=one.node.name, member=one.member, note=note)
        model = self._model(one)
        above = inherited.methods if inherited and isinstance(inherited.methods, ModelCut) else None
        ways = self._files
        methods = _cut_or_why(lambda: cut_model(self._source, model, ways.methods, above))
        forward = self._by_forward(model, ways.forward) if ways.forward else ""
        return FoundCut(one.node.name, one.member, methods, forward)

    def _by_forward(self, model: ModelClass, way: Way) -> ModelCut | str:
        return _cut_or_why(lambda: cut_model(self._source, model, way))

    def _model(self, one: _Class) -> ModelClass:
        known = (model for model in self._files.known if model.class_name == one.node.name)
        model = next(known, ModelClass(one.member, one.node.name, since="this release"))
        return replace(model, member=one.member, parts=self._files.parts)


def _cut_or_why(cut: Callable[[], ModelCut]) -> ModelCut | str:
    try:
        return cut()
    except UsageError as error:
        return str(error)
