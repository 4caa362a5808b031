"""Norms, rotary angles, experts, positions and opaque attention, against transformers and exact sums."""

import platform
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import Qwen3VLConfig as HFConfig
from transformers import Qwen3VLModel, Qwen3VLTextConfig
from transformers.models.qwen3_omni_moe.modeling_qwen3_omni_moe import Qwen3OmniMoeThinkerTextTopKRouter
from transformers.models.qwen3_vl.modeling_qwen3_vl import Qwen3VLTextRMSNorm, Qwen3VLTextRotaryEmbedding
from typing_extensions import override

from cases.selftest.models.transformers_models import COUNTS, CPU, NAMES, inputs, mrope, run, tiny
from deepstack_harness.catalogue.registry import family_named
from deepstack_harness.compile.torch_compat import dynamo
from deepstack_harness.errors import UsageError
from deepstack_harness.models.layers import (
    LAYOUT,
    InterleavedMRope,
    RMSNorm,
    Rope,
    around_attention,
    attended_rows,
    attention,
    counted_positions,
    mrope_positions,
    opaque,
    sdpa,
)
from deepstack_harness.models.qwen3_omni_moe_thinker import Router
from deepstack_harness.models.qwen3_vl import Qwen3VLConfig, Qwen3VLFamily
from deepstack_harness.workers.limits import Limits
from deepstack_harness.workers.outcomes import Answered, EndKind, is_end
from deepstack_harness.workers.worker import Worker

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
    for single, other in zip(
        plain(positions, torch.float32), interleaved(positions, torch.float32), strict=True
    ):
        assert torch.equal(single, other)


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


@pytest.mark.slow  # a fact of torch
@pytest.mark.skipif(
    platform.machine() != "x86_64", reason="division by zero is no signal on other processors"
)
def test_the_fused_kernel_still_ends_a_process_at_0_tokens() -> None:
    # If this fails, torch was mended: then `sdpa` need not choose the plain kernel on that torch.
    target = "cases.selftest.models.checking:attend"
    with Worker(Limits(call_s=120)) as worker:
        single, none = (worker.call(target, {"tokens": tokens}) for tokens in (1, 0))
    assert isinstance(single, Answered), single
    assert single.value == [1, 4, 1, 32]
    assert is_end(none, EndKind.SIGNALLED), none
    assert none.reason == "ended by SIGFPE"


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
def test_positions_lie_row_after_row(name: str, tokens: int) -> None:
    # Also for one token, whose strides nothing else would fix: graphs are traced with them.
    assert family_named(name).positions(tokens, CPU).stride() == (tokens, 1)


def test_16_positions_distinguish_the_axes() -> None:
    time, height, width = mrope_positions(16, CPU)
    assert all((single != other).any() for single, other in ((time, height), (time, width), (height, width)))


def test_granite_counts_its_tokens() -> None:
    assert tiny("granite4_vision").positions(16, CPU).tolist() == [list(range(16))] * 3


@pytest.mark.parametrize("name", NAMES)
def test_a_negative_count_of_positions_is_refused(name: str) -> None:
    with pytest.raises(UsageError, match="-1 tokens"):
        family_named(name).positions(-1, CPU)


NAME = "qwen3_vl"


LAYERS = 2


FAMILY = Qwen3VLFamily(Qwen3VLConfig(layers=LAYERS, levels=LAYERS, attention="opaque"))


def build() -> torch.nn.Module:
    return FAMILY.build(dtype=torch.float32, device=CPU, seed=0)


def heads(tokens: int, dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor, Tensor]:
    """Queries (4, n, 32), keys and values (2, n, 32) as layers give them: views of (n, heads, 32)."""
    generator = torch.Generator().manual_seed(tokens)
    drawn = torch.randn(tokens, 8, 32, generator=generator).to(dtype).transpose(0, 1)
    return drawn[:4], drawn[4:6], drawn[6:]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("tokens", [1, 5])  # its schema check cannot make empty views
def test_torch_finds_nothing_wrong_with_the_op(tokens: int, dtype: torch.dtype) -> None:
    torch.library.opcheck(attention, (*heads(tokens, dtype), 0.125))


