"""`compile_arms` and decoders that keep state: it is equal before the compared runs, and compared."""

from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from cases.by_day import by_day
from cases.specimens.collection import PROGRAMS
from cases.specimens.decoders import (
    DECODERS,
    DROPPED,
    HIDDEN,
    LEVELS,
    STOCK,
    Base,
    Decoder,
    Payload,
)
from deepstack_harness.catalogue.registry import FAMILIES
from deepstack_harness.contract.protocols import payload_width
from deepstack_harness.models.reference import ReferenceBuffer
from deepstack_harness.play.model import shared_model
from deepstack_harness.play.state import DecoderState, apart_at
from deepstack_harness.pytest_plugin.compile_arms import ArmRun, CompileArms

Failed = pytest.fail.Exception
TRACES = ["cap 16: profile 16; set 9; forward 16; forward 9; set 5; forward 16; forward 16"]


def run(compile_arms: CompileArms, decoder: Decoder, arm: str) -> list[ArmRun]:
    made = decoder.make()
    buffer = decoder.buffer(made)
    return compile_arms(made, buffer, TRACES, hidden=HIDDEN, levels=LEVELS, arms=[arm], rules=["R0"])


def arms_of(name: str, *, wrong: bool) -> list[tuple[str, str]]:
    """Return a specimen with each arm under which it is wrong, or right."""
    is_wrong = set(PROGRAMS[name].arms) if PROGRAMS[name].breaks else set()
    return [(name, arm) for arm in (STOCK, DROPPED) if (arm in is_wrong) is wrong]


@pytest.mark.parametrize(
    ("name", "arm"),
    by_day((row for name in DECODERS for row in arms_of(name, wrong=False)), lambda row: row[1]),
)
def test_a_right_decoder_passes_and_its_state_is_reported(
    compile_arms: CompileArms, name: str, arm: str
) -> None:
    (ran,) = run(compile_arms, DECODERS[name], arm)
    assert len(ran.distances) == 5
    assert any(place.endswith(DECODERS[name].state) for place in ran.state), ran.state


@pytest.mark.parametrize(
    ("name", "arm"),
    by_day((row for name in DECODERS for row in arms_of(name, wrong=True)), lambda row: row[1], count=3),
)
def test_a_wrong_decoder_breaks_the_output(compile_arms: CompileArms, name: str, arm: str) -> None:
    with pytest.raises(Failed, match="broken: R0 output: "):
        run(compile_arms, DECODERS[name], arm)


class DrawsWhenCompiled(Base):
    """Its output is right in every arm; compiled it draws a random number that nobody needs.

    No specimen: Inductor draws its seeds otherwise than eager code, so `steps` compares no generators.
    """

    def forward(self, hidden: Tensor, positions: Tensor, payload: Payload) -> Tensor:
        out = self.add(hidden, payload)
        return out + 0 * torch.rand(HIDDEN) if torch.compiler.is_compiling() else out


class Faint(Base):
    """Its payload hardly matters: a thousand-millionth of it is added.

    No specimens, these and the tiny ones: only R0 scales payloads until they matter.
    """

    loses = False

    def forward(self, hidden: Tensor, positions: Tensor, payload: Payload) -> Tensor:
        lost = self.loses and torch.compiler.is_compiling()
        return self.add(hidden, None) + (0 if lost else 1e-9 * sum(payload or ()))


class FaintLoses(Faint):
    """The same, and compiled it loses its payload."""

    loses = True


class Tiny(Base):
    """Its outputs are a thousand-millionth of others'."""

    part = 1.0

    def forward(self, hidden: Tensor, positions: Tensor, payload: Payload) -> Tensor:
        part = self.part if torch.compiler.is_compiling() else 1.0
        return 1e-9 * self.add(hidden, tuple(part * level for level in payload or ()))


class TinyLoses(Tiny):
    """The same, and compiled it loses a thousandth of its payload."""

    part = 0.999


@pytest.mark.parametrize(
    ("decoder", "arms"),
    by_day(
        [(Faint, (STOCK, DROPPED)), (Tiny, (STOCK, DROPPED))],
    ),
)
def test_payloads_are_scaled_until_they_matter(
    compile_arms: CompileArms, decoder: type[Base], arms: tuple[str, ...]
) -> None:
    for arm in arms:
        (ran,) = run(compile_arms, Decoder(decoder, "", lambda *_: None), arm)
        assert (len(ran.distances), ran.state) == (5, ())


@pytest.mark.parametrize("decoder", by_day([FaintLoses, TinyLoses, DrawsWhenCompiled], count=2))
def test_a_small_loss_and_a_lost_draw_break_the_output(
    compile_arms: CompileArms, decoder: type[Base]
) -> None:
    with pytest.raises(Failed, match="broken: R0 output: "):
        run(compile_arms, Decoder(decoder, "", lambda *_: None), STOCK)


def test_the_decoder_is_given_back_as_it_was(compile_arms: CompileArms) -> None:
    decoder = DECODERS["count_of_the_calls"].make()
    compile_arms(decoder, ReferenceBuffer, TRACES, hidden=HIDDEN, levels=LEVELS, rules=["R0"], arms=[STOCK])
    assert decoder.step == 0


def test_state_that_differs_is_named_with_both_values(compile_arms: CompileArms) -> None:
    with pytest.raises(
        Failed, match="step 1 'profile 16' leaves 0 in the decoder's state .steps, uncompiled it leaves 1"
    ):
        run(compile_arms, DECODERS["count_that_compiling_skips"], STOCK)


def test_retained_state_is_reported_with_the_distances(compile_arms: CompileArms) -> None:
    (ran,) = run(compile_arms, DECODERS["count_of_the_calls"], STOCK)
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
    decoder.numbers = (number for number in range(9))  # type: ignore[assignment]
    with pytest.raises(Failed, match=r"keeps a generator at \.numbers, which cannot be put back"):
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
def test_no_decoder_of_ours_has_state(family: str) -> None:
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
