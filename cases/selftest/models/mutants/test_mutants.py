"""Mutants: one fault each, caught by its rule and by no other; the reference by none."""

import inspect
from pathlib import Path

import pytest

from cases.by_day import by_day
from cases.selftest.models.checking import broken_in
from cases.selftest.play.playing import broken, judge
from cases.shallow import shallow
from deepstack_harness.catalogue.buffers import (
    ALL_MUTANTS,
    MUTANTS,
    buffer_named,
    read_mutants,
)
from deepstack_harness.catalogue.plans import CAPTURE_TRACES, CONTRACT_TRACES, check_traces
from deepstack_harness.contract.arm import EAGER, ArmSpec
from deepstack_harness.contract.case import Compare, Regime
from deepstack_harness.contract.names import imported
from deepstack_harness.contract.rules import Rule
from deepstack_harness.contract.trace import Trace
from deepstack_harness.models.reference import ReferenceBuffer
from deepstack_harness.play.model import Model

INPUT_MUTANTS = {name: mutant for name, mutant in ALL_MUTANTS.items() if mutant.on_inputs}
LURES = (
    # Everything is read after every step, so that a row goes wrong in one step only.
    "cap 16: get 16; set 1; get 16; get 1; get 0; set 9; get 16; set 0; get 16",
    "cap 16: set 16; get 16; clear 16; get 16; set 9; clear 0; get 16; set 5; clear 5; get 16; set 4; get 16",
    "cap 16: set 9; get 16; clear 9; resize 16; get 16",
    "cap 16: resize 4; set 4; get 4; resize 9; get 9; resize 4; get 4; resize 3; get 4; set 12; get 12",
    "cap 16: " + "; ".join(f"set {tokens}; get 16" for tokens in range(1, 11)),
    "cap 16: get 16; set 3 hidden=129; set 3; get 16; set 3 levels=4; set 3; get 16; set 3 levels=2; get 16",
    "cap 16: set 9; get 16; get -1; get 16; clear -1; get 16; resize -1; get 16",
    "cap 16: set 16; get 16; get 17; get 16; set 20; get 16; get 20; set 24; get 24",
)
TRACES = {
    "eager": (*CONTRACT_TRACES, *LURES),
    "eager/full": (
        *CAPTURE_TRACES,
        "cap 16: capture 16; replay 16; resize 20; get 16; resize 24; get 16; replay 16",
        "cap 16: capture 16; capture 8; get 16; set 9; get 16; replay 16; get 16; get 20; get 16; replay 8",
    ),
    "eager/full_decode_only": (*CAPTURE_TRACES, "cap 16: capture 16; capture 4; set 9; replay 16; replay 4"),
    "eager/stock": ("cap 16: profile 16; set 16; forward 16; resize 20; forward 16",),
}


def rules_broken(model: Model, buffer: str, arm: ArmSpec) -> set[Rule]:
    """Without R0: an output is wrong besides, wherever a replay read wrong rows."""
    compare = Compare.NOTHING if arm == EAGER else Compare.EAGER
    model = shallow("qwen3_vl") if arm.compiled else model
    rules = (broken(judge(model, trace, buffer, arm, compare)) for trace in TRACES[arm.name])
    return set().union(*rules) - {Rule.OUTPUT}


@pytest.mark.parametrize("mutant", by_day(MUTANTS, lambda name: (MUTANTS[name].rule, MUTANTS[name].arm)))
def test_a_mutant_is_caught_by_its_rule_and_by_no_other(qwen: Model, mutant: str) -> None:
    arm = ArmSpec.parse(MUTANTS[mutant].arm)
    assert rules_broken(qwen, mutant, arm) == {MUTANTS[mutant].rule}


@pytest.mark.parametrize("arm", by_day(TRACES, count=2))
def test_the_reference_breaks_nothing_on_the_traces_that_catch_mutants(qwen: Model, arm: str) -> None:
    assert rules_broken(qwen, "reference", ArmSpec.parse(arm)) == set()


@pytest.mark.parametrize(
    "mutant",
    by_day(
        (name for name, mutant in MUTANTS.items() if mutant.arm == "eager/full"),
        lambda name: MUTANTS[name].rule,
    ),
)
def test_a_mutant_of_the_captured_regime_is_right_in_the_live_one(qwen: Model, mutant: str) -> None:
    assert rules_broken(qwen, mutant, EAGER) == set()


@pytest.mark.parametrize("mutant", [name for name, mutant in MUTANTS.items() if mutant.arm == "eager/stock"])
def test_answers_that_cost_graphs_are_seen_without_a_compiler(qwen: Model, mutant: str) -> None:
    assert rules_broken(qwen, mutant, EAGER) == {Rule.GRAPHS}