@pytest.mark.parametrize("tokens", [0, 1, 5])
def test_the_result_is_contiguous(tokens: int) -> None:
    out = opaque(*heads(tokens), 0.125)
    assert out.shape == (4, tokens, 32)
    assert out.is_contiguous()


def test_rows_are_collected_only_while_open() -> None:
    heads_of = heads(5)
    opaque(*heads_of, 1.0)
    with attended_rows() as rows:
        assert rows == []
        opaque(*heads_of, 1.0)
        opaque(*heads(3), 1.0)
    opaque(*heads_of, 1.0)
    assert rows == [5, 3]


def test_the_innermost_collector_gets_the_rows() -> None:
    with attended_rows() as outer:
        opaque(*heads(1), 1.0)
        with attended_rows() as inner:
            opaque(*heads(2), 1.0)
        opaque(*heads(3), 1.0)
    assert (outer, inner) == ([1, 3], [2])


def test_an_error_closes_the_collector_and_the_hook() -> None:
    with pytest.raises(ZeroDivisionError), attended_rows() as rows, around_attention(lambda _: _.missing):  # type: ignore[attr-defined]
        raise ZeroDivisionError
    opaque(*heads(5), 1.0)
    assert rows == []


@pytest.mark.xdist_group("aot_eager")
def test_a_compiled_graph_counts_what_it_is_called_with() -> None:
    dynamo.start_counting()
    decoder = build()
    compiled = torch.compile(decoder, backend="aot_eager", fullgraph=True, dynamic=True)
    with attended_rows() as rows:
        for tokens in (16, 9, 16):
            batch = inputs(NAME, tokens, LAYERS)
            assert_close(
                compiled(batch.hidden, batch.positions, batch.payload),
                run_plain(decoder, tokens),
                atol=1e-5,
                rtol=0,
            )
    assert rows == [16] * LAYERS + [9] * LAYERS + [16] * LAYERS
    assert dynamo.graphs_built() == 1


def run_plain(decoder: torch.nn.Module, tokens: int) -> Tensor:
    """The decoder uncompiled, its rows collected elsewhere."""
    batch = inputs(NAME, tokens, LAYERS)
    with attended_rows():
        return run(decoder, batch, batch.payload)


@pytest.mark.xdist_group("aot_eager")
@pytest.mark.parametrize("backend", [None, "aot_eager"])
def test_a_hook_may_run_attention_now_and_again_later(backend: str | None) -> None:
    runs: list[Callable[[], Tensor]] = []
    outs: list[Tensor] = []

    def note(attend: Callable[[], Tensor]) -> Tensor:
        runs.append(attend)
        outs.append(attend())
        return outs[-1]

    torch.compiler.reset()
    decoder, batch = build(), inputs(NAME, 9, LAYERS)
    called = decoder if backend is None else torch.compile(decoder, backend=backend, fullgraph=True)
    with attended_rows() as rows, around_attention(note):
        out = called(batch.hidden, batch.positions, batch.payload)
        assert len(runs) == LAYERS  # tracing and compiling ran no kernel
        again = [attend() for attend in runs]
    assert_close(out, run(decoder, batch, batch.payload), atol=1e-5, rtol=0)
    assert all(torch.equal(single, other) for single, other in zip(outs, again, strict=True))
    assert rows == [9] * 2 * LAYERS


def test_the_return_value_of_a_hook_goes_on() -> None:
    batch, decoder = inputs(NAME, 9, LAYERS), build()
    plain = run(decoder, batch, batch.payload)
    with around_attention(lambda attend: 2 * attend()):
        doubled = run(decoder, batch, batch.payload)
    assert not torch.allclose(doubled, plain, atol=0.1)
    assert torch.equal(run(decoder, batch, batch.payload), plain)


def test_the_innermost_hook_is_called() -> None:
    with around_attention(lambda _: torch.zeros(4, 5, 32)), around_attention(lambda attend: attend()):
        assert opaque(*heads(5), 1.0).any()
