"""What the fuzzer left beside a run."""

from deepstack_harness.reporting.figures.base import Figure, Table
from deepstack_harness.reporting.run_data import RunData


def figure(run: RunData) -> Figure:
    """The files of its findings, by name."""
    key, title = "fuzz", "Findings of the fuzzer"
    if run.fuzz is None:
        return Figure(key, title, "", absent="no folder fuzz beside this run; a nightly run writes it")
    if not run.fuzz:
        return Figure(key, title, "", absent="the fuzzer found nothing")
    says = "Files in the folder fuzz of this run."
    return Figure(key, title, says, Table(("file",), [(name,) for name in run.fuzz]))
