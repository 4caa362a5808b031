"""One trace, played step by step, and judged by the oracles after as many steps as one likes."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import TYPE_CHECKING

import torch

from deepstack_harness.contract.case import Case, Judgement, Observation, StepFacts
from deepstack_harness.contract.ledger import Ledger
from deepstack_harness.contract.rules import Rule, Verdict
from deepstack_harness.contract.trace import Step, Trace
from deepstack_harness.errors import NotMeasured
from deepstack_harness.oracles.all_rules import judge_all

if TYPE_CHECKING:
    from deepstack_harness.fuzzing.session import Ground
    from deepstack_harness.play.player import Player


class Live:
    """A trace in the making on a fresh buffer; its ledger says what holds now."""

    def __init__(self, ground: Ground, case: Case, player: Player) -> None:
        """Nothing is played yet; `case` is the case that the steps make up, but for its trace."""
        sizes = ground.model.family
        self.steps: list[Step] = []
        self.facts: list[StepFacts] = []
        self.capacity = case.trace.capacity
        """Of the buffer when it was made."""
        self.ledger = Ledger(self.capacity, sizes.levels, sizes.hidden)
        self.unmeasured: str | None = None
        self._ground = ground
        self._case = case
        self._player = player

    def do(self, step: Step) -> None:
        """Play one step; nothing more is played once a step could not be measured.

        Raises `OutOfMemory` where the step found the memory used up.
        """
        if self.unmeasured:
            return
        self.steps.append(step)
        try:
            facts = self._player.play(len(self.steps) - 1, step)
        except NotMeasured as error:
            self.steps.pop()
            self.unmeasured = f"'{step}': {error}"
            return
        self.facts.append(facts)
        self.ledger.expect(step)
        self.ledger.commit(step, accepted=facts.raised is None, capacity=facts.capacity)

    @property
    def rows(self) -> int:
        """Rows that the buffer says it has now; as many as it was made with before the first step."""
        return self.facts[-1].capacity if self.facts else self.capacity

    @property
    def tokens(self) -> int:
        """N: rows that must hold data now."""
        return self.ledger.tokens

    @property
    def state(self) -> tuple[object, ...]:
        """What is the same in two moments that look alike: rows, N, and what the last answer was made of."""
        answer = self.facts[-1].answer if self.facts else None
        runs = answer.rows[0] if answer and answer.rows else ()
        shape = tuple((run.payload is None or bool(run.payload), run.rows) for run in runs)
        return (self.rows, self.tokens, shape)

    @property
    def trace(self) -> Trace:
        """What was played so far."""
        return Trace(self.capacity, tuple(self.steps))

    def upto(self, steps: int) -> Live:
        """The first `steps` of it, as they were seen."""
        part = copy.copy(self)
        part.steps, part.facts = self.steps[:steps], self.facts[:steps]
        return part

    def broken(self) -> dict[Rule, Judgement]:
        """Every rule that the trace breaks up to here."""
        if not self.steps:
            return {}
        case = self._ground.case_of(self._case, tuple(self.steps))
        said = judge_all(case, self._observation())
        return {one.rule: one for one in said if one.verdict is Verdict.FAIL}

    def _observation(self) -> Observation:
        family = self._ground.model.family
        graphs, error = None, None
        try:
            graphs = self._ground.graph_facts()
            graphs = graphs and replace(graphs, graphs=self.facts[-1].graphs)  # as many as there were then
        except NotMeasured as unmeasured:
            error = str(unmeasured)
        return Observation(
            dtype=self._case.dtype, device=str(self._ground.model.device), levels=family.levels,
            hidden=family.hidden, torch=str(torch.__version__), steps=tuple(self.facts), graphs=graphs,
            vision=self._player.vision, routed=family.routed, error=error,
        )  # fmt: skip
