"""Systems beside the buffer in a vLLM source: the file of `PlaceholderRange`, and dual-stream helpers.

Helpers are cut out and compiled unchanged, under their own file name and lines, with vLLM neither
imported nor installed.  No torch is imported here.
"""

import ast
from collections.abc import Collection
from copy import deepcopy
from dataclasses import dataclass
from types import CodeType
from typing import Any

from deepstack_harness.engines.cut_model import define_name, show_in_tracebacks
from deepstack_harness.engines.extract import extract
from deepstack_harness.engines.syntax import parse
from deepstack_harness.errors import UsageError
from deepstack_harness.sources.source import Source, SourceFile, read_since

RANGES_MEMBER, RANGES_CLASS, RANGES_SINCE = "vllm/multimodal/inputs.py", "PlaceholderRange", "0.16.0"


def range_file(source: Source) -> SourceFile:
    """Read the file of the class; raise `UsageError` where a source has none."""
    return read_since(source, RANGES_MEMBER, RANGES_SINCE)


HELPERS_MEMBER, HELPERS_SINCE = "vllm/utils/multi_stream_utils.py", "0.19.0"
HELPERS = ("maybe_execute_in_parallel", "execute_in_parallel")
"""For one other stream, and, from 0.20.2 on, for any number of them."""


@dataclass(frozen=True)
class HelperCode:
    """A compiled helper of one source; `line` is where it begins in `filename`.

    `parameters` are those of the function, `lifted` the names that it imports from vLLM when it is called.
    """

    label: str
    name: str
    filename: str
    line: int
    code: CodeType
    parameters: tuple[str, ...]
    lifted: frozenset[str]

    def run_with(self, **names: object) -> Any:  # noqa: ANN401  # a function that only its caller knows the type of
        """Define the function where `names` are known: its `torch`, and stand-ins for what it imports.

        Raises `UsageError` for a name of `lifted` that is not among them.
        """
        if missing := sorted(self.lifted - names.keys()):
            raise UsageError(f"{self.filename}:{self.line}: {self.name} needs vLLM's {missing[0]}")
        return define_name(self.code, self.name, **names)


def helper_file(source: Source) -> SourceFile:
    """Read the file of the helpers; raise `UsageError` where a source has none."""
    return read_since(source, HELPERS_MEMBER, HELPERS_SINCE)


def cut_helpers(source: Source, stand_ins: Collection[str]) -> dict[str, HelperCode]:
    """Cut those of `HELPERS` that `source` has, by name; `stand_ins` may be imported inside them.

    Raises `UsageError` when there is none, or one that cannot run without vLLM;
    `MachineError` when the file cannot be fetched.
    """
    file = helper_file(source)
    roots = [node for node in parse(file).body if isinstance(node, ast.FunctionDef) and node.name in HELPERS]
    if not roots:
        raise UsageError(
            f"{file.filename} has none of {', '.join(HELPERS)}; vLLM has them since {HELPERS_SINCE}"
        )
    show_in_tracebacks(file)
    return {root.name: _cut(source, file, root, stand_ins) for root in roots}


def _cut(source: Source, file: SourceFile, root: ast.FunctionDef, stand_ins: Collection[str]) -> HelperCode:
    lifter = _Lifter(stand_ins)
    lifted = lifter.visit(deepcopy(root))
    provided = {"torch", *lifter.lifted}
    code = extract(file, lifted, stand_ins=(), provided=provided).code
    parameters = tuple(each.arg for each in (*root.args.args, *root.args.kwonlyargs))
    return HelperCode(
        source.label, root.name, file.filename, root.lineno, code, parameters, frozenset(lifter.lifted)
    )


class _Lifter(ast.NodeTransformer):
    """Transformer of an import of vLLM inside a function into names that are given."""

    def __init__(self, stand_ins: Collection[str]) -> None:
        self._stand_ins = stand_ins
        self.lifted: set[str] = set()

    def visit_ImportFrom(self, node: ast.ImportFrom) -> ast.stmt:
        """Keep an import of something else, and refuse later one that nothing stands in for."""
        names = {alias.name for alias in node.names}
        renamed = any(alias.asname for alias in node.names)
        if renamed or not (node.module or "").startswith("vllm.") or not names <= set(self._stand_ins):
            return node
        self.lifted |= names
        return ast.copy_location(ast.Pass(), node)
