"""Prove one trial: hunt on its buffer, and say what was found."""

import time

from typing_extensions import override

from deepstack_harness.contract.arm_spec import ArmSpec
from deepstack_harness.contract.buffer_ref import registered
from deepstack_harness.contract.rules import Rule
from deepstack_harness.contract.trace import Trace
from deepstack_harness.fuzzing.finding import Finding
from deepstack_harness.fuzzing.hunt import hunt
from deepstack_harness.fuzzing.player import Player
from deepstack_harness.fuzzing.target import Target
from deepstack_harness.fuzzing.watch import Progress, Watch
from deepstack_harness.selftest.trials import Proof, Trial


def prove_one(trial: Trial, player: Player) -> Proof:
    """Hunt until a few examples after the first finding.  R0 is left out: other faults break it too."""
    watch, start = _StopsAfterFinding(trial.extra), time.perf_counter()
    buffer = player.bind(registered(trial.subject), None, Target.family)
    target = Target(buffer, ArmSpec.parse(trial.arm))
    done = hunt(target, player, examples=trial.examples, seed=trial.seed, watch=watch, per_name=1)
    found = [finding for finding in done.findings if finding.rule is not Rule.R0]
    return Proof(
        trial,
        found=tuple(sorted({finding.name for finding in found})),
        examples=found[0].examples if found else done.progress.examples,
        seconds=time.perf_counter() - start,
        trace=min((finding.trace for finding in found), key=len, default=""),
        detail=found[0].detail if found else "",
    )


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
