"""The oracles of all rules, and how an observed case is judged by them."""

from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from typing import NamedTuple, cast

from deepstack_harness.catalogue import registry
from deepstack_harness.contract.rules import Rule
from deepstack_harness.contract.verdicts import BROKEN, Judgement
from deepstack_harness.oracles import (
    address,
    contract,
    graphs,
    output,
    placement,
    sharding,
    structure,
    work,
)
from deepstack_harness.oracles.effect import effect_of
from deepstack_harness.oracles.observed_case import ObservedCase
from deepstack_harness.oracles.row_origins import Deviation

Oracle = Callable[[ObservedCase], Judgement]


class RuleOracle(NamedTuple):
    """A rule and the function that judges it."""

    rule: Rule
    judge: Oracle


ORACLES: tuple[RuleOracle, ...] = (
    RuleOracle(Rule.R0, output.judge),
    RuleOracle(Rule.R1, structure.judge),
    RuleOracle(Rule.R2, contract.boundary),
    RuleOracle(Rule.R3, contract.freshness),
    RuleOracle(Rule.R4, contract.capacity),
    RuleOracle(Rule.R5, contract.clear),
    RuleOracle(Rule.R6, address.judge),
    RuleOracle(Rule.R7, placement.judge),
    RuleOracle(Rule.R8, contract.rejection),
    RuleOracle(Rule.R9, sharding.judge),
    RuleOracle(Rule.R10, work.judge),
    RuleOracle(Rule.R11, graphs.judge),
)
"""Our oracles of the buffer, in the order of the rules."""


def every_oracle() -> tuple[RuleOracle, ...]:
    """Return our oracles, and behind them those that other packages have put into the registry."""
    ours = {one.rule for one in ORACLES}
    return (*ORACLES, *(_resolved(name) for name in registry.ORACLES if name not in ours))


def judge_all(observed: ObservedCase, rules: Collection[Rule] | None = None) -> list[Judgement]:
    """Return one judgement per rule (or of `rules` alone), in the order of the oracles."""
    wanted = (one for one in every_oracle() if rules is None or one.rule in rules)
    return [_with_effect(one.judge(observed), observed) for one in wanted]


def _with_effect(judgement: Judgement, observed: ObservedCase) -> Judgement:
    if judgement.verdict not in BROKEN:
        return judgement
    return replace(judgement, effect=effect_of(judgement, _deviations(judgement.rule, observed)))


def _deviations(rule: Rule, observed: ObservedCase) -> Sequence[Deviation]:
    own = {Rule.R0: output.crashes, Rule.R9: sharding.deviations}.get(rule)
    return own(observed) if own else observed.audited().of(rule)


def _resolved(name: str) -> RuleOracle:
    return RuleOracle(Rule(name), cast(Oracle, registry.resolve("oracle", registry.ORACLES, name)))
