"""A run as JUnit XML: one suite for each group, one test case for each judgement."""

from collections import defaultdict

from junitparser import Error, Failure, JUnitXml, Skipped, TestCase, TestSuite

from deepstack_harness.contract.verdicts import Row, Verdict
from deepstack_harness.document.shown import shown
from deepstack_harness.runs.records import CaseRecord
from deepstack_harness.runs.report.run_data import RunData
from deepstack_harness.runs.report.tables import title_of


def render_junit(run: RunData) -> str:
    """Return the XML text.  A case's seconds are at its first judgement, so that sums are right."""
    groups: dict[str, list[TestCase]] = defaultdict(list)
    timed: set[str] = set()
    for row in run.rows:
        case = run.cases[row.case]
        seconds = 0.0 if case.case in timed else case.seconds
        timed.add(case.case)
        groups[case.group or " ".join(row.place)].append(_test(row, case, seconds))
    xml = JUnitXml("deepstack harness")
    for name, tests in groups.items():
        suite = TestSuite(name)
        suite.add_testcases(tests)
        xml.add_testsuite(suite)
    xml.update_statistics()  # type: ignore[no-untyped-call]
    text: bytes = xml.tostring()  # type: ignore[no-untyped-call]
    return f'<?xml version="1.0" encoding="utf-8"?>\n{text.decode()}\n'


def _test(row: Row, case: CaseRecord, seconds: float) -> TestCase:
    name = f"{shown(row).name}: {title_of(case)}: {case.trace}"
    test = TestCase(name, classname=f"{case.family}.{case.arm}", time=seconds)
    if outcome := _outcome(row, case):
        test.result = [outcome]
    return test


def _outcome(row: Row, case: CaseRecord) -> Failure | Error | Skipped | None:
    """Return the element with what is wrong; None for a rule that passes."""
    message = "; ".join(filter(None, (shown(row).measured, row.detail)))
    match row.verdict:
        case Verdict.PASS:
            return None
        case Verdict.SKIP:
            return Skipped(message)
        case Verdict.XFAIL:
            return Skipped(f"broken as expected: {message}")
    kind = Error if row.verdict is Verdict.ERROR else Failure
    outcome = kind(message, row.verdict)
    outcome.text = "\n".join(filter(None, (f"trace: {case.trace}", case.diagnosis, message, case.output)))
    return outcome
