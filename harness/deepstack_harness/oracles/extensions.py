"""Oracles of other installed packages, each of which refines one rule of the buffer.

An entry point in `deepstack_harness.oracles` is called RULE.NAME, such as `R2.finite_rows`, and is a
function that takes what our oracles take and answers with a judgement of that rule.  The function can
add a FAIL or an ERROR to the judgement of the rule.  It can neither turn a FAIL of ours into a PASS nor
judge a rule of its own.  There is one row per rule in any case, so that reports, baselines, expectations
and exit codes need to know nothing about other packages; whoever installs an oracle asks for it.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache

from typing_extensions import TypeIs

from deepstack_harness.catalogue.registry import EXTRA_ORACLES
from deepstack_harness.contract.case import Judgement
from deepstack_harness.contract.rules import Rule, Verdict
from deepstack_harness.errors import UsageError
from deepstack_harness.oracles.base import error

_WITHOUT_BUFFER = frozenset({Rule.R12, Rule.R13})
_SEVERITY = {Verdict.ERROR: 1, Verdict.FAIL: 2}
"""Judgements of another package that count, the weaker first; all others are 0."""


@dataclass(frozen=True)
class ExtraOracle:
    """A function of another package that refines the judgement of `rule`."""

    label: str
    rule: Rule
    judge: Callable[..., object]


@cache
def extra_oracles() -> tuple[ExtraOracle, ...]:
    """Import the oracles of other packages.

    Raises `UsageError` for one that cannot be imported, or whose name does not begin with a rule.
    """
    return tuple(map(_loaded, EXTRA_ORACLES))


def _loaded(name: str) -> ExtraOracle:
    owner = EXTRA_ORACLES[name].distribution
    if sentence := misnamed(name, owner):
        raise UsageError(sentence)
    judge = EXTRA_ORACLES.load(name, _judges, "a function that judges a case")
    return ExtraOracle(f"{name} of {owner}", Rule(name.partition(".")[0]), judge)


def misnamed(name: str, distribution: str) -> str:
    """Return a sentence about the name of an oracle that does not begin with a rule, else nothing."""
    prefix, _, own = name.partition(".")
    rules = [rule for rule in Rule if rule not in _WITHOUT_BUFFER]
    if prefix in rules and own:
        return ""
    return (
        f"oracle '{name}' of {distribution} is not called RULE.NAME with a rule of the buffer "
        f"({', '.join(rules)}), as R2.{own or name} would be"
    )


def _judges(found: object) -> TypeIs[Callable[..., object]]:
    return callable(found)


def refined(judgement: Judgement, *observed: object) -> Judgement:
    """Return our judgement of a rule, or the worse one of another package's oracle of that rule.

    `observed` are the arguments that the oracle of ours was given.
    """
    for extra in extra_oracles():
        if extra.rule is judgement.rule:
            other = _judged(extra, observed)
            if _SEVERITY.get(other.verdict, 0) > _SEVERITY.get(judgement.verdict, 0):
                judgement = replace(other, detail=f"{extra.label}: {other.detail}")
    return judgement


def _judged(extra: ExtraOracle, observed: tuple[object, ...]) -> Judgement:
    try:
        judgement = extra.judge(*observed)
    except Exception as problem:  # noqa: BLE001  # another package may raise anything
        return error(extra.rule, f"raised {type(problem).__name__}: {problem}")
    if not isinstance(judgement, Judgement) or judgement.rule is not extra.rule:
        return error(extra.rule, f"answered {judgement!r:.200}, which is no judgement of {extra.rule}")
    return judgement
