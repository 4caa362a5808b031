"""A class is judged as Python makes it, whatever gives its objects another method than its body says."""

from dataclasses import fields
from pathlib import Path

import pytest

from cases.by_day import by_day
from cases.selftest.engines.in_process_worker import InProcessWorker
from cases.selftest.engines.rebound_classes import HIDDEN, NAME, RIGHT, WRONG, Rebound
from deepstack_harness.audit.classes import judge_class
from deepstack_harness.contract.case import Regime
from deepstack_harness.contract.rules import Rule
from deepstack_harness.contract.verdicts import BROKEN
from deepstack_harness.errors import Reason


def judged(of: Rebound, root: Path) -> set[tuple[Rule, Regime]] | tuple[Reason, ...]:
    """Return the rules that the class breaks, or the reasons why it was refused.

    R8 is left out: the samples accept a clear of a negative count, as released classes do.
    """
    worker = InProcessWorker(str(of.tree(root)))
    (found,) = (each for each in worker.classes() if each.model_class == NAME)
    if not found.can_be_judged:
        return found.ways.refusals
    assert found.ways.methods
    broken = {(row.rule, row.regime) for row in judge_class(found, worker).rows if row.verdict in BROKEN}
    return broken - {(Rule.REJECTION, Regime.LIVE)}


def place(of: Rebound) -> tuple[str, ...]:
    """Return the last part of the source in which a class is bound anew: daily one class of each."""
    parts = (part.name for part in fields(of) if getattr(of, part.name) != getattr(Rebound(), part.name))
    return (*parts, *(["metaclass"] if "metaclass" in of.bases else []))[-1:]


@pytest.mark.parametrize("means", by_day(WRONG, lambda means: place(WRONG[means])))
def test_a_clear_that_python_gives_the_objects_is_the_one_that_is_judged(means: str, tmp_path: Path) -> None:
    broken = judged(WRONG[means], tmp_path)
    assert broken == {(Rule.CLEAR, Regime.LIVE), (Rule.CLEAR, Regime.CAPTURED)}


@pytest.mark.parametrize("means", by_day(HIDDEN, lambda means: place(HIDDEN[means])))
def test_a_clear_that_cannot_be_followed_refuses_the_class_with_its_place(means: str, tmp_path: Path) -> None:
    result = judged(HIDDEN[means], tmp_path)
    if isinstance(result, set):
        assert (Rule.CLEAR, Regime.LIVE) in result
        return
    assert all(why.file and why.line for why in result)
    assert all("rebound" in why.text or "made by code" in why.text for why in result)


@pytest.mark.parametrize("means", by_day(RIGHT, lambda means: place(RIGHT[means])))
def test_the_same_means_used_rightly_keep_every_rule(means: str, tmp_path: Path) -> None:
    assert judged(RIGHT[means], tmp_path) == set()
