"""Every revision returns for S1..S10 what its releases did; right buffers of other designs break no rule."""

from pathlib import Path

import pytest
import torch

from cases.by_day import by_day
from cases.selftest.models.checking import broken_in
from cases.selftest.models.sequences import REVISIONS, SEQUENCES, Read, Sequence
from cases.selftest.play.playing import observe
from deepstack_harness.catalogue.buffers import CORRECT, buffer_named, read_correct
from deepstack_harness.catalogue.buffers import REVISIONS as REGISTERED
from deepstack_harness.catalogue.plans import check_traces
from deepstack_harness.contract.case import Regime
from deepstack_harness.contract.names import imported
from deepstack_harness.contract.observation import Answer, Observation, StepFacts
from deepstack_harness.contract.protocols import Buffer, follow
from deepstack_harness.contract.rules import Rule
from deepstack_harness.models.reference import ReferenceBuffer
from deepstack_harness.models.revisions import Pr44384Buffer, Pr49397Buffer
from deepstack_harness.play.model import Model


def reads(observation: Observation) -> list[Read]:
    return [_read(facts) for facts in observation.steps if facts.step.startswith("get")]


def _read(facts: StepFacts) -> Read:
    if facts.raised:
        return facts.raised.type
    assert facts.answer is not None
    if facts.answer.structure == "none":
        return None
    return _counts(facts.answer)


def _counts(answer: Answer) -> Read:
    levels = tuple(
        (sum(run.rows for run in runs), sum(run.rows for run in runs if run.payload)) for runs in answer.rows
    )
    return levels if len(set(levels)) > 1 else levels[0]


@pytest.mark.parametrize("revision", REVISIONS)
@pytest.mark.parametrize("sequence", SEQUENCES.values(), ids=SEQUENCES)
def test_sequences(qwen: Model, sequence: Sequence, revision: str) -> None:
    assert reads(observe(qwen, sequence.trace, revision)) == sequence.reads_of(revision)


def test_every_registered_revision_is_held_to_the_table() -> None:
    # `test_per_layer_inputs.py` has what that buffer returns: nothing is cleared there, by design.
    assert set(REGISTERED) == {*REVISIONS, "per_layer_inputs"}


GROWS = [revision for revision in REVISIONS if not revision.startswith("granite_")]


@pytest.mark.parametrize("revision", GROWS)
def test_growth_moves_the_storage_and_only_the_reference_announces_it(qwen: Model, revision: str) -> None:
    _, before, _, after = observe(qwen, SEQUENCES["S7"].trace, revision).steps
    assert before.answer is not None
    assert after.answer is not None
    assert before.answer.addresses != after.answer.addresses
    assert (before.generation != after.generation) == (revision == "reference")


def test_without_a_vision_tower_get_returns_none() -> None:
    made = Pr49397Buffer(16, 8, 3, dtype=torch.float32, device=torch.device("cpu"), vision=False)
    made.set(torch.ones(3, 4, 8))
    assert made.get(4) is None


@pytest.mark.parametrize("revision", [revision for revision in REVISIONS if revision not in GROWS])
@pytest.mark.parametrize("step", ["get -1", "clear -1", "resize 20"])
def test_steps_missing_in_granite(qwen: Model, revision: str, step: str) -> None:
    *_, facts, _ = observe(qwen, f"cap 16: set 9; {step}; get 16", revision).steps
    assert facts.unavailable is not None
    assert facts.raised is None


def test_the_reference_holds_retired_storage_until_it_is_released() -> None:
    made = ReferenceBuffer(4, 8, 1, dtype=torch.float32, device=torch.device("cpu"))
    made.set(torch.ones(1, 4, 8))
    old = made.get(4)
    assert old is not None
    address = old[0].data_ptr()
    del old
    made.resize(64)
    assert made._retired[0][0].data_ptr() == address
    made.release()
    assert not made._retired


def rows_of(buffer: Buffer) -> tuple[torch.Tensor, ...]:
    levels = buffer.get(4)
    assert levels is not None
    return levels


def test_a_buffer_that_follows_its_tensors_is_made_anew_in_their_dtype() -> None:
    made = Pr44384Buffer(4, 8, 2, dtype=torch.float32, device=torch.device("cpu"))
    made.set(torch.ones(2, 3, 8))
    for dtype, kept in ((torch.float32, True), (torch.bfloat16, False)):
        follow(made, torch.empty(1, 8, dtype=dtype))
        levels = torch.stack(rows_of(made))
        assert (levels.shape, levels.dtype) == ((2, 4, 8), dtype)
        assert bool(levels.any()) is kept
    made.set(torch.ones(2, 3, 8))
    assert {level.dtype for level in rows_of(made)} == {torch.float32}


def test_a_buffer_that_follows_nothing_is_unchanged() -> None:
    made = ReferenceBuffer(4, 8, 1, dtype=torch.float32, device=torch.device("cpu"))
    follow(made, torch.empty(1, 8, dtype=torch.bfloat16))
    assert {level.dtype for level in rows_of(made)} == {torch.float32}


LIVE_ONLY = [name for name, buffer in CORRECT.items() if buffer.regimes == "live"]


@pytest.mark.parametrize(("number", "name"), [*enumerate(CORRECT)])
def test_its_share_of_the_traces_does_not_refuse_a_right_buffer(number: int, name: str) -> None:
    """Every day each trace of `check` is played on one of these buffers."""
    share = check_traces()[number :: len(CORRECT)]
    assert broken_in(buffer_named(name), Regime.LIVE, share) == {}
    if name not in LIVE_ONLY:
        assert broken_in(buffer_named(name), Regime.CAPTURED, share) == {}


@pytest.mark.parametrize("name", CORRECT)
@pytest.mark.slow  # 5 s each
def test_a_right_buffer_is_not_refused(name: str) -> None:
    assert broken_in(buffer_named(name), Regime.LIVE) == {}
    if name not in LIVE_ONLY:
        assert broken_in(buffer_named(name), Regime.CAPTURED) == {}


@pytest.mark.parametrize("name", LIVE_ONLY)
def test_one_that_is_right_only_live_breaks_the_address_rule_under_graphs(name: str) -> None:
    assert Rule.ADDRESS in broken_in(buffer_named(name), Regime.CAPTURED)


LITTLE_MEMORY = (
    "cap 16: set 9; get 24 fail={n}; get 9; get 16; resize 40 fail={n}; get 9; set 50 fail={n}; get 9",
    "cap 16: set 9; set 12 fail={n} dtype=float64; get 16; set 3; get 16; set 16 fail={n}; clear 16; get 16",
)
"""Allocations that fail while a buffer grows, and where it has not to."""


@pytest.mark.parametrize("name", by_day(CORRECT, count=4))
def test_one_that_runs_out_of_memory_is_not_refused(name: str) -> None:
    traces = [trace.format(n=number) for trace in LITTLE_MEMORY for number in (1, 2, 3, 5, 8)]
    assert broken_in(buffer_named(name), Regime.LIVE, traces) == {}


def test_there_are_eight_designs_none_of_which_is_the_references() -> None:
    assert len(CORRECT) >= 8
    for buffer in CORRECT.values():
        made_by = imported(buffer.target)
        assert isinstance(made_by, type)
        assert ReferenceBuffer not in made_by.__mro__
        assert buffer.regimes in {"live", "both"}


def test_a_class_has_to_declare_the_regimes_it_is_right_in(tmp_path: Path) -> None:
    file = tmp_path / "correct.py"
    file.write_text("class Silent:\n    '''Says nothing.'''\n")
    with pytest.raises(ValueError, match="correct:Silent does not say in which regimes"):
        read_correct(file)
