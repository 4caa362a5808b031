"""Search for schedules that break a rule on a running engine: drawn by hypothesis, shrunk to few requests."""

import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field, replace
from random import Random

from hypothesis import HealthCheck, Phase, find, settings
from hypothesis import strategies as st
from hypothesis.errors import NoSuchExample

from deepstack_harness.contract.rules import Rule
from deepstack_harness.contract.verdicts import Judgement, Verdict
from deepstack_harness.engines.live.judge import EngineResult
from deepstack_harness.engines.live.play import EngineWork, RunningEngine
from deepstack_harness.engines.live.schedules import (
    REPLAY_MODES,
    SHRINK_S,
    EngineRequest,
    ReplayMode,
    Schedule,
)
from deepstack_harness.engines.live.session import StartOrder, model_folder
from deepstack_harness.sources.environments import Say

_WORDS = ("a", "the quick brown fox ", "x" * 50)
Judge = Callable[[Schedule, ReplayMode | None], EngineResult]


def schedules_drawn() -> st.SearchStrategy[Schedule]:
    """Draw schedules of one to five requests, with budgets around the number of requests and above.

    A request has text, an image, or two, at the beginning or after text.
    """
    request = st.builds(
        EngineRequest,
        name=st.just(""),
        before=st.sampled_from(_WORDS),
        after=st.sampled_from(("", " ok")),
        images=st.lists(st.integers(0, 3), max_size=2).map(tuple),
        answers=st.integers(1, 24),
        arrives=st.integers(0, 12),
        aborted=st.none() | st.integers(1, 8),
    )
    budgets = st.none() | st.integers(1, 8) | st.integers(9, 64)

    def schedule(requests: list[EngineRequest], budget: int | None) -> Schedule:
        named = tuple(
            # An abort before the arrival would abort nothing.
            replace(item, name=f"r{number}", aborted=item.aborted and item.arrives + item.aborted)
            for number, item in enumerate(requests)
        )
        settings = () if budget is None else (f"--max-num-batched-tokens={budget}",)
        return Schedule("drawn", "drawn at random", named, budget, settings=settings)

    return st.builds(schedule, st.lists(request, min_size=1, max_size=5), budgets)


@dataclass
class Search:
    """One search on one engine: what it has played, and the smallest schedule that breaks a rule."""

    judge: Judge
    replay: ReplayMode | None
    seconds: float
    say: Say
    seed: int = 0
    examples: int = 0
    met: set[tuple[str, str]] = field(default_factory=set)
    smallest: Schedule | None = None

    def run(self, most: int = 1_000_000) -> None:
        """Draw until a rule is broken or the time is over, then shrink.

        `most` limits the drawn schedules.  Raises what the engine raises.
        """
        self._over = time.monotonic() + self.seconds
        drawn = settings(
            max_examples=most, database=None, deadline=None, derandomize=False,
            phases=[Phase.generate, Phase.shrink], suppress_health_check=list(HealthCheck),
        )  # fmt: skip
        with suppress(NoSuchExample, _TimeIsUp):
            self.smallest = find(schedules_drawn(), self._breaks, settings=drawn, random=Random(self.seed))

    def _breaks(self, schedule: Schedule) -> bool:
        """Play one schedule; after the time no more is tried, and what was found stays as small as it is."""
        if time.monotonic() > self._over:
            if self.smallest is None:
                raise _TimeIsUp
            return schedule == self.smallest
        self.examples += 1
        result = self.judge(schedule, self.replay)
        self.met |= result.met
        self.say(f"schedule {self.examples}, {len(self.met)} pairs of dispatch and visual state")
        if not result.broken:
            return False
        if self.smallest is None:
            self._over = time.monotonic() + SHRINK_S
        self.smallest = schedule
        return True


class _TimeIsUp(Exception):
    """End of the time for drawing."""


def search_engine(work: EngineWork, seconds: float, seed: int, say: Say) -> Iterator[EngineResult]:
    """Play drawn schedules on the uncompiled engine of each family, without graphs and in the default mode.

    Each of both gets half of the time.  Yields the smallest schedule that breaks a rule, or what was tried.
    """
    for model in work.models:
        with model_folder(work.home, model) as (folder, _):
            methods = work.methods.get(model.family, {})
            order = StartOrder(model, folder, methods=methods)
            with work.start(order, say) as engine:
                for replay in (None, REPLAY_MODES["full_and_piecewise"]):
                    yield searched(engine, Search(engine.judge, replay, seconds / 2, say, seed))


def searched(engine: RunningEngine, search: Search, most: int = 1_000_000) -> EngineResult:
    """Run one search, and return its finding, or that none was found, as a result."""
    begun = time.monotonic()
    search.run(most)
    if search.smallest is None:
        judgement = Judgement(Rule.OUTPUT, Verdict.PASS, detail=f"{search.examples} schedules drawn")
        result = engine.result("search", [judgement], begun, replay=search.replay)
    else:
        result = replace(engine.judge(search.smallest, search.replay), seconds=time.monotonic() - begun)
        tried = f"{search.smallest}; {search.examples} schedules drawn"
        result = replace(
            result, rows=tuple(replace(row, detail=f"{row.detail}; {tried}") for row in result.rows)
        )
    return replace(result, name="search", met=frozenset(search.met))
