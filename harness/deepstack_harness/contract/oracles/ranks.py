"""R9: each rank of a shared step sees its own rows, and the ranks together equal the unsharded run.

The rows that a rank must get are those of the contract. A row that equals the one which the buffer returned
is right too: where the buffer is wrong, another rule reports it. Outputs are compared under arms that are not
compiled; under the others R0 does it.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import chain, count, zip_longest

from deepstack_harness.contract.case import Case
from deepstack_harness.contract.ledger import Ledger
from deepstack_harness.contract.observation import Observation, RowOrigin, RowRange, ShardFacts, StepFacts
from deepstack_harness.contract.oracles.outputs import tolerance
from deepstack_harness.contract.oracles.trace_audit import (
    Deviation,
    ObservedCase,
    WrongRow,
    error,
    judge_deviations,
    numbered_steps,
    origins_of,
    passed,
    skip,
)
from deepstack_harness.contract.rules import Rule
from deepstack_harness.contract.tolerances import HALF
from deepstack_harness.contract.trace import Step
from deepstack_harness.contract.verdicts import FaultKind, Judgement
from deepstack_harness.text import plural

_UNITS = ("rows", "ranks", "calls")


@dataclass(frozen=True)
class _Shared:
    """One step that ranks shared, with the rows that the contract requires of all ranks together."""

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


def judge_sharding(observed: ObservedCase) -> Judgement:
    """Count wrong rows over all ranks; without any, ranks whose output strays, or calls that raised."""
    case, observation = observed.case, observed.observation
    if case.arm.ranks == 1:
        return skip(Rule.SHARDING, f"under arm {case.arm.name} no ranks share a step")
    if observation.error:
        return error(Rule.SHARDING, observation.error)
    wrong, steps = deviations(observed), list(_shared_steps(case, observation))
    if wrong:
        first = {deviation.unit: deviation.detail for deviation in reversed(wrong)}
        more = len(wrong) - len(first)
        detail = "; ".join(reversed(first.values())) + (f" (and {more} more)" if more else "")
        return judge_deviations(Rule.SHARDING, wrong, detail, len(steps))
    if not any(run.payload for shared in steps for ranges in shared.due for run in ranges):
        refused = (facts.unavailable for facts in observation.steps if facts.unavailable)
        return skip(Rule.SHARDING, next(refused, "no ranks shared a step with a payload"))
    shards = [shard for shared in steps for shard in shared.facts.shards]
    strays = [shard.stray for shard in shards if shard.stray is not None]
    outputs = f"outputs {max(strays):.2g} apart" if strays else "outputs not compared"
    rows = f"rows of {len({shard.rank for shard in shards})} of {shards[0].ranks} ranks"
    return passed(Rule.SHARDING, 0, 0, _UNITS[0], f"{rows}, {outputs}", chances=len(steps))


def deviations(observed: ObservedCase) -> list[Deviation]:
    """Return wrong rows of each rank, outputs that stray, and decoders that raised, in this order."""
    case, observation = observed.case, observed.observation
    # In half precision another expert may be chosen, as for R0.
    rounding_reroutes = observation.routed and case.dtype in HALF
    wrong: list[Deviation] = []
    for shared in _shared_steps(case, observation):
        wrong += _not_a_partition(shared)
        distances = shared.facts.distances
        for shard in shared.facts.shards:
            wrong += _wrong_rows(shared, shard)
            if case.arm.compiled or rounding_reroutes or distances is None or shard.stray is None:
                continue
            if shard.stray > tolerance(case, distances):
                detail = f"{shared.where(shard)} gathered an output {shard.stray:.2g} from the unsharded one"
                wrong.append(
                    Deviation(
                        Rule.SHARDING, 1, "ranks", detail, FaultKind.OUTPUT, first_row=0,
                        real_rows=shared.real_rows, step=shared.number,
                    )
                )  # fmt: skip
    for number, step, facts in () if case.arm.compiled else numbered_steps(case, observation):
        if (raised := facts.raised) and raised.call == "decoder":
            detail = f"step {number} '{step}' raised {raised.type}: {raised.message}"
            wrong.append(
                Deviation(
                    Rule.SHARDING, 1, "calls", detail, FaultKind.RAISED, exception=raised.type, step=number
                )
            )
    return sorted(wrong, key=lambda deviation: _UNITS.index(deviation.unit))


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


def _wrong_rows(shared: _Shared, shard: ShardFacts) -> Iterator[Deviation]:
    wrong = list(_compare(shared, shard))
    if not wrong:
        return
    level, row, given, due = wrong[0]
    levels = len({level for level, *_ in wrong})
    rows = (
        f"{plural(len(wrong), 'wrong row')} over {plural(levels, 'level')}, first row {row} of level {level}"
    )
    holds = "is missing" if given is None else f"holds {_origin(given, shared)}"
    should = "is one too many" if due is None else f"should hold {_origin(due, shared)}"
    detail = f"{shared.where(shard)} was given {rows}: it {holds} and {should}"
    first = WrongRow(level, row, given, _shape(given, due))
    lowest = min(row for _, row, *_ in wrong)
    yield Deviation(
        Rule.SHARDING,
        len(wrong),
        "rows",
        detail,
        first.shape,
        first,
        lowest,
        shared.real_rows,
        step=shared.number,
    )


def _shape(given: RowOrigin | None, due: RowOrigin | None) -> FaultKind:
    if given is None:
        return FaultKind.MISSING
    payload = given[0]
    if payload is None:
        return FaultKind.NEVER_SET
    if due is None:
        return FaultKind.SURPLUS
    return FaultKind.OTHER_RANK if payload else FaultKind.ZEROS


def _compare(
    shared: _Shared, shard: ShardFacts
) -> Iterator[tuple[int, int, RowOrigin | None, RowOrigin | None]]:
    """Iterate over (level, row of the step, its origin, the right one) where the two differ."""
    tokens = shared.step.tokens
    owned = _owned(shard, tokens)
    answer = shared.facts.answer.rows if shared.facts.answer else ()
    columns = zip_longest(shard.rows, answer, shared.due, fillvalue=())
    for level, (given, answered, due) in enumerate(columns):
        of_rank = rows_of_rank(answered, shard, tokens), rows_of_rank(due, shard, tokens)
        rows = zip_longest(origins_of(given), *of_rank)
        # Surplus rows get the numbers after the last row that is due.
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
        who = f"{owners[row]} ranks own row {row}, not one" if row < tokens else f"a rank owns row {row}"
        detail = f"step {shared.number} '{shared.step}' of {tokens} rows: {who}"
        yield Deviation(
            Rule.SHARDING, len(wrong), "rows", detail, FaultKind.PARTITION, first_row=wrong[0],
            real_rows=shared.real_rows, step=shared.number,
        )  # fmt: skip


def _owned(shard: ShardFacts, tokens: int) -> list[int]:
    """Return the rows of a step that a rank owns: those that the engine states, else the contiguous share."""
    share = tokens // shard.ranks
    stated = ((shard.rank * share, (shard.rank + 1) * share),) if shard.owns is None else shard.owns
    return [row for start, end in stated for row in range(start, end)]


def _origin(origin: RowOrigin, shared: _Shared) -> str:
    """Return what a row holds, and whose it is: of which rank in this step, and of which request."""
    payload, level, row = origin
    if payload is None:
        return "a value that was never set"
    if payload == 0:
        return "zeros"
    shards, tokens = shared.facts.shards, shared.step.tokens
    if any(shard.owns is not None for shard in shards):
        owners = (str(shard.rank) for shard in shards if row in _owned(shard, tokens))
        rank = next(owners, "unknown")
    else:
        rank = str(row // max(1, tokens // shards[0].ranks))
    request = shared.requests[abs(payload)]
    return f"row {row} (rank {rank}'s), level {level} of payload {payload} (request {request})"
