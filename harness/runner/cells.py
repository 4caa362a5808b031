"""Planned cases, played and judged one after the other in this process."""

import functools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import cast

from harness.case import Case, Judgement, Observation, Row
from harness.matrix import Planned
from harness.oracles.every import judge_all
from harness.play import Model, play
from harness.protocols import BufferFactory
from harness.registry import REVISIONS, resolve
from harness.rules import Rule, Verdict


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
        model = _shared_model(case.family, case.dtype, case.device, case.seed)
        observation = play(case, model, self._factory(case.revision))
        return Cell(planned, observation, tuple(judge_all(case, observation)))

    def _factory(self, revision: str) -> BufferFactory:
        if revision in self._bound:
            return self._bound[revision]
        return cast(BufferFactory, resolve("revision", REVISIONS, revision))


@functools.cache
def _shared_model(family: str, dtype: str, device: str, seed: int) -> Model:
    """Drawn once: no run changes it."""
    return Model.build(family, dtype, device, seed)
