"""Files of findings once a hunt is over: lines, a pytest file, a program of each; and their reach."""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

from deepstack_harness.auditing.classes import play_orders, reach_in
from deepstack_harness.auditing.source_worker import SourceWorker
from deepstack_harness.catalogue.reach import UNKNOWN
from deepstack_harness.contract.trace import Trace
from deepstack_harness.engines.known import engine_of, open_source
from deepstack_harness.errors import UsageError
from deepstack_harness.fuzzing.finding import Finding
from deepstack_harness.fuzzing.player import FindingKind
from deepstack_harness.fuzzing.request import FuzzRequest
from deepstack_harness.scripts.findings import Whose, render_finding

_CASES = '''"""Found by fuzzing {name}: red while the faults are there.

It needs pytest and deepstack-harness, and runs wherever the buffer can be found.
"""

import pytest

from deepstack_harness import broken_rules

BUFFER = {buffer}
FOUND = [
{found}
]


@pytest.mark.parametrize(("rule", "trace"), FOUND)
def test_the_rule_is_kept(rule: str, trace: str) -> None:
    assert rule not in broken_rules(trace, **BUFFER)
'''


def with_reach(findings: Iterable[Finding], asked: FuzzRequest) -> list[Finding]:
    """Return findings on a class of a source with how the engine comes to them; others as they are."""
    findings = list(findings)
    classes = {one.model_class for one in findings if one.rule and one.model_class}
    if not asked.source or not classes:
        return findings
    with SourceWorker(asked.source) as worker:
        found = {one.model_class: one for one in worker.classes() if one.model_class in classes}
        played = {name: play_orders(one, worker) for name, one in found.items()}

        def reach(finding: Finding) -> str | None:
            name = finding.model_class or ""
            if finding.rule is None:
                return None
            return reach_in(finding.rule, found[name], worker, played[name])[0] if name in found else UNKNOWN

        return [replace(one, reach=reach(one)) for one in findings]


def write_found(folder: Path, findings: Sequence[Finding], asked: FuzzRequest) -> list[Path]:
    """Write the lines, the pytest file, and a program for each finding that one can be written for.

    Return the files, in the order of the findings.
    """
    lines = folder / "findings.txt"
    lines.write_text("".join(f"{one.line}\n" for one in findings), encoding="utf-8")
    written = [lines]
    rules = [one for one in findings if one.kind is FindingKind.RULE]
    if rules:
        written.append(folder / "test_found.py")
        written[-1].write_text(cases_of(rules, asked), encoding="utf-8")
    counts: dict[str, int] = {}
    for one in rules:
        counts[one.name] = counts.get(one.name, 0) + 1
        text = script_of(one, asked)
        if text is not None:
            written.append(folder / f"{one.name}-{counts[one.name]}.py")
            written[-1].write_text(text, encoding="utf-8")
    return written


def cases_of(findings: Iterable[Finding], asked: FuzzRequest) -> str:
    """Return a pytest file that is red while one of the rules is broken."""
    found = "\n".join(f'    ("{one.name}", "{one.trace}"),' for one in findings)
    usual = FuzzRequest()
    given = {name: value for name, value in vars(asked).items() if value != getattr(usual, name)}
    return _CASES.format(name=asked.name, buffer=given, found=found)


def script_of(finding: Finding, asked: FuzzRequest) -> str | None:
    """Return a program that shows it with torch alone; None where a decoder takes part."""
    if finding.rule is None or asked.arm != "eager" or "@" in asked.name:
        return None
    try:
        return render_finding(
            Trace.parse(finding.trace), finding.rule, finding.detail, _whose(finding, asked)
        )
    except UsageError:
        return None


def _whose(finding: Finding, asked: FuzzRequest) -> Whose:
    if finding.model_class is None or asked.source is None:
        return Whose(asked.name)
    models = engine_of(open_source(asked.source)).by_methods
    return Whose(finding.model_class, models[asked.family.partition(":")[0]].member)