def test_there_are_mutants_for_every_rule_that_a_buffer_can_break() -> None:
    assert len(MUTANTS) >= 40
    # R0 is broken besides; R9 and R10 are broken by callers and families, R12 to R14 outside of the buffer.
    beside = {Rule.OUTPUT, Rule.SHARDING, Rule.WORK, Rule.RANGES, Rule.ORDERING, Rule.MEMORY}
    assert {mutant.rule for mutant in MUTANTS.values()} == set(Rule) - beside


@pytest.mark.parametrize("name", ALL_MUTANTS)
def test_the_index_agrees_with_the_class(name: str) -> None:
    mutant = ALL_MUTANTS[name]
    made_by = imported(mutant.target)
    assert isinstance(made_by, type)
    assert issubclass(made_by, ReferenceBuffer)
    assert getattr(made_by, "arm", "eager") == mutant.arm
    assert mutant.target.partition(":")[0].endswith(f".{mutant.rule.lower()}")
    assert (inspect.getdoc(made_by) or "").startswith(mutant.summary)
    assert mutant.summary.endswith(".")


def test_a_file_that_is_named_after_no_rule_holds_no_mutant_that_goes_unnoticed(tmp_path: Path) -> None:
    (tmp_path / "r99.py").write_text("class AnswersNothing(ReferenceBuffer):\n    pass\n")
    with pytest.raises(ValueError, match="R99"):
        read_mutants(tmp_path)


def test_names_are_those_of_the_classes_unless_they_state_another(tmp_path: Path) -> None:
    (tmp_path / "r1.py").write_text('class AnswersNothing(ReferenceBuffer):\n    """Answers None."""\n')
    (tmp_path / "r2.py").write_text(
        'class LosesRow16(ReferenceBuffer):\n    name = "loses_row_16"\n    arm = "eager/full"\n'
    )
    mutants = read_mutants(tmp_path)
    assert [(name, mutant.rule, mutant.arm, mutant.summary) for name, mutant in mutants.items()] == [
        ("answers_nothing", Rule.STRUCTURE, "eager", "Answers None."),
        ("loses_row_16", Rule.BOUNDARY, "eager/full", ""),
    ]


ALSO_ON_PLAIN_TRACES = {
    "wider_when_empty", "one_scratch", "overstates_capacity", "zeroes_callers_tensor", "parts_never_end",
    "forgets_before_it_grows", "resize_makes_no_room", "cuts_at_resize_below_n", "empty_expanded",
    "cuts_hidden", "stores_nan_in_callers_tensor", "stacks_levels", "bumps_the_version",
    "answers_another_tuple", "answers_parameters", "spreads_a_single_row", "turns_no_rows",
    "takes_swapped_sizes",
}  # fmt: skip
"""Those that the older traces catch too, now that widths, earlier results and strides are compared."""


def is_long(text: str) -> bool:
    """Two traces, of a thousand steps and of 33,000 rows, take as long as the ninety others."""
    trace = Trace.parse(text)
    return len(trace.steps) > 1000 or trace.capacity > 10_000


LONG = [text for text in check_traces() if is_long(text)]
SHORT = [text for text in check_traces() if not is_long(text)]


def rule_of(name: str) -> Rule:
    return INPUT_MUTANTS[name].rule


@pytest.mark.parametrize(("number", "name"), [*enumerate(INPUT_MUTANTS)])
def test_its_share_of_the_traces_sees_no_other_fault_of_a_mutant_of_inputs(number: int, name: str) -> None:
    """Every day each trace is played on two mutants."""
    share = [trace for at, trace in enumerate(SHORT) if (at - number) % len(INPUT_MUTANTS) < 2]
    assert set(broken_in(buffer_named(name), Regime.LIVE, share)) <= {rule_of(name)}


@pytest.mark.slow  # 3 s each
@pytest.mark.parametrize("name", INPUT_MUTANTS)
def test_a_mutant_of_inputs_is_caught_by_its_rule_and_by_no_other(name: str) -> None:
    make = buffer_named(name)
    caught = broken_in(make, Regime.LIVE, SHORT) or broken_in(make, Regime.LIVE, LONG)
    assert set(caught) == {rule_of(name)}


@pytest.mark.slow  # that the long traces see no other fault costs a day's run a minute
@pytest.mark.parametrize("name", INPUT_MUTANTS)
def test_the_long_traces_see_no_other_fault_of_a_mutant_of_inputs(name: str) -> None:
    assert set(broken_in(buffer_named(name), Regime.LIVE, LONG)) <= {rule_of(name)}


@pytest.mark.parametrize("name", by_day(sorted(INPUT_MUTANTS.keys() - ALSO_ON_PLAIN_TRACES), rule_of))
def test_nothing_but_the_new_inputs_catches_it(qwen: Model, name: str) -> None:
    rules = (broken(judge(qwen, trace, name, EAGER, Compare.NOTHING)) for trace in TRACES["eager"])
    assert set().union(*rules) == set()
