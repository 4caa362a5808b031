"""The opaque attention: torch's own checks of a custom op, the rows it counts, and the hook around it."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from cases.selftest.families.transformers_models import CPU, inputs, run
from deepstack_harness.families.opaque import around_attention, attended_rows, attention, opaque
from deepstack_harness.families.qwen3_vl import Qwen3VLConfig, Qwen3VLFamily
from deepstack_harness.torch_compat import dynamo

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
def test_the_answer_is_contiguous(tokens: int) -> None:
    out = opaque(*heads(tokens), 0.125)
    assert out.shape == (4, tokens, 32)
    assert out.is_contiguous()


def test_rows_are_collected_only_while_open() -> None:
    given = heads(5)
    opaque(*given, 1.0)
    with attended_rows() as rows:
        assert rows == []
        opaque(*given, 1.0)
        opaque(*heads(3), 1.0)
    opaque(*given, 1.0)
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
            given = inputs(NAME, tokens, LAYERS)
            assert_close(
                compiled(given.hidden, given.positions, given.payload),
                run_plain(decoder, tokens),
                atol=1e-5,
                rtol=0,
            )
    assert rows == [16] * LAYERS + [9] * LAYERS + [16] * LAYERS
    assert dynamo.graphs_built() == 1


def run_plain(decoder: torch.nn.Module, tokens: int) -> Tensor:
    """The decoder uncompiled, its rows collected elsewhere."""
    given = inputs(NAME, tokens, LAYERS)
    with attended_rows():
        return run(decoder, given, given.payload)


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
    decoder, given = build(), inputs(NAME, 9, LAYERS)
    called = decoder if backend is None else torch.compile(decoder, backend=backend, fullgraph=True)
    with attended_rows() as rows, around_attention(note):
        out = called(given.hidden, given.positions, given.payload)
        assert len(runs) == LAYERS  # tracing and compiling ran no kernel
        again = [attend() for attend in runs]
    assert_close(out, run(decoder, given, given.payload), atol=1e-5, rtol=0)
    assert all(torch.equal(one, other) for one, other in zip(outs, again, strict=True))
    assert rows == [9] * 2 * LAYERS


def test_what_a_hook_answers_goes_on() -> None:
    given, decoder = inputs(NAME, 9, LAYERS), build()
    plain = run(decoder, given, given.payload)
    with around_attention(lambda attend: 2 * attend()):
        doubled = run(decoder, given, given.payload)
    assert not torch.allclose(doubled, plain, atol=0.1)
    assert torch.equal(run(decoder, given, given.payload), plain)


def test_the_innermost_hook_is_asked() -> None:
    with around_attention(lambda _: torch.zeros(4, 5, 32)), around_attention(lambda attend: attend()):
        assert opaque(*heads(5), 1.0).any()
