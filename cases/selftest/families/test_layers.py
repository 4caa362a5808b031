"""Norms, rotary angles, experts and positions against transformers and against exact arithmetic."""

import platform
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn
from torch.testing import assert_close
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import Qwen3VLConfig as HFConfig
from transformers import Qwen3VLModel, Qwen3VLTextConfig
from transformers.models.qwen3_omni_moe.modeling_qwen3_omni_moe import Qwen3OmniMoeThinkerTextTopKRouter
from transformers.models.qwen3_vl.modeling_qwen3_vl import Qwen3VLTextRMSNorm, Qwen3VLTextRotaryEmbedding
from typing_extensions import override

from cases.selftest.families.transformers_models import COUNTS, CPU, NAMES, mrope, tiny
from deepstack_harness.errors import UsageError
from deepstack_harness.families.attention import sdpa
from deepstack_harness.families.by_name import family_named
from deepstack_harness.families.layers import InterleavedMRope, RMSNorm, Rope
from deepstack_harness.families.positions import LAYOUT, counted_positions, mrope_positions
from deepstack_harness.families.qwen3_omni_moe_thinker import Router
from deepstack_harness.workers.limits import Limits
from deepstack_harness.workers.outcomes import Answered, Signalled
from deepstack_harness.workers.worker import call_once

SECTIONS = (6, 5, 5)


def test_norm_in_bf16_rounds_as_transformers_does() -> None:
    generator = torch.Generator().manual_seed(0)
    x, weight = torch.randn(2, 64, 32, generator=generator).bfloat16()
    ours, theirs = RMSNorm(32, 1e-6).bfloat16(), Qwen3VLTextRMSNorm(32, 1e-6).bfloat16()
    for norm in (ours, theirs):
        norm.load_state_dict({"weight": weight[0]})
    assert torch.equal(ours(x), theirs(x))


