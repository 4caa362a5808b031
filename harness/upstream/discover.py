"""Every deepstack class of a source, found by what it does.

A class is one when its `forward`, its own or an inherited one, hands
`deepstack_input_embeds` to the language model without being given it: then it
keeps the payload itself, from one call to the next.
"""

import ast
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from harness.errors import UsageError
from harness.upstream.bind import MODELS, BoundClass, Model, bind_class
from harness.upstream.cut import STORAGE
from harness.upstream.module_names import parse
from harness.upstream.source import Source, SourceFile

FOLDER = "vllm/model_executor/models"
_WORD = "deepstack"


@dataclass(frozen=True)
class Found:
    """One class: its buffer, or why it cannot be driven; `note` says what it shares with another class."""

    model_class: str
    member: str
    buffer: BoundClass | None = None
    refusal: str = ""
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
    classes = {found.node.name: found for found in _classes(source)}
    keepers = [found for found in classes.values() if _keeps_payload(found, classes)]
    bound: dict[str, Found] = {}
    for one in keepers:
        _bind(source, one, classes, bound)
    return [bound[one.node.name] for one in keepers]


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
        return Found(one.node.name, one.member, inherited.buffer, inherited.refusal, note)
    try:
        buffer = bind_class(source, one.file, _model(one), inherited.buffer if inherited else None)
    except UsageError as error:
        return Found(one.node.name, one.member, refusal=str(error))
    return Found(one.node.name, one.member, buffer)


def _model(one: _Class) -> Model:
    """As the table has it, for what is known of a class besides its name."""
    known = (model for model in MODELS.values() if model.class_name == one.node.name)
    return next(known, Model(one.member, one.node.name, since="this release"))
