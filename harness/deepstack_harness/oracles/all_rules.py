"""The oracles of all rules, and how an observed case is judged by them."""

from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from typing import NamedTuple

from deepstack_harness.contract.rules import Rule
from deepstack_harness.contract.verdicts import BROKEN, Judgement
from deepstack_harness.oracles import (
    address,
    contract,
    graphs,
    memory,
    output,
    placement,
    sharding,
    structure,
    work,
)
from deepstack_harness.oracles.effect import effect_of
from deepstack_harness.oracles.extensions import refined
from deepstack_harness.oracles.observed_case import ObservedCase
from deepstack_harness.oracles.row_origins import Deviation

Oracle = Callable[[ObservedCase], Judgement]


class RuleOracle(NamedTuple):
    """A rule, the function that judges it, and what its figure is."""

    rule: Rule
    judge: Oracle
    figure: str


ORACLES: tuple[RuleOracle, ...] = (
    RuleOracle(Rule.R0, output.judge, "distance of compiled to eager"),
    RuleOracle(Rule.R1, structure.judge, "answers that are None or lack a level"),
    RuleOracle(Rule.R2, contract.boundary, "wrong rows, counts and exceptions within the capacity"),
    RuleOracle(Rule.R3, contract.freshness, "rows of a replaced payload"),
    RuleOracle(Rule.R4, contract.capacity, "rows lost or short above the capacity"),
    RuleOracle(Rule.R5, contract.clear, "rows of a cleared payload"),
    RuleOracle(Rule.R6, address.judge, "storage that moved unannounced"),
    RuleOracle(Rule.R7, placement.judge, "levels in another dtype or on another device"),
    RuleOracle(Rule.R8, contract.rejection, "bad calls accepted, or rejected with the state changed"),
    RuleOracle(Rule.R9, sharding.judge, "rows of another rank, outputs off the unsharded run"),
    RuleOracle(
        Rule.R10,
        work.judge,
        "rows that opaque attention and kernels on a payload processed, against those asked for",
    ),
    RuleOracle(Rule.R11, graphs.judge, "graphs built against the budget, breaks, fall-back"),
)
"""The oracles of the buffer, in the order of the rules; other packages may refine one (`extensions`)."""
OF_ACCESSES = (
    RuleOracle(Rule.R14, memory.judge_case, "bytes touched outside of tensors, rows of unwritten memory"),
)
"""Oracles of arms whose code is interpreted: no other arm knows what its kernels touch."""


def judge_all(observed: ObservedCase, rules: Collection[Rule] | None = None) -> list[Judgement]:
    """Return one judgement per rule (or of `rules` alone), in the order of the oracles."""
    oracles = (*ORACLES, *OF_ACCESSES) if observed.case.arm.interpreted else ORACLES
    wanted = (one for one in oracles if rules is None or one.rule in rules)
    return [_with_effect(refined(one.judge(observed), observed), observed) for one in wanted]


def _with_effect(judgement: Judgement, observed: ObservedCase) -> Judgement:
    if judgement.verdict not in BROKEN:
        return judgement
    return replace(judgement, effect=effect_of(judgement, _deviations(judgement.rule, observed)))


def _deviations(rule: Rule, observed: ObservedCase) -> Sequence[Deviation]:
    own = {Rule.R0: output.crashes, Rule.R9: sharding.deviations}.get(rule)
    return own(observed) if own else observed.audited().of(rule)