def test_norm_in_fp64_is_exact() -> None:
    x = torch.randn(64, 32, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    assert_close(
        RMSNorm(32, 1e-6).double()(x), nn.functional.rms_norm(x, (32,), eps=1e-6), atol=1e-14, rtol=0
    )


@pytest.mark.parametrize(("dtype", "step"), [(torch.float32, 1e-6), (torch.bfloat16, 2**-8)])
def test_angles_at_released_sizes_equal_transformers(dtype: torch.dtype, step: float) -> None:
    # Far positions: the last lanes turn by less than 1e-6 for each.
    positions = 1000 * mrope_positions(64, CPU)
    config = Qwen3VLTextConfig(head_dim=128, rope_parameters={"rope_type": "default", "rope_theta": 5e6})
    theirs = Qwen3VLTextRotaryEmbedding(config)(torch.empty(0, dtype=dtype), positions[:, None])
    rope = InterleavedMRope(128, (24, 20, 20), 5e6).to(dtype)
    for ours, other in zip(rope(positions, dtype), theirs, strict=True):
        assert_close(ours[:, 0], other[0], atol=step, rtol=0)


def test_angles_in_fp64_are_exact() -> None:
    cos, sin = InterleavedMRope(32, SECTIONS, 5e6)(mrope_positions(64, CPU), torch.float64)
    assert_close(cos.square() + sin.square(), torch.ones_like(cos), atol=1e-15, rtol=0)


def test_with_one_axis_both_ropes_turn_alike() -> None:
    positions = counted_positions(64, CPU)
    plain, interleaved = Rope(32, 1e7), InterleavedMRope(32, SECTIONS, 1e7)
    for one, other in zip(
        plain(positions, torch.float32), interleaved(positions, torch.float32), strict=True
    ):
        assert torch.equal(one, other)


def test_the_plain_rope_turns_by_the_first_axis() -> None:
    positions = mrope_positions(16, CPU)
    elsewhere = positions.clone()
    elsewhere[1:] += 5
    assert torch.equal(Rope(32, 1e7)(positions, torch.float32)[0], Rope(32, 1e7)(elsewhere, torch.float32)[0])
    elsewhere[0] += 1
    assert not torch.equal(
        Rope(32, 1e7)(positions, torch.float32)[0], Rope(32, 1e7)(elsewhere, torch.float32)[0]
    )


def router(dtype: torch.dtype) -> tuple[Router, torch.Tensor]:
    """A router of 3 out of 8 experts, and 64 tokens for it."""
    generator = torch.Generator().manual_seed(0)
    weight, tokens = (torch.randn(rows, 32, generator=generator).to(dtype) for rows in (8, 64))
    made = Router(32, experts=8, top_k=3).to(dtype).requires_grad_(requires_grad=False)
    made.load_state_dict({"weight": weight})
    return made, tokens


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_shares_are_those_of_transformers_to_the_bit(dtype: torch.dtype) -> None:
    ours, tokens = router(dtype)
    theirs = Qwen3OmniMoeThinkerTextTopKRouter(
        SimpleNamespace(num_experts_per_tok=3, num_experts=8, norm_topk_prob=True, hidden_size=32)
    ).to(dtype)
    theirs.load_state_dict(ours.state_dict())
    _, top, chosen = theirs(tokens)
    assert torch.equal(ours(tokens), torch.zeros(64, 8, dtype=dtype).scatter(-1, chosen, top))


def test_shares_in_fp64_are_exact() -> None:
    ours, tokens = router(torch.float64)
    share = ours(tokens)
    assert (share > 0).sum(-1).eq(3).all()
    assert_close(share.sum(-1), torch.ones(64, dtype=torch.float64), atol=1e-15, rtol=0)


class OperatorNames(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Names of the operators that run while it is entered."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.names: list[str] = []

    @override
    def __torch_dispatch__(
        self, func: Any, types: object, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        self.names.append(str(func))
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@torch.no_grad()
def test_sdpa_runs_no_fused_kernel(dtype: torch.dtype) -> None:
    q_AND, k_KSD, v_KSD = (torch.ones(heads, 16, 32, dtype=dtype) for heads in (4, 2, 2))
    with OperatorNames() as ran:
        sdpa(q_AND, k_KSD, v_KSD, 0.25)
    assert [name for name in ran.names if "attention" in name] == []
    assert any("softmax" in name for name in ran.names), ran.names


@pytest.mark.skipif(
    platform.machine() != "x86_64", reason="division by zero is no signal on other processors"
)
def test_the_fused_kernel_still_ends_a_process_at_0_tokens() -> None:
    # If this fails, torch was mended: then `sdpa` need not ask for the plain kernel on that torch.
    target = "cases.selftest.families.fused_attention:run"
    one, none = (call_once(target, {"tokens": tokens}, Limits(call_s=120)) for tokens in (1, 0))
    assert isinstance(one, Answered), one
    assert one.value == [1, 4, 1, 32]
    assert isinstance(none, Signalled), none
    assert none.name == "SIGFPE"


def test_positions_are_those_of_transformers() -> None:
    kinds = [kind for text, (h, w) in LAYOUT * 2 for kind in [0] * text + [1] * (h * w)]
    grids = [(1, 2 * h, 2 * w) for _, (h, w) in LAYOUT * 2]  # in patches, before merging 2 x 2
    text = Qwen3VLTextConfig(**mrope(tiny("qwen3_vl").config))
    with torch.device("meta"):
        model = Qwen3VLModel(HFConfig(text_config=text.to_dict(), vision_config={"depth": 1}))
    ids, types = torch.LongTensor([[0] * len(kinds)]), torch.IntTensor([kinds])
    theirs, _ = model.get_rope_index(ids, types, image_grid_thw=torch.LongTensor(grids))
    assert torch.equal(mrope_positions(len(kinds), CPU), theirs[:, 0])


@pytest.mark.parametrize("tokens", [0, *COUNTS])
@pytest.mark.parametrize("name", NAMES)
def test_fewer_positions_are_the_start_of_more(name: str, tokens: int) -> None:
    positions = family_named(name).positions(tokens, CPU)
    assert positions.shape == (3, tokens)
    assert positions.dtype == torch.int64
    assert torch.equal(positions, family_named(name).positions(300, CPU)[:, :tokens])


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("tokens", [1, 2, 16])
def test_positions_lie_row_behind_row(name: str, tokens: int) -> None:
    # Also for one token, whose strides nothing else would fix: graphs are traced with them.
    assert family_named(name).positions(tokens, CPU).stride() == (tokens, 1)


def test_16_positions_tell_the_axes_apart() -> None:
    time, height, width = mrope_positions(16, CPU)
    assert all((one != other).any() for one, other in ((time, height), (time, width), (height, width)))


def test_granite_counts_its_tokens() -> None:
    assert tiny("granite4_vision").positions(16, CPU).tolist() == [list(range(16))] * 3


@pytest.mark.parametrize("name", NAMES)
def test_a_negative_count_of_positions_is_refused(name: str) -> None:
    with pytest.raises(UsageError, match="-1 tokens"):
        family_named(name).positions(-1, CPU)
