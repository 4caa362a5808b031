"""The summary of a run: judgements by verdict, and how far the run came."""

from collections import Counter
from dataclasses import dataclass

from deepstack_harness.contract.plural import plural
from deepstack_harness.contract.verdicts import UNEXPECTED, WORST_FIRST, Verdict
from deepstack_harness.reporting.run_data import RunData


@dataclass(frozen=True)
class Summary:
    """Judgements by verdict, cases played of those planned, and whether the run came to its end."""

    counts: dict[Verdict, int]
    cases: int
    planned: int
    finished: bool
    stages: tuple[str, ...] = ()
    """Stages of the night that did not hold, each with its outcome."""

    @property
    def unexpected(self) -> int:
        """The number of judgements that somebody has to look at."""
        return sum(self.counts[verdict] for verdict in UNEXPECTED)

    @property
    def good(self) -> bool:
        """Say whether nothing is unexpected, nothing is left to play, and the whole night held."""
        return not self.unexpected and self.finished and self.cases > 0 and not self.stages

    @property
    def headline(self) -> str:
        """One line: unexpected judgements, the progress, and the stages of its night that did not hold."""
        found = [
            f"{self.counts[verdict]} {verdict}"
            for verdict in WORST_FIRST
            if verdict in UNEXPECTED and self.counts[verdict]
        ]
        said = f"{self.unexpected} unexpected: {', '.join(found)}" if found else "nothing unexpected"
        if not self.finished:
            said = f"{said}; {self.progress}"
        return f"the night: {', '.join(self.stages)}; the run: {said}" if self.stages else said

    @property
    def progress(self) -> str:
        """The number of cases that were played, in words."""
        if self.finished:
            return plural(self.cases, "case")
        return f"stopped before its end, {self.cases} of {self.planned} cases were played"

    @property
    def expected(self) -> str:
        """Expected judgements in words."""
        kept, known, skipped = (
            self.counts[verdict] for verdict in (Verdict.PASS, Verdict.XFAIL, Verdict.SKIP)
        )
        return f"{kept} kept, {known} broken as expected, {skipped} do not apply"


def summarise(run: RunData) -> Summary:
    """Count the judgements of a run."""
    counts = Counter(row.verdict for row in run.rows)
    stages = tuple(stage.in_short for stage in run.stages or () if not stage.held)
    return Summary(
        {verdict: counts[verdict] for verdict in Verdict}, len(run.cases), run.planned, run.finished, stages
    )
