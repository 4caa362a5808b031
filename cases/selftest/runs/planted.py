"""Buffers with one planted fault, or with two, and runs of the real matrix over them.

Written from the text of the contract before `compare` grouped anything, so that no
grouping is fitted to them.
"""

from collections.abc import Mapping
from pathlib import Path

from torch import Tensor

from cases.selftest.runs.written_results import here
from deepstack_harness.catalogue.plans import AUDIT_TRACES, CAPTURE_TRACES, CONTRACT_TRACES, Where, plan_check
from deepstack_harness.contract.arm import ArmSpec
from deepstack_harness.contract.case import Case, PlannedCase, registered
from deepstack_harness.contract.oracles.judge import judge_case
from deepstack_harness.contract.rules import Rule
from deepstack_harness.contract.trace import Trace
from deepstack_harness.models.reference import ReferenceBuffer
from deepstack_harness.play.play_case import play_case
from deepstack_harness.runs.case_result import CaseResult, result_of
from deepstack_harness.runs.records import About, Files, Planning
from deepstack_harness.runs.store import RunWriter, now

Levels = tuple[Tensor, ...] | None


class NoneWhenEmpty(ReferenceBuffer):
    """R1, as in vLLM issue 43602: get returns None while nothing is set."""

    def get(self, tokens: int) -> Levels:
        answer = super().get(tokens)
        return answer if self._tokens_set else None


class OneLevelLess(ReferenceBuffer):
    """R1: get leaves out the last level."""

    def get(self, tokens: int) -> Levels:
        return (super().get(tokens) or ())[:-1]


class OneRowLess(ReferenceBuffer):
    """R2: get leaves out the last row."""

    def get(self, tokens: int) -> Levels:
        return tuple(level[: max(tokens - 1, 0)] for level in super().get(tokens) or ())


class RaisesWithoutPayload(ReferenceBuffer):
    """R2: clear raises where nothing is set."""

    def clear(self, tokens: int) -> None:
        if tokens >= 0 and not self._tokens_set:
            raise RuntimeError("nothing to clear")
        super().clear(tokens)


class KeepsOldRows(ReferenceBuffer):
    """R3: set leaves the rows of a longer payload after its own."""

    def set(self, payload: Tensor) -> None:
        tokens = self._check(payload)
        self._make_room(tokens)
        for level, rows in zip(self._levels, payload, strict=True):
            level[:tokens].copy_(rows)
        self._tokens_set = max(tokens, self._tokens_set)


class ChangesArgument(ReferenceBuffer):
    """R3: set doubles the tensor of its caller."""

    def set(self, payload: Tensor) -> None:
        super().set(payload)
        payload.mul_(2)


class LosesRowsInResize(ReferenceBuffer):
    """R4: new storage is empty."""

    def resize(self, tokens: int) -> None:
        super().resize(tokens)
        for level in self._levels:
            level.zero_()


class ClearsNothing(ReferenceBuffer):
    """R5: clear leaves every row."""

    def clear(self, tokens: int) -> None:
        if tokens < 0:
            raise ValueError("a count is 0 or more")


class MovesInSet(ReferenceBuffer):
    """R6: set moves the storage and announces nothing."""

    def set(self, payload: Tensor) -> None:
        super().set(payload)
        self._retired.append(self._levels)
        self._levels = [level.clone() for level in self._levels]


class AnswersInDouble(ReferenceBuffer):
    """R7: get returns float64."""

    def get(self, tokens: int) -> Levels:
        return tuple(level.double() for level in super().get(tokens) or ())


class TakesNegativeGet(ReferenceBuffer):
    """R8: get(-1) returns."""

    def get(self, tokens: int) -> Levels:
        return super().get(max(tokens, 0))


class TakesAnyWidth(ReferenceBuffer):
    """R8: set takes a payload of another hidden size, and stores nothing of it."""

    def set(self, payload: Tensor) -> None:
        if payload.size(2) == self._levels[0].size(1):
            super().set(payload)


