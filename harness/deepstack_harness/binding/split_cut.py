"""Cut the functions by which an engine splits a payload over ranks.  Nothing runs here."""

from deepstack_harness.binding.cut_helpers import cut_function
from deepstack_harness.binding.cut_model import cut_model
from deepstack_harness.binding.discover import FoundCut, depth_limited
from deepstack_harness.binding.split_files import SplitCut, SplitFiles
from deepstack_harness.binding.syntax import function_named
from deepstack_harness.errors import UsageError
from deepstack_harness.sources.source import NoSuchMember, Source


def find_split_cuts(source: Source, files: SplitFiles) -> list[FoundCut]:
    """Find and cut every splitter of a source, in the order of their files.

    Raises `UsageError` for a file that does not parse, `MachineError` when the source cannot be fetched.
    """
    with depth_limited(source):
        return [
            FoundCut(files.function, member, _cut_or_why(source, files, member), "")
            for member in _members(source, files)
        ]


def _members(source: Source, files: SplitFiles) -> list[str]:
    """Return the files that define the function; none where this source lacks their folder."""
    try:
        members = source.mentioning(files.folder, files.function)
    except NoSuchMember:
        return []
    return [one for one in members if function_named(source.read(one), files.function) is not None]


def _cut_or_why(source: Source, files: SplitFiles, member: str) -> SplitCut | str:
    try:
        function = cut_function(source, member, files.function, stand_ins=frozenset(), given=files.given)
        part = files.parallel
        return SplitCut(function, cut_model(source, part.model, part.way) if part else None)
    except UsageError as error:
        return str(error)
