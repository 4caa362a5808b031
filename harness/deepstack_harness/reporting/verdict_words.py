"""What a verdict is to a reader: its word, its order, and whether somebody has to look."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from deepstack_harness.contract.rules import Verdict
from deepstack_harness.reporting.run_data import Judged, RunData

WORST_FIRST = (
    Verdict.FAIL, Verdict.ERROR, Verdict.IMPROVED, Verdict.MISSING, Verdict.XFAIL, Verdict.PASS, Verdict.SKIP,
)  # fmt: skip
UNEXPECTED = frozenset({Verdict.FAIL, Verdict.ERROR, Verdict.IMPROVED, Verdict.MISSING})
"""Verdicts that make a run red."""

OPENED = UNEXPECTED | {Verdict.XFAIL}
"""Verdicts with something to tell: a trace, a figure, a diagnosis."""

MEANINGS = {
    Verdict.FAIL: "broken",
    Verdict.ERROR: "not judged",
    Verdict.IMPROVED: "kept, expected to break",
    Verdict.MISSING: "no baseline",
    Verdict.XFAIL: "broken, as expected",
    Verdict.PASS: "kept",
    Verdict.SKIP: "does not apply",
}


def worst(verdicts: Iterable[str]) -> Verdict:
    """The one to show for all of them."""
    return min(map(Verdict, verdicts), key=WORST_FIRST.index)


@dataclass(frozen=True)
class Summary:
    """How a run stands: judgements by verdict, and whether all of it was played."""

    counts: dict[Verdict, int]
    cases: int
    planned: int
    finished: bool
    stages: tuple[str, ...] = ()
    """Of the night, those that did not hold, each with how it ended."""

    @property
    def unexpected(self) -> int:
        """Judgements that somebody has to look at."""
        return sum(self.counts[verdict] for verdict in UNEXPECTED)

    @property
    def good(self) -> bool:
        """Whether nothing is unexpected, nothing is left to play, and the whole night held."""
        return not self.unexpected and self.finished and self.cases > 0 and not self.stages

    @property
    def headline(self) -> str:
        """One line: what is unexpected, how far the run came, and which stages of its night did not hold."""
        found = [f"{self.counts[one]} {one}" for one in WORST_FIRST if one in UNEXPECTED and self.counts[one]]
        said = f"{self.unexpected} unexpected: {', '.join(found)}" if found else "nothing unexpected"
        if not self.finished:
            said = f"{said}; {self.progress}"
        return f"the night: {', '.join(self.stages)}; the run: {said}" if self.stages else said

    @property
    def progress(self) -> str:
        """How far the run came."""
        if self.finished:
            return f"{self.cases} cases"
        return f"stopped before its end, {self.cases} of {self.planned} cases were played"

    @property
    def expected(self) -> str:
        """What went as it should."""
        kept, known, skipped = (self.counts[one] for one in (Verdict.PASS, Verdict.XFAIL, Verdict.SKIP))
        return f"{kept} kept, {known} broken as expected, {skipped} do not apply"


def summarise(run: RunData) -> Summary:
    """Count the judgements of a run."""
    counts = Counter(Verdict(row.verdict) for row in run.rows)
    stages = tuple(one.in_short for one in run.stages or () if not one.held)
    return Summary({one: counts[one] for one in Verdict}, len(run.cases), run.planned, run.finished, stages)


def of_interest(row: Judged) -> bool:
    """Whether a judgement has something to tell."""
    return row.verdict in OPENED
