"""`compile_arms` and decoders that keep state: it is equal before the compared runs, and compared."""

import itertools
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from cases.by_day import by_day
from cases.selftest.pytest_plugin.stateful_decoders import (
    DECODERS,
    HIDDEN,
    LEVELS,
    STOCK,
    Base,
    Payload,
    Stateful,
    telling,
)
from deepstack_harness.catalogue.registry import FAMILIES
from deepstack_harness.contract.protocols import payload_width
from deepstack_harness.models.reference import ReferenceBuffer
from deepstack_harness.play.model import shared_model
from deepstack_harness.play.state import DecoderState, apart_at
from deepstack_harness.pytest_plugin.compile_arms import ArmRun, CompileArms

Failed = pytest.fail.Exception
TRACES = ["cap 16: profile 16; set 9; forward 16; forward 9; set 5; forward 16; forward 16"]


def run(compile_arms: CompileArms, decoder: Stateful, arm: str) -> list[ArmRun]:
    made = decoder.make()
    return compile_arms(
        made, telling(made, decoder.told), TRACES, hidden=HIDDEN, levels=LEVELS, arms=[arm], rules=["R0"]
    )


@pytest.mark.parametrize(
    ("name", "arm"),
    by_day(
        ((name, arm) for name, decoder in DECODERS.items() for arm in decoder.right),
        lambda row: (row[1], bool(DECODERS[row[0]].state)),
        count=2,
    ),
)
def test_a_right_decoder_passes_and_its_state_is_told(compile_arms: CompileArms, name: str, arm: str) -> None:
    (ran,) = run(compile_arms, DECODERS[name], arm)
    assert len(ran.distances) == 5
    state = DECODERS[name].state
    assert any(place.endswith(state) for place in ran.state) if state else not ran.state


@pytest.mark.parametrize(
    ("name", "arm"),
    by_day(
        ((name, arm) for name, decoder in DECODERS.items() for arm in decoder.wrong),
        lambda row: row[1],
        count=3,
    ),
)
def test_a_wrong_decoder_breaks_the_output(compile_arms: CompileArms, name: str, arm: str) -> None:
    with pytest.raises(Failed, match="broken: R0 output: "):
        run(compile_arms, DECODERS[name], arm)


def test_the_decoder_is_given_back_as_it_was(compile_arms: CompileArms) -> None:
    decoder = DECODERS["count of the calls"].make()
    compile_arms(decoder, ReferenceBuffer, TRACES, hidden=HIDDEN, levels=LEVELS, rules=["R0"], arms=[STOCK])
    assert decoder.step == 0


def test_state_that_differs_is_named_with_both_values(compile_arms: CompileArms) -> None:
    with pytest.raises(
        Failed, match="step 1 'profile 16' leaves 0 in the decoder's state .steps, uncompiled it leaves 1"
    ):
        run(compile_arms, DECODERS["count that compiling skips"], STOCK)


def test_state_that_is_kept_is_told_beside_the_distances(compile_arms: CompileArms) -> None:
    (ran,) = run(compile_arms, DECODERS["count of the calls"], STOCK)
    (judgement,) = ran.judgements
    assert judgement.detail.endswith("; the decoder keeps state (.step), equal in both")


class Unseen(Base):
    """A count that no Python object has: the length of a file."""

    def __init__(self, file: Path) -> None:
        super().__init__()
        self.file = str(file)

    def forward(self, hidden: Tensor, positions: Tensor, payload: Payload) -> Tensor:
        with open(self.file, "a") as file:  # noqa: PTH123
            file.write("x")
            return self.add(hidden, payload) * file.tell()


def test_state_that_cannot_be_seen_is_not_judged(compile_arms: CompileArms, tmp_path: Path) -> None:
    with pytest.raises(Failed, match="not judged: R0 .*two uncompiled runs from equal state are .* apart"):
        compile_arms(
            Unseen(tmp_path / "count"), ReferenceBuffer, ["cap 16: capture 16; set 9; replay 16"],
            hidden=HIDDEN, levels=LEVELS, rules=["R0"], arms=["eager/piecewise"],
        )  # fmt: skip


def test_an_iterator_that_cannot_be_put_back_is_refused(compile_arms: CompileArms) -> None:
    decoder = Base()
    decoder.numbers = itertools.count()  # type: ignore[assignment]
    with pytest.raises(Failed, match=r"keeps a count at \.numbers, which cannot be put back"):
        compile_arms(decoder, ReferenceBuffer, TRACES, hidden=HIDDEN, levels=LEVELS)


MODES: Mapping[str, Callable[[], object]] = {
    "threads": lambda: torch.set_num_threads(torch.get_num_threads() % 2 + 1),
    "default dtype": lambda: torch.set_default_dtype(torch.float64),
    "grad mode": lambda: torch.set_grad_enabled(not torch.is_grad_enabled()),
    "autocast on cpu": lambda: torch.set_autocast_enabled("cpu", True),
    "numpy's random generator": np.random.random,
}


@pytest.mark.parametrize("name", MODES)
def test_modes_are_part_of_the_state_and_are_put_back(name: str) -> None:
    state = DecoderState(Base())
    before = state.take().values
    with state.preserved():
        MODES[name]()
        assert [place for place in before if apart_at(place, state.take().values, before)] == [name]
    assert not any(apart_at(place, state.take().values, before) for place in before)


@pytest.mark.parametrize("family", FAMILIES)
def test_no_decoder_of_ours_keeps_state(family: str) -> None:
    """Cases of the matrix watch none: this is why they need not."""
    model = shared_model(family, "float32", "cpu", 0)
    state = DecoderState(model.decoder)
    hidden = torch.randn(5, model.family.hidden)
    rows = torch.randn(5, payload_width(model.family))
    before = state.take().values
    with torch.no_grad():
        positions = model.family.positions(5, torch.device("cpu"))
        model.decoder(hidden, positions, (rows,) * model.family.levels)
    after = state.take().values
    assert [place for place in before if apart_at(place, after, before)] == []
