"""Cut the functions by which an engine splits a payload over ranks.  Nothing runs here."""

import ast
from collections.abc import Iterable
from contextlib import suppress

from deepstack_harness.binding.argument_files import SINCE
from deepstack_harness.binding.cut_helpers import cut_function
from deepstack_harness.binding.cut_model import ModelClass, ModelCut, cut_model
from deepstack_harness.binding.discover import FoundCut, depth_limited
from deepstack_harness.binding.split_files import Parallel, SplitCut, SplitFiles
from deepstack_harness.binding.syntax import parse
from deepstack_harness.errors import UsageError
from deepstack_harness.sources.source import NoSuchMember, Source

_DEFINITION = ast.FunctionDef | ast.ClassDef


def find_split_cuts(source: Source, files: SplitFiles) -> list[FoundCut]:
    """Find and cut every splitter of a source, in the order of their files.

    Raises `UsageError` for a file that does not parse, `MachineError` when the source cannot be fetched.
    """
    with depth_limited(source):
        return [
            FoundCut(files.function, member, _cut_or_why(source, files, member), "")
            for member in _defining(source, files.folders, files.function)
        ]


def _defining(source: Source, folders: Iterable[str], name: str) -> list[str]:
    """Return the files right in some folders, as far as there are these, that define a function or class."""
    found: list[str] = []
    for folder in folders:
        with suppress(NoSuchMember):
            found += source.mentioning(folder, name)
    return [member for member in found if _defines(source, member, name)]


def _defines(source: Source, member: str, name: str) -> bool:
    return any(
        isinstance(node, _DEFINITION) and node.name == name for node in parse(source.read(member)).body
    )


def _cut_or_why(source: Source, files: SplitFiles, member: str) -> SplitCut | str:
    try:
        function = cut_function(source, member, files.function, stand_ins=frozenset(), given=files.given)
        return SplitCut(function, _parallel(source, files.parallel) if files.parallel else None)
    except UsageError as error:
        return str(error)


def _parallel(source: Source, part: Parallel) -> ModelCut:
    members = _defining(source, part.folders, part.class_name)
    if not members:
        raise UsageError(f"{source.label} has no class {part.class_name} in {' or '.join(part.folders)}")
    return cut_model(source, ModelClass(members[0], part.class_name, SINCE), part.way)
