"""`audit --construct`: R0 of classes that their own `__init__` made, and of the same classes furnished."""

from __future__ import annotations

from collections.abc import Sequence

from deepstack_harness.audit.constructed import (
    constructed_classes,
    constructed_row,
    constructing_worker,
    disagreement,
    furnished_rows,
)
from deepstack_harness.audit.source_worker import SourceWorker
from deepstack_harness.cli.output import progress
from deepstack_harness.contract.verdicts import Row, Verdict
from deepstack_harness.document.blocks import Column, Document, Line, TextTable, outcome, table_line
from deepstack_harness.errors import ExitCode
from deepstack_harness.text import plural

_COLUMNS = (Column("class", 46), Column("constructed", 14), Column("furnished", 10))
_WORDS = {
    Verdict.PASS: "kept", Verdict.FAIL: "BROKEN", Verdict.XFAIL: "known", Verdict.SKIP: "not judged",
    Verdict.ERROR: "ERROR", Verdict.IMPROVED: "improved",
}  # fmt: skip


def show_constructed(sources: Sequence[str], classes: Sequence[str]) -> Document[ExitCode]:
    """Print both opinions of each class that has a tiny configuration, and where they differ.

    The code is 1 where a constructed class breaks R0 in a way that is not known, was not judged, or differs
    from the furnished one.  Raises `UsageError` for an engine or a class without a configuration.
    """
    failed, judged, unjudged, differing = 0, 0, 0, list[str]()
    for text in sources:
        yield Line(f"{text}: R0 of classes made by their own __init__, with their own layers")
        yield TextTable(_COLUMNS)
        with (
            SourceWorker(text) as worker,
            constructing_worker() as constructing,
            progress("importing the package") as say,
        ):
            names = constructed_classes(worker.source, classes)
            say("calling the furnished classes")
            furnished = furnished_rows(worker, names)
            for name in names:
                say(f"making {name}")
                row, other = constructed_row(worker, constructing, name), furnished.get(name)
                yield row
                yield from _show(row, other)
                judged += row.verdict is not Verdict.SKIP
                unjudged += row.verdict is Verdict.SKIP
                failed += row.verdict in {Verdict.FAIL, Verdict.ERROR}
                differing += filter(None, [disagreement(row, other)])
    for sentence in differing:
        yield Line(f"they differ: {sentence}", "red")
    good = not (failed or unjudged or differing) and judged > 0
    yield outcome(
        f"{plural(judged, 'class')} judged, {unjudged} not judged, "
        f"{failed} broken in a way that is not known, "
        f"{plural(len(differing), 'disagreement')}",
        good=good,
    )
    return ExitCode.HOLDS if good else ExitCode.BROKEN


def _show(row: Row, furnished: Row | None) -> Document:
    other = "not driven" if furnished is None else _WORDS[furnished.verdict]
    style = "bold red" if row.verdict in {Verdict.FAIL, Verdict.ERROR} else ""
    yield table_line(_COLUMNS, (str(row.model_class), _WORDS[row.verdict], other), style)
    if row.verdict is not Verdict.PASS:
        yield Line(row.detail, lead="  ")
