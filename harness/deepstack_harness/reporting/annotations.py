"""A run as GitHub annotations: lines of a job's log that the runner turns into notes at the commit."""

from collections.abc import Iterator

from deepstack_harness.clean_text import one_line, shortened
from deepstack_harness.contract.verdicts import Verdict
from deepstack_harness.reporting.findings import ReportedFinding, case_findings, detail_of, figure_of
from deepstack_harness.reporting.rerun import again
from deepstack_harness.reporting.run_data import RunData
from deepstack_harness.reporting.summary import summarise

MOST = 9
"""GitHub shows ten errors and ten warnings of a step; the last one says how many there are."""

_LEVELS = {
    Verdict.FAIL: "error",
    Verdict.ERROR: "error",
    Verdict.IMPROVED: "warning",
    Verdict.MISSING: "warning",
}


def annotations(run: RunData) -> Iterator[str]:
    """Write errors for broken and unjudged rules, warnings for other unexpected ones, and one summary."""
    summary = summarise(run)
    findings = [finding for finding in case_findings(run) if finding.unexpected]
    for level in ("error", "warning"):
        chosen = [finding for finding in findings if _LEVELS[finding.verdict] == level]
        for finding in chosen[:MOST]:
            yield _line(level, f"{finding.verdict} {finding.title}", _message(finding))
        if len(chosen) > MOST:
            yield _line(level, "and more", f"{len(chosen) - MOST} more cases; the report has them all")
    for note in run.notes[:MOST]:
        yield _line("warning", "note", note)
    level = "notice" if summary.finished and not summary.stages else "error"
    yield _line(level, "deepstack harness", f"{summary.headline}; {summary.progress}: {summary.expected}")


def _message(finding: ReportedFinding) -> str:
    lines = [f"trace: {one_line(trace)}" for trace in finding.traces]
    for row in finding.rows:
        said = " ".join(filter(None, (figure_of(row), one_line(detail_of(row)))))
        lines.append(f"{row.rule} {row.rule.word} {row.verdict}: {shortened(said, 400)}")
    if finding.case and finding.case.diagnosis:
        lines.append(f"diagnosis: {shortened(one_line(finding.case.diagnosis), 600)}")
    if finding.case and (command := again(finding.case)):
        lines.append(f"rerun: {one_line(command)}")
    return "\n".join(lines)


def _line(level: str, title: str, message: str) -> str:
    """Return a workflow command, escaped as GitHub's own toolkit does."""
    return f"::{level} title={_property(one_line(title))}::{_data(message)}"


def _data(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")
