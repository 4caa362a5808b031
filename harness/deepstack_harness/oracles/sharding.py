"""R9: each rank of a shared step sees its own rows, and the ranks together equal the unsharded run.

What is due to a rank is what the contract says of its rows.  A row that is as the
buffer answered it is right too: where the buffer is wrong, another rule says so.
Outputs are compared under arms that are not compiled; under the others R0 does it.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import zip_longest

from deepstack_harness.contract.case import Case, Judgement, Observation, Run, Shard, StepFacts
from deepstack_harness.contract.ledger import Ledger
from deepstack_harness.contract.rules import Rule
from deepstack_harness.contract.trace import Step
from deepstack_harness.oracles.base import against, error, numbered_steps, skip
from deepstack_harness.oracles.output import HALF, tolerance

Cell = tuple[int | None, int, int]
"""Origin of one row: (payload, level, row), as in `deepstack_harness.contract.case.Run`."""

_UNITS = ("rows", "ranks", "calls")


@dataclass(frozen=True)
class Finding:
    """Wrong rows of a rank, an output that strays, or a decoder that raised."""

    amount: int
    unit: str
    detail: str


@dataclass(frozen=True)
class _Shared:
    """One step that ranks shared, with what the contract says of all its rows."""

    number: int
    step: Step
    facts: StepFacts
    due: tuple[tuple[Run, ...], ...]
    requests: Mapping[int, str]
    """Payload -> its owner."""

    def where(self, shard: Shard) -> str:
        """The step and the rank, as a sentence begins."""
        return f"step {self.number} '{self.step}': rank {shard.rank} of {shard.ranks}"


def judge(case: Case, observation: Observation) -> Judgement:
    """Wrong rows over all ranks; where there are none, ranks whose output strays, or calls that raised."""
    if case.arm.ranks == 1:
        return skip(Rule.R9, f"under arm {case.arm.name} no ranks share a step")
    if observation.error:
        return error(Rule.R9, observation.error)
    steps = list(_shared_steps(case, observation))
    found = sorted(_findings(case, observation, steps), key=lambda finding: _UNITS.index(finding.unit))
    if not found and not any(run.payload for shared in steps for runs in shared.due for run in runs):
        return skip(Rule.R9, _why_not(observation))
    if not found:
        return against(Rule.R9, 0, 0, _UNITS[0], _compared(steps))
    unit = found[0].unit
    amount = sum(finding.amount for finding in found if finding.unit == unit)
    return against(Rule.R9, amount, 0, unit, _summary(found))


def rows_of_rank(runs: Iterable[Run], rank: int, ranks: int, tokens: int) -> list[Cell]:
    """The origins of rows [rank * tokens / ranks, (rank + 1) * tokens / ranks)."""
    share = tokens // ranks
    return cells(runs)[rank * share : (rank + 1) * share]


def cells(runs: Iterable[Run]) -> list[Cell]:
    """Runs of rows, row by row."""
    return [
        (payload, level, row + offset if payload and payload > 0 else row)
        for payload, level, row, count in runs
        for offset in range(count)
    ]


def _shared_steps(case: Case, observation: Observation) -> Iterator[_Shared]:
    ledger = Ledger(case.trace.capacity, observation.levels, observation.hidden)
    for number, step, facts in numbered_steps(case, observation):
        if facts.unavailable:
            continue  # nothing was done
        if facts.shards:
            requests = {number: payload.request for number, payload in ledger.payloads.items()}
            yield _Shared(number, step, facts, ledger.expect(step).levels, requests)
        ledger.commit(step, accepted=facts.raised is None, capacity=facts.capacity)


def _findings(case: Case, observation: Observation, steps: Iterable[_Shared]) -> Iterator[Finding]:
    # In half precision another expert may be chosen, as for R0.
    rounding_reroutes = observation.routed and case.dtype in HALF
    for shared in steps:
        for shard in shared.facts.shards:
            yield from _wrong_rows(shared, shard)
            if not (case.arm.compiled or rounding_reroutes):
                yield from _straying(case, shared, shard)
    if not case.arm.compiled:
        yield from _raised(case, observation)


def _wrong_rows(shared: _Shared, shard: Shard) -> Iterator[Finding]:
    wrong = list(_compare(shared, shard))
    if not wrong:
        return
    level, row, given, due = wrong[0]
    levels = len({level for level, *_ in wrong})
    found = f"was given {len(wrong)} wrong rows over {levels} levels, first row {row} of level {level}"
    told = _told(given, due, shared, shard.ranks)
    yield Finding(len(wrong), "rows", f"{shared.where(shard)} {found}: {told}")


def _compare(shared: _Shared, shard: Shard) -> Iterator[tuple[int, int, Cell | None, Cell | None]]:
    """(level, row of the step, what was given there, what is due) where the two differ."""
    start = shard.rank * (shared.step.tokens // shard.ranks)
    answer = shared.facts.answer.rows if shared.facts.answer else ()
    columns = zip_longest(shard.rows, answer, shared.due, fillvalue=())
    for level, (given, answered, due) in enumerate(columns):
        mine = (shard.rank, shard.ranks, shared.step.tokens)
        rows = zip_longest(cells(given), rows_of_rank(answered, *mine), rows_of_rank(due, *mine))
        for row, (cell, read, right) in enumerate(rows, start):
            if cell not in (read, right):
                yield level, row, cell, right


def _straying(case: Case, shared: _Shared, shard: Shard) -> Iterator[Finding]:
    distances = shared.facts.distances
    if distances is None or shard.stray is None or shard.stray <= tolerance(case, distances):
        return
    apart = f"gathered an output {shard.stray:.2g} from the unsharded one"
    yield Finding(1, "ranks", f"{shared.where(shard)} {apart}")


def _raised(case: Case, observation: Observation) -> Iterator[Finding]:
    for number, step, facts in numbered_steps(case, observation):
        if facts.raised and facts.raised.call == "decoder":
            said = f"{facts.raised.type}: {facts.raised.message}"
            yield Finding(1, "calls", f"step {number} '{step}' raised {said}")


def _summary(found: list[Finding]) -> str:
    """The first finding of each kind."""
    first = {finding.unit: finding.detail for finding in reversed(found)}
    more = len(found) - len(first)
    return "; ".join(reversed(first.values())) + (f" (and {more} more)" if more else "")


def _compared(steps: list[_Shared]) -> str:
    shards = [shard for shared in steps for shard in shared.facts.shards]
    seen = f"rows of {len({shard.rank for shard in shards})} of {shards[0].ranks} ranks"
    strays = [shard.stray for shard in shards if shard.stray is not None]
    return f"{seen}, " + (f"outputs {max(strays):.2g} apart" if strays else "outputs not compared")


def _why_not(observation: Observation) -> str:
    """Why no payload was shared: it was refused, or there was none."""
    refused = (facts.unavailable for facts in observation.steps if facts.unavailable)
    return next(refused, "no ranks shared a step with a payload")


def _told(given: Cell | None, due: Cell | None, shared: _Shared, ranks: int) -> str:
    found = "is missing" if given is None else f"holds {_origin(given, shared, ranks)}"
    wanted = "is one too many" if due is None else f"should hold {_origin(due, shared, ranks)}"
    return f"it {found} and {wanted}"


def _origin(cell: Cell, shared: _Shared, ranks: int) -> str:
    """What a row holds, and whose it is: of which rank in this step, and of which request."""
    payload, level, row = cell
    if payload is None:
        return "a value that was never set"
    if payload == 0:
        return "zeros"
    rank = row // max(1, shared.step.tokens // ranks)
    request = shared.requests[abs(payload)]
    return f"row {row} (rank {rank}'s), level {level} of payload {payload} (request {request})"
