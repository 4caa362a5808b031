"""Check a buffer as `check` does, in this process."""

from collections.abc import Sequence

from deepstack_harness.catalogue.plans import Where, plan_check
from deepstack_harness.contract.case import Regime, live_buffer
from deepstack_harness.contract.oracles.judge import judge_case
from deepstack_harness.contract.protocols import BufferFactory
from deepstack_harness.contract.rules import Rule
from deepstack_harness.contract.verdicts import Verdict
from deepstack_harness.play.play_case import play_case


def broken_in(
    make: BufferFactory,
    regime: Regime,
    traces: Sequence[str] | None = None,
    *,
    until_first: bool = False,
    until: Rule | None = None,
) -> dict[Rule, str]:
    """Return the rules that the traces of one regime see broken, with a trace and what was seen.

    With `until_first` the traces behind the first that breaks a rule are not played, with `until` those
    behind the first that breaks this rule.
    """
    buffer = live_buffer("checked")
    plan = [
        planned for planned in plan_check(Where("qwen3_vl"), buffer, traces) if planned.case.regime is regime
    ]
    found: dict[Rule, str] = {}
    for planned in plan:
        if (found and until_first) or until in found:
            break
        for said in judge_case(planned, play_case(planned.case, {buffer: make})).judgements:
            if said.verdict in {Verdict.FAIL, Verdict.ERROR}:
                found.setdefault(said.rule, f"{planned.case.trace}: {said.verdict} {said.detail}")
    return found
