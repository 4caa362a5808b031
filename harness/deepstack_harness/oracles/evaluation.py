"""What an evaluation over a workload would see: greedy agreement with eager, and leaks between requests."""

from collections.abc import Iterator
from dataclasses import dataclass

from deepstack_harness.contract.case import Case, Observation
from deepstack_harness.contract.ledger import Ledger
from deepstack_harness.contract.trace import RUNS_DECODER
from deepstack_harness.oracles.base import numbered_steps


@dataclass(frozen=True)
class Evaluation:
    """Figures over all decoder runs of a trace.

    `agreement` is the share of tokens (padding included) whose greedy choice
    equals eager's, None where nothing ran; `runs` decoder runs that were compared,
    with `counts` distinct token counts; `died` runs that raised; `leaked` rows of a
    payload that belonged to other requests than those of the step that read it.
    """

    agreement: float | None
    runs: int
    counts: int
    died: int
    leaked: int


def evaluate(case: Case, observation: Observation) -> Evaluation:
    """Sum up one observation."""
    runs = [
        (step.tokens, facts.distances.greedy)
        for _, step, facts in numbered_steps(case, observation)
        if facts.distances is not None
    ]
    tokens = sum(count for count, _ in runs)
    died = [
        step
        for _, step, facts in numbered_steps(case, observation)
        if step.op in RUNS_DECODER and facts.raised
    ]
    return Evaluation(
        agreement=sum(count * share for count, share in runs) / tokens if tokens else None,
        runs=len(runs),
        counts=len({count for count, _ in runs}),
        died=len(died),
        leaked=sum(_leaks(case, observation)),
    )


def _leaks(case: Case, observation: Observation) -> Iterator[int]:
    """Per answered step, the rows of ended payloads whose requests have no part in the live one."""
    ledger = Ledger(case.trace.capacity, observation.levels, observation.hidden)
    for _, step, facts in numbered_steps(case, observation):
        owners = _requests(ledger, ledger.live.number if ledger.live else 0)
        for runs in facts.answer.rows if facts.answer else ():
            yield sum(
                run.rows for run in runs if run.payload and not owners & _requests(ledger, abs(run.payload))
            )
        ledger.commit(step, accepted=facts.raised is None, capacity=facts.capacity)


def _requests(ledger: Ledger, payload: int) -> frozenset[str]:
    found = ledger.payloads.get(payload)
    return frozenset(found.request.split("+")) if found else frozenset()