SINGLE: Mapping[type[ReferenceBuffer], Rule] = {
    NoneWhenEmpty: Rule.STRUCTURE, OneLevelLess: Rule.STRUCTURE, OneRowLess: Rule.BOUNDARY,
    RaisesWithoutPayload: Rule.BOUNDARY,
    KeepsOldRows: Rule.FRESHNESS, ChangesArgument: Rule.FRESHNESS, LosesRowsInResize: Rule.CAPACITY,
    ClearsNothing: Rule.CLEAR,
    MovesInSet: Rule.ADDRESS, AnswersInDouble: Rule.PLACEMENT, TakesNegativeGet: Rule.REJECTION,
    TakesAnyWidth: Rule.REJECTION,
}  # fmt: skip
"""One fault, and the rule that has to head its one finding."""


class NoneAndClear(NoneWhenEmpty, ClearsNothing):
    """R1 and R5."""


class ClearAndNegative(ClearsNothing, TakesNegativeGet):
    """R5 and R8."""


class ResizeAndArgument(LosesRowsInResize, ChangesArgument):
    """R4 and R3."""


class NegativeAndWidth(TakesNegativeGet, TakesAnyWidth):
    """R8 twice: in get and in set."""


class RaisesAndArgument(RaisesWithoutPayload, ChangesArgument):
    """R2 and R3."""


class DoubleAndNegative(AnswersInDouble, TakesNegativeGet):
    """R7 and R8."""


class OldRowsAndClear(KeepsOldRows, ClearsNothing):
    """R3 and R5."""


class RowAndWidth(OneRowLess, TakesAnyWidth):
    """R2 and R8."""


PAIRS: Mapping[type[ReferenceBuffer], tuple[Rule, Rule]] = {
    NoneAndClear: (Rule.STRUCTURE, Rule.CLEAR), ClearAndNegative: (Rule.CLEAR, Rule.REJECTION),
    ResizeAndArgument: (Rule.FRESHNESS, Rule.CAPACITY), NegativeAndWidth: (Rule.REJECTION, Rule.REJECTION),
    RaisesAndArgument: (Rule.BOUNDARY, Rule.FRESHNESS), DoubleAndNegative: (Rule.PLACEMENT, Rule.REJECTION),
    OldRowsAndClear: (Rule.FRESHNESS, Rule.CLEAR), RowAndWidth: (Rule.BOUNDARY, Rule.REJECTION),
}  # fmt: skip
"""Two faults, and the rules that have to head their two findings."""

COMPILED = (
    "cap 16: profile 16; set 9; forward 16; clear 16; forward 16",
    "cap 16: set 9; forward 16; set 3; forward 16",
)
"""Traces that are played under a compiled decoder; each costs a second."""


def plan(name: str = "reference", *, compiled: bool = False) -> list[PlannedCase]:
    """The contract of one registered buffer, uncompiled and captured; or with the guards dropped."""
    buffer, arm = registered(name), ArmSpec.parse("eager/drop_all")
    if compiled:
        return [PlannedCase(Case("qwen3_vl", buffer, Trace.parse(text), arm), None) for text in COMPILED]
    return plan_check(Where("qwen3_vl"), buffer, (*AUDIT_TRACES, *CONTRACT_TRACES, *CAPTURE_TRACES))


_PLAYED: dict[tuple[type[ReferenceBuffer], str, bool], tuple[CaseResult, ...]] = {}


def play(
    made: type[ReferenceBuffer], name: str = "reference", *, compiled: bool = False
) -> tuple[CaseResult, ...]:
    """Play the plan with `made` in the place of the registered buffer, as if its file had been edited."""
    key = (made, name, compiled)
    if key not in _PLAYED:
        _PLAYED[key] = tuple(
            result_of(judge_case(planned, play_case(planned.case, {registered(name): made})), 0.01)
            for planned in plan(name, compiled=compiled)
        )
    return _PLAYED[key]


def stored(folder: Path, *results: CaseResult, planned: int | None = None) -> Path:
    """The folder of a run with these results; unfinished where more were planned."""
    about = About(
        "0", now(), None, (), None, "ci", None, here(), Planning(1, planned or len(results)), "plan"
    )
    writer = RunWriter(Files(folder), about, resume=False)
    for result in results:
        writer.append(result.rows, result.case)
    if planned is None:
        writer.finish()
    writer.close()
    return folder
