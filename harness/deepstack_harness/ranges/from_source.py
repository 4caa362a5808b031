"""`PlaceholderRange`, cut out of a vLLM source and run unchanged.

Like everything in `deepstack_harness.binding`: under their own file name and lines, with
vLLM neither imported nor installed.
"""

import ast
from dataclasses import dataclass

import torch

from deepstack_harness.binding.define import define_name, show_in_tracebacks
from deepstack_harness.binding.extract import extract
from deepstack_harness.binding.syntax import class_named
from deepstack_harness.errors import UsageError
from deepstack_harness.ranges.placeholder_range import MakeRange
from deepstack_harness.ranges.range_file import RANGES_CLASS, RANGES_SINCE, range_file
from deepstack_harness.sources.source import Source

_ASKED = ("get_num_embeds", "get_embeds_indices_in_range")


@dataclass(frozen=True)
class BoundRange:
    """The class `PlaceholderRange` of one source; `line` is where it begins in `filename`."""

    label: str
    filename: str
    line: int
    make: MakeRange


def bind_range(source: Source) -> BoundRange:
    """Cut `PlaceholderRange` out of `source`.

    Raises `UsageError` when this vLLM has no such class, or one that cannot be asked
    or run without vLLM; `MachineError` when it cannot be fetched.
    """
    file = range_file(source)
    root = class_named(file, RANGES_CLASS)
    _refuse_without_methods(root, file.filename)
    # The file has torch from a lazy loader of vLLM's own.
    code = extract(file, root, stand_ins=(), given={"torch"}).code
    show_in_tracebacks(file)
    return BoundRange(source.label, file.filename, root.lineno, define_name(code, RANGES_CLASS, torch=torch))


def _refuse_without_methods(root: ast.ClassDef, filename: str) -> None:
    methods = {
        node.name for node in root.body if isinstance(node, ast.FunctionDef) and not _is_property(node)
    }
    if lacking := [name for name in _ASKED if name not in methods]:
        raise UsageError(
            f"{filename}:{root.lineno}: {RANGES_CLASS} has no method {', '.join(lacking)}, "
            f"as vLLM has since {RANGES_SINCE}"
        )


def _is_property(node: ast.FunctionDef) -> bool:
    # Up to 0.15 get_num_embeds is a cached one, which nobody can call.
    return any("property" in ast.unparse(decorator) for decorator in node.decorator_list)
