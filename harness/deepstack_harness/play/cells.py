"""Planned cases, played and judged one after the other in this process."""

from collections.abc import Mapping
from dataclasses import dataclass

from deepstack_harness.catalogue.matrix import Planned
from deepstack_harness.catalogue.registry import ORACLES
from deepstack_harness.contract.case import Case, Judgement, Observation
from deepstack_harness.contract.protocols import BufferFactory
from deepstack_harness.contract.row import Row
from deepstack_harness.contract.rules import Rule, Verdict
from deepstack_harness.oracles.all_rules import judge_all
from deepstack_harness.oracles.base import error
from deepstack_harness.play.in_process import play_here
from deepstack_harness.play.ranks.play import play_among_ranks


@dataclass(frozen=True)
class Cell:
    """One played case: the plan, the facts, and what every oracle says."""

    planned: Planned
    observation: Observation
    judgements: tuple[Judgement, ...]

    @property
    def case(self) -> Case:
        """The case that was played."""
        return self.planned.case

    @property
    def broken(self) -> frozenset[Rule]:
        """Rules that FAIL."""
        return self._rules(Verdict.FAIL)

    @property
    def unjudged(self) -> frozenset[Rule]:
        """Rules that ended as ERROR."""
        return self._rules(Verdict.ERROR)

    @property
    def as_expected(self) -> bool:
        """Whether exactly the expected rules are broken, and every rule could be judged."""
        return not self.unjudged and self.planned.must_break in (None, self.broken)

    def rows(self, incident: str | None) -> list[Row]:
        """One row per rule."""
        return [Row.of(self.case, said, self.observation.torch, incident) for said in self.judgements]

    def _rules(self, verdict: Verdict) -> frozenset[Rule]:
        return frozenset(said.rule for said in self.judgements if said.verdict is verdict)


class Runner:
    """Plays cases; buffers come from revisions or from bound sources."""

    def __init__(self, bound: Mapping[str, BufferFactory] | None = None) -> None:
        """`bound` maps labels of upstream sources to their classes."""
        self._bound = dict(bound or {})

    def play(self, planned: Planned) -> Cell:
        """Play and judge one case."""
        case = planned.case
        played = play_among_ranks if case.arm.ranks > 1 else play_here
        observation = played(case, self._bound)
        return Cell(planned, observation, tuple(_judged(case, observation)))


def _judged(case: Case, observation: Observation) -> list[Judgement]:
    """All oracles; where ranks died or hung, every rule is ERROR, and R9 has what they printed."""
    if observation.steps:
        return judge_all(case, observation)
    why = observation.error or "no step was played"
    return [error(Rule(rule), why if rule == Rule.R9 else why.splitlines()[0]) for rule in ORACLES]
