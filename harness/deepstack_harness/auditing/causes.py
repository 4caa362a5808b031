"""Causes: which broken rules of a class show one fault, so that it is told once.

One rule is an effect of another if it was never seen broken alone: in each trace that breaks it, the other
one broke at an earlier step, or at the same.  A rule that graphs show broken is an effect of the same rule
in live use if the trace breaks it without graphs too.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace

from deepstack_harness.contract.arm_spec import EAGER
from deepstack_harness.contract.case import PlannedCase, Regime
from deepstack_harness.contract.rules import Rule
from deepstack_harness.contract.trace import Op, Step
from deepstack_harness.contract.verdicts import Verdict
from deepstack_harness.oracles.judged_case import JudgedCase

Place = tuple[Regime, Rule]
"""A rule in one regime."""
Effects = Mapping[Place, Place]
"""Broken rules that are effects -> the broken rule that is told instead."""
Replay = Callable[[PlannedCase], JudgedCase | None]
"""Plays and judges one more case; None where nothing can be played any more."""


def effects_in(cases: Iterable[JudgedCase]) -> dict[Place, Place]:
    """Return the broken rules that were never seen broken alone, each with the rule that explains it."""
    first: dict[Place, dict[str, int]] = {}
    for judged in cases:
        for said in judged.judgements:
            if said.verdict is Verdict.FAIL and said.steps:
                first.setdefault((judged.case.regime, said.rule), {})[judged.case.id] = said.steps[0]
    # Rows that a graph reads wrongly follow from storage that moved.
    order = [Rule.R6, *Rule]
    # A fault that shows in more traces explains one that shows in fewer, never the other way round.
    ranked = sorted(first, key=lambda place: (-len(first[place]), order.index(place[1])))
    found: dict[Place, Place] = {}
    for number, effect in enumerate(ranked):
        causes = (one for one in ranked[:number] if one not in found and one[0] is effect[0])
        cause = next((one for one in causes if _explains(first[one], first[effect])), None)
        if cause is not None:
            found[effect] = cause
    return found


def same_without_graphs(
    cases: Sequence[JudgedCase], broken: Mapping[Rule, str], play: Replay
) -> dict[Place, Place]:
    """Return rules broken under graphs (rule -> shortest trace) that the trace breaks without graphs too."""
    found: dict[Place, Place] = {}
    if any(judged.observation.ended for judged in cases):
        return found  # a class that ends its process, or hangs, is not called again
    live = {rule for judged in cases if judged.case.regime is Regime.LIVE for rule in judged.broken}
    for judged in cases:
        mine = {rule for rule, trace in broken.items() if trace == str(judged.case.trace)} & live
        again = play(_without_graphs(judged.planned)) if mine else None
        for rule in mine & (again.broken if again else frozenset()):
            found[Regime.CAPTURED, rule] = (Regime.LIVE, rule)
    return found


def _explains(cause: Mapping[str, int], effect: Mapping[str, int]) -> bool:
    return all(case in cause and cause[case] <= step for case, step in effect.items())


def _without_graphs(planned: PlannedCase) -> PlannedCase:
    """Return a case whose replays are live steps, and that captures nothing."""
    trace = planned.case.trace
    steps = (Step(Op.FORWARD, step.tokens) if step.op is Op.REPLAY else step for step in trace)
    live = tuple(step for step in steps if step.op is not Op.CAPTURE)
    buffer = replace(planned.case.buffer, replayed=False)
    case = replace(planned.case, buffer=buffer, trace=replace(trace, steps=live), arm=EAGER)
    return replace(planned, case=case)
