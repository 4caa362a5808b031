"""Observe a splitter: the rows that each rank adds, one rank after the other, without a process group."""

from collections.abc import Iterator

import torch
from torch import Tensor

from deepstack_harness.binding.splitter import PayloadSplitter
from deepstack_harness.contract.case import HIDDEN_ALONE, LEVELS_ALONE, Case
from deepstack_harness.contract.observation import Observation, Raised, ShardFacts, StepFacts
from deepstack_harness.contract.trace import Op, Step
from deepstack_harness.errors import passes_through
from deepstack_harness.play.payloads import values_of
from deepstack_harness.probes.rows import RowOwners, answer_facts


def observe_split(case: Case, splitter: PayloadSplitter) -> Observation:
    """Play a trace of sets and forwards: every forward is one step that all ranks share."""
    steps = tuple(_SplitTrace(case, splitter).play())
    return Observation(case.dtype, case.device, LEVELS_ALONE, HIDDEN_ALONE, str(torch.__version__), steps)


class _SplitTrace:
    """One case: the payload of the step that comes next, and the owners of all rows."""

    def __init__(self, case: Case, splitter: PayloadSplitter) -> None:
        self._case = case
        self._splitter = splitter
        self._owners = RowOwners()
        self._generator = torch.Generator().manual_seed(case.seed)
        self._sets = 0
        self._payload: Tensor | None = None
        self._marks: Tensor | None = None

    def play(self) -> Iterator[StepFacts]:
        for step in self._case.trace:
            yield self._set(step) if step.op is Op.SET else self._forward(step)

    def _set(self, step: Step) -> StepFacts:
        self._sets += 1
        drawn = torch.randn((LEVELS_ALONE, step.tokens, HIDDEN_ALONE), generator=self._generator)
        payload = values_of(step, drawn)
        self._owners.remember(self._sets, payload)
        marks = torch.zeros(step.tokens, dtype=torch.bool)
        for start, end in ((0, step.tokens),) if step.spans is None else step.spans:
            marks[start:end] = True
        self._payload, self._marks = (payload, marks) if step.tokens else (None, None)
        return StepFacts(str(step), self._case.trace.capacity)

    def _forward(self, step: Step) -> StepFacts:
        whole = torch.zeros(LEVELS_ALONE, step.tokens, HIDDEN_ALONE)
        if self._payload is not None:
            whole[:, : self._payload.size(1)] = self._payload
        answer = answer_facts(tuple(whole), self._owners)
        ranks, shards = self._case.arm.ranks, []
        try:
            for rank in range(ranks):
                rows = self._rows(rank, ranks, step.tokens)
                shards.append(ShardFacts(rank, ranks, self._owners.runs_of(rows)))
        except BaseException as error:
            if passes_through(error):
                raise
            said = Raised(type(error).__name__, f"rank {rank} of {ranks}: {error}", "decoder", "")
            return StepFacts(str(step), self._case.trace.capacity, answer=answer, raised=said)
        self._payload = self._marks = None
        return StepFacts(str(step), self._case.trace.capacity, answer=answer, shards=tuple(shards))

    def _rows(self, rank: int, ranks: int, tokens: int) -> tuple[Tensor, ...]:
        levels = [torch.ones(1, HIDDEN_ALONE)] * LEVELS_ALONE
        if self._payload is not None and self._marks is not None:
            levels = [level[self._marks].clone() for level in self._payload]
        rows = self._splitter.rows(rank, ranks, self._marks, levels, tokens)
        # A splitter that is given nothing adds nothing.
        return rows or tuple(torch.zeros(LEVELS_ALONE, tokens // ranks, HIDDEN_ALONE))
