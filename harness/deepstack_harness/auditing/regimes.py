"""The standing of one class in both regimes, which are judged apart."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from deepstack_harness.auditing.causes import Effects, Replay, same_without_graphs
from deepstack_harness.auditing.standing import Finding, Standing, by_cause, sum_up
from deepstack_harness.contract.case import PlannedCase, Regime
from deepstack_harness.contract.rules import Rule
from deepstack_harness.contract.verdicts import BROKEN
from deepstack_harness.oracles.judged_case import JudgedCase

RULES = (Rule.R1, Rule.R2, Rule.R3, Rule.R4, Rule.R5, Rule.R6, Rule.R7, Rule.R8, Rule.R11)
"""Rules of a buffer that is played without a decoder; R11 is judged by what guards look at."""

BOTH = "both"
CHOICES = (*(regime for regime in Regime if regime), BOTH)

WHO_IS_CAPTURED = (
    "graphs replay what get and clear recorded, without their Python: vLLM with cudagraph_mode FULL, "
    "decode-only steps of its default FULL_AND_PIECEWISE, breakable graphs (0.22 on); also FastDeploy, "
    "TensorRT-LLM and vLLM's plugins, whose graphs read static storage, and SGLang's prefill graphs. Eager "
    "and PIECEWISE runs are live"
)
"""The engines and modes in which the captured regime matters."""


@dataclass(frozen=True)
class Standings:
    """Standing of every rule in each regime that was played.

    `same_live` are rules that are broken under graphs, and by the same trace without graphs too.
    """

    of: Mapping[Regime, Standing]
    same_live: Effects = field(default_factory=dict)

    @property
    def findings(self) -> list[Finding]:
        """Each cause once, over both regimes: its row, and the rows of what it explains."""
        rows = [row for standing in self.of.values() for row in standing.rows]
        within = {place: cause for standing in self.of.values() for place, cause in standing.effects.items()}
        return by_cause(rows, {**within, **self.same_live})

    def chosen(self, regime: str) -> list[Standing]:
        """Return the standings that decide for `live`, `captured` or `both`."""
        return [standing for one, standing in self.of.items() if regime in (BOTH, one)]


def regimes_of(regime: str) -> Collection[Regime]:
    """Return the regimes that a choice names."""
    return [one for one in Regime if one and regime in (BOTH, one)]


def only(plan: Iterable[PlannedCase], regime: str) -> list[PlannedCase]:
    """Return the part of a plan in `live`, `captured` or `both` regimes."""
    return [planned for planned in plan if planned.case.regime in regimes_of(regime)]


def stand_in_regimes(cases: Sequence[JudgedCase], source: str, model_class: str, replay: Replay) -> Standings:
    """Sum up the cases of each regime by themselves.

    `replay` plays one more case, so that a fault that has nothing to do with graphs is told once.
    """
    found = {}
    for regime in (Regime.LIVE, Regime.CAPTURED):
        mine = [judged for judged in cases if judged.case.regime is regime]
        if mine:
            found[regime] = sum_up(mine, source, model_class, rules=RULES)
    captured = found[Regime.CAPTURED].rows if Regime.CAPTURED in found else ()
    broken = {row.rule: row.trace for row in captured if row.verdict in BROKEN}
    return Standings(found, same_without_graphs(cases, broken, replay))
