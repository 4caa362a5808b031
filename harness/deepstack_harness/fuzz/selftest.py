"""Proofs of trials: hunt on a buffer, play the traces of `check` on it, and return the broken rules.

Trials are proved in threads, each of which judges what a warm worker of its own plays.
"""

import time
from collections.abc import Generator, Iterable, Iterator
from contextlib import ExitStack, closing

from typing_extensions import override

from deepstack_harness.catalogue.pairs import axes_of
from deepstack_harness.catalogue.plans import Where, plan_check
from deepstack_harness.contract.arm import ArmSpec
from deepstack_harness.contract.case import BufferRef, Regime, registered
from deepstack_harness.contract.oracles.judge import judge_cases
from deepstack_harness.contract.rules import Rule
from deepstack_harness.contract.trace import Trace
from deepstack_harness.errors import HarnessError
from deepstack_harness.fuzz.faults import Finding, Progress, Target, Watch
from deepstack_harness.fuzz.hunt import hunt
from deepstack_harness.fuzz.player import InProcessPlayer, Player, WorkerPlayer
from deepstack_harness.fuzz.trials import Proof, Trial
from deepstack_harness.workers.pool import map_items


def prove_trial(trial: Trial, player: Player) -> Proof:
    """Play the traces of `check` up to the first that shows the fault, and hunt until a few examples after.

    R0 is left out: other faults break it too.
    """
    watch, start = _StopsAfterFinding(trial.extra), time.perf_counter()
    buffer = player.bind(registered(trial.subject), None, Target.family)
    target = Target(buffer, ArmSpec.parse(trial.arm))
    regime = Regime.CAPTURED if target.arm.captured else Regime.LIVE
    checked, broken_by_check, axes = _check(buffer, regime, player, trial.rule)
    done = hunt(target, player, examples=trial.examples, seed=trial.seed, watch=watch, per_name=1)
    found = [finding for finding in done.findings if finding.rule is not Rule.OUTPUT]
    others = [finding for finding in found if finding.name != trial.rule]
    shown = min(others or found, key=lambda finding: len(finding.trace), default=None)
    return Proof(
        trial,
        broken=tuple(sorted({finding.name for finding in found})),
        examples=found[0].examples if found else done.progress.examples,
        seconds=time.perf_counter() - start,
        trace=shown.trace if shown else "",
        detail=shown.detail if shown else "",
        checked=checked,
        broken_by_check=broken_by_check,
        axes=tuple(sorted(axes & axes_of(Trace.parse(shown.trace)))) if shown else (),
    )


def _check(
    buffer: BufferRef, regime: Regime, player: Player, rule: str | None
) -> tuple[int, tuple[str, ...], frozenset[str]]:
    """Play the traces of `check` of one regime until one breaks `rule`, then those with fewer of its axes.

    For a right buffer (None) any rule counts. Other rules of a mutant do not: in `set 16; get 20` a row that
    the set lost is read above the capacity first, which is R4. Return how many were played until then, what
    is broken, and the axes of inputs in which every trace is unusual that breaks it.
    """
    plan = [planned for planned in plan_check(Where(Target.family), buffer) if planned.case.regime is regime]
    for played, judged in enumerate(judge_cases(plan, player.check), 1):
        broken = (judged.broken | judged.unjudged) - {Rule.OUTPUT}
        counted = broken & {Rule(rule)} if rule else broken
        if counted:
            axes = axes_of(judged.case.trace)
            for planned in plan[played:]:
                fewer = axes & axes_of(planned.case.trace)
                if fewer != axes and counted & next(judge_cases([planned], player.check)).broken:
                    axes = fewer
            return played, tuple(sorted(map(str, counted))), axes
    return len(plan), (), frozenset()


class _StopsAfterFinding(Watch):
    """Watch that ends a hunt `extra` examples after its first finding, in which another rule may be found."""

    def __init__(self, extra: int) -> None:
        self._extra = extra
        self._played = 0
        self._last: int | None = None

    @override
    def on_example(self, progress: Progress, trace: Trace) -> None:
        self._played = progress.examples

    @override
    def on_finding(self, finding: Finding) -> None:
        if self._last is None and finding.rule is not Rule.OUTPUT:
            self._last = finding.examples + self._extra

    @override
    def is_done(self) -> bool:
        return self._last is not None and self._played >= self._last


_STEP_S = 300.0
"""Seconds for one step: the first one of a session compiles."""


def prove(trials: Iterable[Trial], workers: int, *, step_s: float = _STEP_S) -> Generator[Proof]:
    """Yield a proof of each trial as soon as it is known; with 0 workers played in this process, in order."""
    if not workers:
        in_process = InProcessPlayer()
        yield from (prove_trial(trial, in_process) for trial in trials)
        return
    with ExitStack() as opened:
        players = [opened.enter_context(closing(WorkerPlayer(step_s=step_s))) for _ in range(workers)]
        yield from map_items(_prove, trials, players)


def _prove(player: WorkerPlayer, trial: Trial) -> Iterator[Proof]:
    """Prove a trial; an error is a proof that failed, with the error as its detail."""
    start = time.perf_counter()
    try:
        yield prove_trial(trial, player)
    except HarnessError as error:
        yield Proof(trial, (), 0, time.perf_counter() - start, detail=f"no proof: {error}")
