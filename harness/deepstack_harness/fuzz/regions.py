"""Proofs of small regions: each wrong one breaks its promise and no other, each right one breaks none.

Workers play them; judging happens here, from the facts.
"""

from collections.abc import Generator, Iterable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field

from deepstack_harness.catalogue.regions import REGIONS, SmallRegion
from deepstack_harness.contract.oracles.promises import JudgedSteps, judge_steps
from deepstack_harness.contract.rules import Promise
from deepstack_harness.contract.steps import SteppedRegion
from deepstack_harness.errors import HarnessError
from deepstack_harness.workers.outcomes import value_of
from deepstack_harness.workers.pool import map_items
from deepstack_harness.workers.remote import Remote
from deepstack_harness.workers.worker import Worker

_UNCOMPILED = "eager"
_EVERYWHERE = frozenset({Promise.NEUTRAL_ROWS, Promise.OWNERSHIP})
"""Promises that are checked on the uncompiled code too, and break there as well."""
_PLAY = Remote("deepstack_harness.play.steps_work:play_region", tuple[SteppedRegion, float])
_CALL_S = 300.0
"""Seconds for one region under one arm, which compiles it. After them it is not judged, and never right."""


@dataclass(frozen=True)
class RegionProof:
    """What was found of a region: the broken promises by arm, and what could not be judged.

    `chances` counts what would have shown a broken promise, `seconds` are those of the worker's processor.
    """

    name: str
    region: SmallRegion
    broken: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    unjudged: tuple[str, ...] = ()
    chances: int = 0
    seconds: float = 0.0
    detail: str = ""

    @property
    def holds(self) -> bool:
        """Return whether only the stated promise breaks under each stated arm; none for a right region."""
        promise = self.region.promise
        arms = {*self.region.arms, *([_UNCOMPILED] if promise in _EVERYWHERE else [])}
        stated = {arm: (str(promise),) for arm in arms} if promise else {}
        return self.chances > 0 and not self.unjudged and self.broken == stated

    @property
    def wrong(self) -> str:
        """What does not hold, in one sentence; "" where all does."""
        if self.holds:
            return ""
        if self.unjudged:
            return f"NOT JUDGED: {self.unjudged[0]}"
        if not self.chances:
            return "NOT PUT TO THE TEST"
        found = ", ".join(f"{' '.join(names)} under {arm}" for arm, names in self.broken.items())
        verdict = "NOT CAUGHT as stated" if self.region.promise else "FALSE ALARM"
        return f"{verdict}: {found or 'nothing'} broken{f'; {self.detail}' if self.detail else ''}"


def proof_of(name: str, judged: JudgedSteps, seconds: float) -> RegionProof:
    """Return the proof of a region that was judged."""
    broken: dict[str, set[str]] = {}
    for row in judged.broken:
        broken.setdefault(row.arm, set()).add(str(row.rule))
    return RegionProof(
        name, REGIONS[name],
        {arm: tuple(sorted(promises)) for arm, promises in broken.items()},
        tuple(judged.unjudged), sum(row.chances or 0 for row in judged.rows), seconds,
        judged.broken[0].detail if judged.broken else "",
    )  # fmt: skip


def prove_regions(names: Iterable[str], workers: int = 1) -> Generator[RegionProof]:
    """Play regions in workers, and yield the proof of each, in their order."""
    with ExitStack() as opened:
        pool = [opened.enter_context(Worker(preload=_PLAY.module)) for _ in range(workers)]
        yield from map_items(_prove, names, pool, in_order=True)


def _prove(worker: Worker, name: str) -> Iterator[RegionProof]:
    """Play a region; a worker that ended proves nothing."""
    result = worker.call(_PLAY, {"target": REGIONS[name].target}, timeout_s=_CALL_S)
    try:
        region, seconds = value_of(result, f"playing {name}")
    except HarnessError as error:
        yield RegionProof(name, REGIONS[name], unjudged=(str(error),))
    else:
        yield proof_of(name, judge_steps(region), seconds)
