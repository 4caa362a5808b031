"""R9: each rank of a shared step sees its own rows, and the ranks together equal the unsharded run.

What is due to a rank is what the contract says of its rows.  A row that is as the
buffer answered it is right too: where the buffer is wrong, another rule says so.
Outputs are compared under arms that are not compiled; under the others R0 does it.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import chain, count, zip_longest

from deepstack_harness.contract.case import Case
from deepstack_harness.contract.ledger import Ledger
from deepstack_harness.contract.observation import Observation, RowRange, ShardFacts, StepFacts
from deepstack_harness.contract.plural import plural
from deepstack_harness.contract.rules import Rule
from deepstack_harness.contract.trace import Step
from deepstack_harness.contract.verdicts import Judgement
from deepstack_harness.oracles.base import against, error, numbered_steps, skip
from deepstack_harness.oracles.distances import HALF, tolerance
from deepstack_harness.oracles.observed_case import ObservedCase
from deepstack_harness.oracles.row_origins import Deviation, RowOrigin, origins_of

_UNITS = ("rows", "ranks", "calls")


@dataclass(frozen=True)
class _Shared:
    """One step that ranks shared, with what the contract says of all its rows."""

    number: int
    step: Step
    facts: StepFacts
    due: tuple[tuple[RowRange, ...], ...]
    requests: Mapping[int, str]
    """Payload -> its owner."""
    real_rows: int
    """Rows of real tokens: N, or where no payload is live all of them."""

    def where(self, shard: ShardFacts) -> str:
        """Return the step and the rank, as a sentence begins."""
        return f"step {self.number} '{self.step}': rank {shard.rank} of {shard.ranks}"


def judge(observed: ObservedCase) -> Judgement:
    """Count wrong rows over all ranks; without any, ranks whose output strays, or calls that raised."""
    case, observation = observed.case, observed.observation
    if case.arm.ranks == 1:
        return skip(Rule.R9, f"under arm {case.arm.name} no ranks share a step")
    if observation.error:
        return error(Rule.R9, observation.error)
    found, steps = deviations(observed), list(_shared_steps(case, observation))
    if not found and not any(one.payload for shared in steps for ranges in shared.due for one in ranges):
        return skip(Rule.R9, _why_not(observation))
    if not found:
        return against(Rule.R9, 0, 0, _UNITS[0], _compared(steps))
    unit = found[0].unit
    amount = sum(deviation.amount for deviation in found if deviation.unit == unit)
    return against(Rule.R9, amount, 0, unit, _summary(found))


def deviations(observed: ObservedCase) -> list[Deviation]:
    """Return wrong rows of each rank, outputs that stray, and decoders that raised, in this order."""
    found = _deviations(observed.case, observed.observation)
    return sorted(found, key=lambda deviation: _UNITS.index(deviation.unit))


def rows_of_rank(ranges: Iterable[RowRange], shard: ShardFacts, tokens: int) -> list[RowOrigin]:
    """Return the origins of the rows of a step that a rank owns, as far as there are so many."""
    origins = origins_of(ranges)
    return [origins[row] for row in _owned(shard, tokens) if 0 <= row < len(origins)]


def _shared_steps(case: Case, observation: Observation) -> Iterator[_Shared]:
    ledger = Ledger(case.trace.capacity, observation.levels, observation.hidden)
    for number, step, facts in numbered_steps(case, observation):
        if facts.unavailable:
            continue  # nothing was done
        if facts.shards:
            requests = {number: payload.request for number, payload in ledger.payloads.items()}
            real = ledger.tokens or step.tokens
            yield _Shared(number, step, facts, ledger.expect(step).levels, requests, real)
        ledger.commit(step, accepted=facts.raised is None, capacity=facts.capacity)


def _deviations(case: Case, observation: Observation) -> Iterator[Deviation]:
    # In half precision another expert may be chosen, as for R0.
    rounding_reroutes = observation.routed and case.dtype in HALF
    for shared in _shared_steps(case, observation):
        yield from _not_a_partition(shared)
        for shard in shared.facts.shards:
            yield from _wrong_rows(shared, shard)
            if not (case.arm.compiled or rounding_reroutes):
                yield from _straying(case, shared, shard)
    if not case.arm.compiled:
        yield from _raised(case, observation)


def _wrong_rows(shared: _Shared, shard: ShardFacts) -> Iterator[Deviation]:
    wrong = list(_compare(shared, shard))
    if not wrong:
        return
    level, row, given, due = wrong[0]
    levels = len({level for level, *_ in wrong})
    count = f"{plural(len(wrong), 'wrong row')} over {plural(levels, 'level')}"
    found = f"was given {count}, first row {row} of level {level}"
    told = _told(given, due, shared)
    said, first = f"{shared.where(shard)} {found}: {told}", min(row for _, row, *_ in wrong)
    yield Deviation(Rule.R9, len(wrong), "rows", said, first, shared.real_rows)


def _compare(
    shared: _Shared, shard: ShardFacts
) -> Iterator[tuple[int, int, RowOrigin | None, RowOrigin | None]]:
    """Iterate over (level, row of the step, its origin, the right one) where the two differ."""
    tokens = shared.step.tokens
    owned = _owned(shard, tokens)
    answer = shared.facts.answer.rows if shared.facts.answer else ()
    columns = zip_longest(shard.rows, answer, shared.due, fillvalue=())
    for level, (given, answered, due) in enumerate(columns):
        mine = rows_of_rank(answered, shard, tokens), rows_of_rank(due, shard, tokens)
        rows = zip_longest(origins_of(given), *mine)
        # Rows too many are counted on behind the last row that is due.
        numbers = chain(owned, count(owned[-1] + 1 if owned else 0))
        for row, (origin, read, right) in zip(numbers, rows, strict=False):
            if origin not in (read, right):
                yield level, row, origin, right


def _not_a_partition(shared: _Shared) -> Iterator[Deviation]:
    """Iterate over the fault of a stated partition: rows of the step that no rank owns, or more than one."""
    shards, tokens = shared.facts.shards, shared.step.tokens
    if all(shard.owns is None for shard in shards):
        return  # the contiguous share is a partition
    owners = Counter(row for shard in shards for row in _owned(shard, tokens))
    all_ranks = len({shard.rank for shard in shards}) == shards[0].ranks  # else some were not played
    wrong = [row for row in range(tokens) if owners[row] > 1 or (all_ranks and not owners[row])]
    wrong += sorted(row for row in owners if not 0 <= row < tokens)
    if wrong:
        row = wrong[0]
        found = f"{owners[row]} ranks own row {row}, not one" if row < tokens else f"a rank owns row {row}"
        said = f"step {shared.number} '{shared.step}' of {tokens} rows: {found}"
        yield Deviation(Rule.R9, len(wrong), "rows", said, wrong[0], shared.real_rows)


def _owned(shard: ShardFacts, tokens: int) -> list[int]:
    """Return the rows of a step that a rank owns: those that the engine states, else the contiguous share."""
    share = tokens // shard.ranks
    stated = ((shard.rank * share, (shard.rank + 1) * share),) if shard.owns is None else shard.owns
    return [row for start, end in stated for row in range(start, end)]


def _straying(case: Case, shared: _Shared, shard: ShardFacts) -> Iterator[Deviation]:
    distances = shared.facts.distances
    if distances is None or shard.stray is None or shard.stray <= tolerance(case, distances):
        return
    apart = f"gathered an output {shard.stray:.2g} from the unsharded one"
    yield Deviation(Rule.R9, 1, "ranks", f"{shared.where(shard)} {apart}", 0, shared.real_rows)


def _raised(case: Case, observation: Observation) -> Iterator[Deviation]:
    for number, step, facts in numbered_steps(case, observation):
        if facts.raised and facts.raised.call == "decoder":
            said = f"{facts.raised.type}: {facts.raised.message}"
            yield Deviation(Rule.R9, 1, "calls", f"step {number} '{step}' raised {said}", raised=True)


def _summary(found: list[Deviation]) -> str:
    """Return the first deviation of each unit."""
    first = {finding.unit: finding.detail for finding in reversed(found)}
    more = len(found) - len(first)
    return "; ".join(reversed(first.values())) + (f" (and {more} more)" if more else "")


def _compared(steps: list[_Shared]) -> str:
    shards = [shard for shared in steps for shard in shared.facts.shards]
    seen = f"rows of {len({shard.rank for shard in shards})} of {shards[0].ranks} ranks"
    strays = [shard.stray for shard in shards if shard.stray is not None]
    return f"{seen}, " + (f"outputs {max(strays):.2g} apart" if strays else "outputs not compared")


def _why_not(observation: Observation) -> str:
    """Return why no payload was shared: it was refused, or there was none."""
    refused = (facts.unavailable for facts in observation.steps if facts.unavailable)
    return next(refused, "no ranks shared a step with a payload")


def _told(given: RowOrigin | None, due: RowOrigin | None, shared: _Shared) -> str:
    found = "is missing" if given is None else f"holds {_origin(given, shared)}"
    wanted = "is one too many" if due is None else f"should hold {_origin(due, shared)}"
    return f"it {found} and {wanted}"


def _origin(origin: RowOrigin, shared: _Shared) -> str:
    """Return what a row holds, and whose it is: of which rank in this step, and of which request."""
    payload, level, row = origin
    if payload is None:
        return "a value that was never set"
    if payload == 0:
        return "zeros"
    request = shared.requests[abs(payload)]
    return f"row {row} ({_rank_of(row, shared)}'s), level {level} of payload {payload} (request {request})"


def _rank_of(row: int, shared: _Shared) -> str:
    shards, tokens = shared.facts.shards, shared.step.tokens
    if any(shard.owns is not None for shard in shards):
        mine = (str(shard.rank) for shard in shards if row in _owned(shard, tokens))
        return f"rank {next(mine, 'unknown')}"
    return f"rank {row // max(1, tokens // shards[0].ranks)}"
