"""What `audit` shows beside the deepstack classes: placeholder ranges, dual-stream helpers."""

from collections.abc import Sequence

from deepstack_harness.auditing.source_systems import Beside
from deepstack_harness.reporting.terminal.output import Output
from deepstack_harness.reporting.terminal.system_table import show_judged


def show_beside(output: Output, found: Sequence[Beside]) -> None:
    """A line for each subject of each source, and a sentence where a source has none."""
    output.line("beside the buffer", "bold")
    width = max((len(one.subject) for each in found for one in each.judged), default=0)
    for each in found:
        output.line(each.label)
        for one in each.judged:
            show_judged(output, one, width, indent=2)
        for sentence in each.refusals:
            output.line(f"  not judged: {sentence}")
    output.line()
