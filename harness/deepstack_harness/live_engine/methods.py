"""Methods of another source that are put into an engine's class, as text."""

import ast
import textwrap

from deepstack_harness.binding.cut_class import STORAGE
from deepstack_harness.binding.syntax import NoBuffer, class_named, members_of
from deepstack_harness.engines.known import engine_of
from deepstack_harness.errors import unknown_name
from deepstack_harness.sources.source import Source


def methods_text(source: Source, family: str) -> dict[str, str]:
    """Return the get, set, clear and resize of a family's class in a source, each as the text of a function.

    Raises `UsageError` for a family whose class has no such methods, or a source without them.
    """
    models = engine_of(source).by_methods
    if family not in models:
        raise unknown_name("family whose methods can be put in", family, models)
    model = models[family]
    file = source.read(model.member)
    members = members_of(class_named(file, model.class_name), file)
    found = {
        name: textwrap.dedent(" " * node.col_offset + (ast.get_source_segment(file.text, node) or ""))
        for name, nodes in members.items()
        for node in nodes
        if STORAGE in name and isinstance(node, ast.FunctionDef)
    }
    if not found:
        raise NoBuffer(f"{file.filename}: {model.class_name} has no method with {STORAGE} in its name")
    return found
