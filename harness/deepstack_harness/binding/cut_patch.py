"""Cut the patch that a plugin applies to a class of another package; none of it runs.

A plugin either has a function that is called with a model and sets attributes of that object, or statements
at the top level of a file that assign to a class.
"""

import ast
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from deepstack_harness.binding.cut_class import STORAGE
from deepstack_harness.binding.cut_helpers import HelperCut, Helpers, StandIn, cut_function, importable
from deepstack_harness.binding.extract import extract
from deepstack_harness.binding.syntax import function_named, parse
from deepstack_harness.errors import UsageError
from deepstack_harness.sources.source import Source, SourceFile

ASSIGNED = "deepstack_patch"
"""The name of the function that is made of statements at the top level."""


@dataclass(frozen=True)
class Patch:
    """The patch of one class: its file, and the function that is called with a model.

    Without `function` it is every statement of the file that assigns to a deepstack method of the class.
    `forward` names the plugin's function that runs a step in the place of the class's own forward; it comes
    with `function`.  With `audio` a step may have audio and no visual token.
    """

    member: str
    function: str = ""
    forward: str = ""
    audio: bool = False


@dataclass(frozen=True)
class PatchCut:
    """A compiled patch.

    `at` is its place, `MEMBER:FIRST-LAST`, and `step_at` that of the plugin's own forward, if there is one.
    """

    of: Patch
    apply: HelperCut
    at: str
    step_at: str = ""


def cut_patch(
    source: Source, patch: Patch, model_class: str, *, stand_ins: Collection[str], given: Collection[str]
) -> PatchCut:
    """Cut the patch of a class; `given` are functions of the plugin that objects of ours replace.

    Raises `UsageError` with file and line for what has moved or cannot be supplied, and `MachineError` where
    a file cannot be fetched.
    """
    file = source.read(patch.member)
    if not patch.function:
        root = _assignments(file, model_class)
        extracted = extract(file, root, stand_ins=importable(file, patch.member) | set(stand_ins), given=())
        supplies = Helpers(source, stand_ins).supply(patch.member, file, extracted.replaced)
        return PatchCut(patch, HelperCut(ASSIGNED, file, extracted, supplies), _place(patch, root.body))
    apply = cut_function(source, patch.member, patch.function, stand_ins=stand_ins, given=given)
    known = {name: StandIn(name) for name in given}
    whole = HelperCut(apply.name, apply.file, apply.extract, {**apply.supplies, **known})
    at, step_at = (_function_at(file, patch, name) for name in (patch.function, patch.forward))
    return PatchCut(patch, whole, at, step_at)


def _assignments(file: SourceFile, model_class: str) -> ast.FunctionDef:
    """Return a function of the class, whose body is what the file assigns to its deepstack methods."""
    found = [node for node in parse(file).body if _assigns(node, model_class)]
    if not found:
        raise UsageError(
            f"{file.filename} assigns to no method of {model_class} that has {STORAGE} in its name"
        )
    made = ast.parse(f"def {ASSIGNED}({model_class}): pass").body[0]
    assert isinstance(made, ast.FunctionDef)
    for node in ast.walk(made):
        ast.copy_location(node, found[0])
    made.body = found
    return made


def _assigns(node: ast.stmt, model_class: str) -> bool:
    match node:
        case ast.Assign(targets=[ast.Attribute(value=ast.Name(id=name), attr=attribute)]):
            return name == model_class and STORAGE in attribute
    return False


def _function_at(file: SourceFile, patch: Patch, name: str) -> str:
    """Return the place of a function of the file."""
    node = function_named(file, name)
    if node is None:
        raise UsageError(f"{file.filename} defines no function {name}")
    return _place(patch, [node])


def _place(patch: Patch, nodes: Sequence[ast.stmt]) -> str:
    return f"{patch.member}:{nodes[0].lineno}-{nodes[-1].end_lineno}"
