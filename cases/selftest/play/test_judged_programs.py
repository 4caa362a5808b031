"""Programs written from the contract: each has its verdict, and a broken promise names its cause."""

import pytest

from cases.selftest.play.judged_programs import PROGRAMS, Judged
from deepstack_harness import UsageError, compile_steps


def _name(judged: Judged) -> str:
    program = judged.program
    return getattr(program, "__name__", "") or str(getattr(program, "func", program)).split()[1]


def _check(wanted: Judged) -> None:
    region, steps, *asked = wanted.program()
    keywords = asked[0] if asked else {}
    if wanted.verdict == "refused":
        with pytest.raises(UsageError) as refused:
            compile_steps(region, steps, arms=wanted.arms, **keywords)
        assert not [word for word in wanted.words if word not in str(refused.value)], refused.value
        return
    judged = compile_steps(region, steps, arms=wanted.arms, **keywords)
    shown = str(judged)
    assert not judged.unjudged, shown
    assert {str(finding.promise) for finding in judged.broken} == set(wanted.promise.split()), shown
    assert judged.good == (wanted.verdict == "kept"), shown
    assert any(finding.chances for finding in judged.rows) == (wanted.verdict != "untested"), shown
    assert not [word for word in wanted.words if word not in shown], shown
    assert not wanted.never or wanted.never not in shown, shown


@pytest.mark.parametrize(
    "wanted",
    [
        pytest.param(wanted, id=_name(wanted), marks=[pytest.mark.slow] if wanted.slow else [])
        for wanted in PROGRAMS
    ],
)
def test_a_program_has_its_verdict_and_its_cause(wanted: Judged) -> None:
    _check(wanted)
