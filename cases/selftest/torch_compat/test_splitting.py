"""Private torch APIs that cut graphs, compile their pieces and delay streams do what is said of them."""

import os
from pathlib import Path

import pytest
import torch
from torch import Tensor, fx, nn

from deepstack_harness.torch_compat import dynamo, splitting, streams

pytestmark = pytest.mark.xdist_group("aot_eager")


class Sum(nn.Module):
    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return x + y


class Both(nn.Module):
    def forward(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        return x + y, x - y


def test_a_piece_is_compiled_whether_it_gives_one_value_or_several() -> None:
    x, y = torch.ones(2), torch.full((2,), 3.0)
    one = splitting.compile_piece(fx.symbolic_trace(Sum()), [x, y], "aot_eager")
    assert one(x, y).tolist() == [4, 4]
    assert one(y, y).tolist() == [6, 6]
    total, difference = splitting.compile_piece(fx.symbolic_trace(Both()), [x, y], "aot_eager")(x, y)
    assert (total.tolist(), difference.tolist()) == ([4, 4], [-2, -2])


def test_compiled_pieces_are_counted_from_zero() -> None:
    dynamo.start_counting()
    assert splitting.pieces_compiled() == 0
    for _ in range(2):
        splitting.compile_piece(fx.symbolic_trace(Sum()), [torch.ones(2), torch.ones(2)], "aot_eager")
    assert splitting.pieces_compiled() == 2
    torch.compile(Sum(), backend="eager")(torch.ones(2), torch.ones(2))
    assert splitting.pieces_compiled() == 2
    dynamo.start_counting()
    assert splitting.pieces_compiled() == 0


def test_caches_are_cold_and_come_back() -> None:
    before = os.environ.get("TORCHINDUCTOR_CACHE_DIR")
    with splitting.cold_caches():
        inside = os.environ["TORCHINDUCTOR_CACHE_DIR"]
        assert inside != before
        assert not any(Path(inside).rglob("*"))
    assert os.environ.get("TORCHINDUCTOR_CACHE_DIR") == before
    assert not Path(inside).exists()


@pytest.mark.gpu
def test_a_delay_lasts_on_its_own_stream() -> None:
    other = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    with torch.cuda.stream(other):
        streams.spin(200_000_000)
    assert not other.query()
    assert torch.cuda.current_stream().query()
    other.synchronize()
