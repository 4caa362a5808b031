"""The table of `audit` for placeholder ranges and dual-stream helpers of a source."""

from collections.abc import Sequence

from deepstack_harness.auditing.source_systems import SourceSystems
from deepstack_harness.reporting.terminal.output import Output
from deepstack_harness.reporting.terminal.system_table import show_judged


def show_beside(output: Output, found: Sequence[SourceSystems]) -> None:
    """Print a line for each subject of each source, and a sentence where a source lacks one.

    Sources of engines that have none of these systems are left out.
    """
    found = [each for each in found if each.judged or each.refusals]
    if not found:
        return
    output.line("beside the buffer", "bold")
    width = max((len(one.subject) for each in found for one in each.judged), default=0)
    for each in found:
        output.line(each.label)
        for one in each.judged:
            show_judged(output, one, width, indent=2)
        for sentence in each.refusals:
            output.line(f"  not judged: {sentence}")
    output.line()
