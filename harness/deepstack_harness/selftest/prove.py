"""Prove one trial: hunt on its buffer, play the traces of `check` on it, and say what was found."""

import time

from typing_extensions import override

from deepstack_harness.catalogue.matrix import Where, plan_check
from deepstack_harness.contract.arm_spec import ArmSpec
from deepstack_harness.contract.buffer_ref import BufferRef, registered
from deepstack_harness.contract.case import Regime
from deepstack_harness.contract.rules import Rule
from deepstack_harness.contract.trace import Trace
from deepstack_harness.contract.verdicts import Verdict
from deepstack_harness.fuzzing.finding import Finding
from deepstack_harness.fuzzing.hunt import hunt
from deepstack_harness.fuzzing.player import Player
from deepstack_harness.fuzzing.target import Target
from deepstack_harness.fuzzing.watch import Progress, Watch
from deepstack_harness.oracles.judged_case import judge_case
from deepstack_harness.selftest.trials import Proof, Trial


def prove_one(trial: Trial, player: Player) -> Proof:
    """Play the traces of `check` up to the first that shows the fault, and hunt until a few examples after.

    R0 is left out: other faults break it too.
    """
    watch, start = _StopsAfterFinding(trial.extra), time.perf_counter()
    buffer = player.bind(registered(trial.subject), None, Target.family)
    target = Target(buffer, ArmSpec.parse(trial.arm))
    regime = Regime.CAPTURED if target.arm.captured else Regime.LIVE
    checked = _check(buffer, regime, player, trial.rule)
    done = hunt(target, player, examples=trial.examples, seed=trial.seed, watch=watch, per_name=1)
    found = [finding for finding in done.findings if finding.rule is not Rule.R0]
    others = [finding for finding in found if finding.name != trial.rule]
    shown = min(others or found, key=lambda finding: len(finding.trace), default=None)
    return Proof(
        trial,
        found=tuple(sorted({finding.name for finding in found})),
        examples=found[0].examples if found else done.progress.examples,
        seconds=time.perf_counter() - start,
        trace=shown.trace if shown else "",
        detail=shown.detail if shown else "",
        checked=checked[0],
        check_found=checked[1],
    )


def _check(
    buffer: BufferRef, regime: Regime, player: Player, rule: str | None
) -> tuple[int, tuple[str, ...]]:
    """Play the traces of `check` of one regime up to the first that breaks `rule`; return how many, and it.

    For a right buffer (None) any rule counts.  Other rules of a mutant do not: in `set 16; get 20` a row that
    the set lost is read above the capacity first, which is R4.
    """
    played = 0
    for planned in plan_check(Where(Target.family), buffer):
        if planned.case.regime is not regime:
            continue
        played += 1
        said = judge_case(planned, player.check(planned.case)).judgements
        broken = {one.rule for one in said if one.verdict in {Verdict.FAIL, Verdict.ERROR}} - {Rule.R0}
        counted = broken & {Rule(rule)} if rule else broken
        if counted:
            return played, tuple(sorted(map(str, counted)))
    return played, ()


class _StopsAfterFinding(Watch):
    """Watch that ends a hunt `extra` examples after its first finding, in which another rule may be found."""

    def __init__(self, extra: int) -> None:
        self._extra = extra
        self._played = 0
        self._last: int | None = None

    @override
    def example(self, progress: Progress, trace: Trace) -> None:
        self._played = progress.examples

    @override
    def found(self, finding: Finding) -> None:
        if self._last is None and finding.rule is not Rule.R0:
            self._last = finding.examples + self._extra

    @override
    def enough(self) -> bool:
        return self._last is not None and self._played >= self._last
