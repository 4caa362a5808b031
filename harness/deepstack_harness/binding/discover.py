"""Every deepstack class of a source, found by what it does.

A class is one when its `forward`, its own or an inherited one, hands
`deepstack_input_embeds` to the language model without being given it: then it
keeps the payload itself, from one call to the next.
"""

import ast
import gc
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TypeVar

from deepstack_harness.binding.bind import BoundClass, bind_class
from deepstack_harness.binding.cut import STORAGE
from deepstack_harness.binding.cut_class import Model
from deepstack_harness.binding.drive import DRIVEN, DrivenClass, drive
from deepstack_harness.binding.module_names import parse
from deepstack_harness.errors import UsageError
from deepstack_harness.sources.source import Source, SourceFile

FOLDER = "vllm/model_executor/models"
_WORD = "deepstack"
T = TypeVar("T")


@dataclass(frozen=True)
class Found:
    """One class: its buffer, and itself in its own call order, each as far as it can be driven.

    `buffer` drives its get, set and clear methods, `driven` its `embed_input_ids`
    and `forward`; `refusals` say why one of them is None.  `note` says what the
    class shares with another one.
    """

    model_class: str
    member: str
    buffer: BoundClass | None = None
    driven: DrivenClass | None = None
    refusals: tuple[str, ...] = ()
    note: str = ""


@dataclass(frozen=True)
class _Class:
    """A class statement, and where it stands."""

    node: ast.ClassDef
    member: str
    file: SourceFile

    @property
    def bases(self) -> list[str]:
        return [base.id for base in self.node.bases if isinstance(base, ast.Name)]

    def method(self, name: str) -> ast.FunctionDef | None:
        methods = (node for node in self.node.body if isinstance(node, ast.FunctionDef) and node.name == name)
        return next(methods, None)


def find_classes(source: Source) -> list[Found]:
    """All of them, in the order of their files.

    Raises `UsageError` for a file that does not parse, `MachineError` when the
    source cannot be fetched.
    """
    with _collector_paused():
        return _find(source)


def _find(source: Source) -> list[Found]:
    classes = {found.node.name: found for found in _classes(source)}
    keepers = [found for found in classes.values() if _keeps_payload(found, classes)]
    bound: dict[str, Found] = {}
    for one in keepers:
        _bind(source, one, classes, bound)
    return [bound[one.node.name] for one in keepers]


@contextmanager
def _collector_paused() -> Iterator[None]:
    """Syntax trees are hundreds of thousands of objects that stay: collecting meanwhile doubles the time."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def _classes(source: Source) -> Iterator[_Class]:
    for member in source.mentioning(FOLDER, _WORD):
        file = source.read(member)
        for node in parse(file.text, file.filename).body:
            if isinstance(node, ast.ClassDef):
                yield _Class(node, member, file)


def _keeps_payload(one: _Class, classes: Mapping[str, _Class]) -> bool:
    forward = _inherited_method(one, "forward", classes)
    if forward is None:
        return False
    given = {argument.arg for argument in (*forward.args.args, *forward.args.kwonlyargs)}
    return STORAGE not in given and any(
        isinstance(node, ast.keyword) and node.arg == STORAGE for node in ast.walk(forward)
    )


def _inherited_method(one: _Class, name: str, classes: Mapping[str, _Class]) -> ast.FunctionDef | None:
    own = one.method(name)
    if own is not None:
        return own
    bases = (classes[base] for base in one.bases if base in classes)
    return next((found for base in bases if (found := _inherited_method(base, name, classes))), None)


def _bind(source: Source, one: _Class, classes: Mapping[str, _Class], bound: dict[str, Found]) -> Found:
    name = one.node.name
    if name not in bound:
        bound[name] = _bound(source, one, classes, bound)
    return bound[name]


def _bound(source: Source, one: _Class, classes: Mapping[str, _Class], bound: dict[str, Found]) -> Found:
    keepers = (classes[base] for base in one.bases if base in classes)
    base = next((found for found in keepers if _keeps_payload(found, classes)), None)
    inherited = _bind(source, base, classes, bound) if base else None
    if inherited is not None and one.method("__init__") is None:
        note = f"inherits all of {inherited.model_class}"
        return replace(inherited, model_class=one.node.name, member=one.member, note=note)
    model, refusals = _model(one), list[str]()
    buffer = _tried(
        lambda: bind_class(source, one.file, model, inherited.buffer if inherited else None), refusals
    )
    driven = _tried(lambda: drive(source, model), refusals)
    return Found(one.node.name, one.member, buffer, driven, tuple(refusals))


def _tried(work: Callable[[], T], refusals: list[str]) -> T | None:
    try:
        return work()
    except UsageError as error:
        refusals.append(str(error))
        return None


def _model(one: _Class) -> Model:
    """As the table has it, for what is known of a class besides its name."""
    known = (model for model in DRIVEN.values() if model.class_name == one.node.name)
    return next(known, Model(one.member, one.node.name, since="this release"))
