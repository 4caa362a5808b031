"""Dynamo's private parts do what `torch_compat.dynamo` documents: counts, guards, pieces, cold caches."""

import functools
import os
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, fx, nn

from deepstack_harness.compile.torch_compat import dynamo
from deepstack_harness.compile.torch_compat.dynamo import graphs_skipped


def add(x: torch.Tensor, payload: torch.Tensor | None) -> torch.Tensor:
    return x + 1 if payload is None else x + payload


def compiled_with(keep: bool | None) -> Callable[[torch.Tensor, torch.Tensor | None], torch.Tensor]:
    options: dict[str, Any] = {} if keep is None else {"guard_filter_fn": lambda guards: [keep] * len(guards)}
    return torch.compile(add, backend="eager", fullgraph=True, dynamic=False, options=options)


@pytest.fixture(autouse=True)
def counting() -> None:
    dynamo.start_counting()


def test_graphs_and_recompile_reasons_are_counted() -> None:
    run = compiled_with(None)
    run(torch.ones(4), None)
    assert (dynamo.graphs_built(), dynamo.recompile_reasons()) == (1, [])
    run(torch.ones(4), torch.ones(4))
    assert dynamo.graphs_built() == 2
    assert dynamo.recompile_reasons() == ["0/0: payload is None"]


def test_a_reason_is_the_same_in_every_process() -> None:
    run = torch.compile(lambda x, rows: x + 1 if rows is None else x + rows[0], backend="eager")
    run(torch.ones(4), (torch.ones(4),))
    run(torch.ones(4), None)
    (reason,) = dynamo.recompile_reasons()
    assert reason.startswith("0/0: ___check_type_id(rows)"), reason


def test_counting_starts_from_zero_with_nothing_compiled() -> None:
    compiled_with(None)(torch.ones(4), None)
    dynamo.start_counting()
    assert (dynamo.graphs_built(), dynamo.graph_breaks(), dynamo.recompile_reasons()) == (0, 0, [])
    assert dynamo.checked_guards(add.__code__) == 0


def test_breaks_are_counted() -> None:
    def broken(x: torch.Tensor) -> torch.Tensor:
        torch._dynamo.graph_break()
        return x + 1

    torch.compile(broken, backend="eager")(torch.ones(4))
    assert dynamo.graph_breaks() == 1


def test_a_marked_dimension_gets_a_symbol() -> None:
    run = torch.compile(add, backend="eager", fullgraph=True, dynamic=False)
    for tokens in (4, 5, 6):
        x = torch.ones(tokens)
        dynamo.mark_dynamic(x, 0)
        run(x, None)
    assert dynamo.graphs_built() == 1


def test_an_unbacked_dimension_gets_one_graph_for_0_and_1_too() -> None:
    run = torch.compile(add, backend="eager", fullgraph=True, dynamic=False)
    for tokens in (4, 1, 0, 5):
        x = torch.ones(tokens)
        dynamo.mark_unbacked(x, 0)
        assert run(x, None).shape == (tokens,)
    assert dynamo.graphs_built() == 1


def test_nothing_may_branch_on_an_unbacked_dimension() -> None:
    x = torch.ones(4)
    dynamo.mark_unbacked(x, 0)
    run = torch.compile(lambda x: x + 1 if len(x) == 4 else x, backend="eager", fullgraph=True)
    with pytest.raises(RuntimeError, match="data-dependent"):
        run(x)


@pytest.mark.parametrize(("keep", "some"), [(None, True), (True, True), (False, False)])
def test_checked_guards_are_those_that_a_filter_left(keep: bool | None, some: bool) -> None:
    compiled_with(keep)(torch.ones(4), None)
    assert (dynamo.checked_guards(add.__code__) > 0) is some


def test_the_recompile_limit_is_recognised() -> None:
    with dynamo.refuse_silent_fallback(), torch._dynamo.config.patch(recompile_limit=1):
        run = torch.compile(add, backend="eager", dynamic=False)
        run(torch.ones(4), None)
        with pytest.raises(Exception) as caught:  # noqa: PT011  # the type differs between torch versions
            run(torch.ones(4), torch.ones(4))
    assert dynamo.is_recompile_limit(caught.value)
    assert not dynamo.is_recompile_limit(RuntimeError("something else"))


def test_the_recompile_limit_is_the_users_again_after_the_last_that_refuses_it() -> None:
    config = torch.compiler.config
    before = config.fail_on_recompile_limit_hit
    first, second = dynamo.refuse_silent_fallback(), dynamo.refuse_silent_fallback()
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    assert config.fail_on_recompile_limit_hit is True
    second.__exit__(None, None, None)
    assert config.fail_on_recompile_limit_hit is before


def test_a_call_that_compiles_nothing_leaves_ints_as_they_were() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch advises against TorchScript
        scripted: Any = torch.jit.trace(torch.nn.Linear(2, 2), torch.ones(2))  # type: ignore[no-untyped-call]
    compiled: Any = torch.compile(scripted, fullgraph=True, dynamic=False, backend="eager")
    with dynamo.refuse_silent_fallback(), pytest.raises(RuntimeError, match="no compiled frames"):
        compiled(torch.ones(2))
    dynamo.start_counting()
    scaled = torch.compile(lambda x, scale: x * scale, backend="eager")
    for scale in (3, 4, 5):
        scaled(torch.ones(2), scale)
    assert dynamo.graphs_built() == 2  # a constant, and then a symbol


@functools.lru_cache
def doubled(number: int) -> int:
    return 2 * number


def warned_of(x: Tensor) -> Tensor:
    return x * doubled(3)  # Dynamo warns that it looks through the cache


def warns(x: Tensor) -> Tensor:
    torch._dynamo.graph_break()
    warnings.warn("of the code itself", stacklevel=2)
    return x


def adds_wrongly(x: Tensor) -> Tensor:
    return x + torch.ones(5)


class RaisesAsDynamoDoes:
    def __call__(self, x: Tensor) -> Tensor:
        raise torch._dynamo.exc.InternalTorchDynamoError("not Dynamo's")


@pytest.mark.parametrize(
    ("function", "compiler"),
    [(warned_of, True), (warns, False), (adds_wrongly, False), (RaisesAsDynamoDoes(), False)],
    ids=["a warning of Dynamo", "a warning of the code", "an operation that fails", "its type alone"],
)
def test_a_fault_of_the_compiler_is_distinguished_from_one_of_the_code(
    function: Callable[[Tensor], Tensor], *, compiler: bool
) -> None:
    """Warnings are errors in these tests, as under `-W error`."""
    run = torch.compile(function, backend="eager", dynamic=False)
    with pytest.raises(Exception) as caught:  # noqa: PT011  # of any type
        run(torch.ones(4))
    assert dynamo.is_compiler_fault(caught.value) is compiler


class Sum(nn.Module):
    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return x + y


class Both(nn.Module):
    def forward(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        return x + y, x - y


@pytest.mark.xdist_group("aot_eager")
def test_a_piece_is_compiled_whether_it_gives_one_value_or_several() -> None:
    x, y = torch.ones(2), torch.full((2,), 3.0)
    one = dynamo.compile_piece(fx.symbolic_trace(Sum()), [x, y], "aot_eager")
    assert one(x, y).tolist() == [4, 4]
    assert one(y, y).tolist() == [6, 6]
    total, difference = dynamo.compile_piece(fx.symbolic_trace(Both()), [x, y], "aot_eager")(x, y)
    assert (total.tolist(), difference.tolist()) == ([4, 4], [-2, -2])


@pytest.mark.xdist_group("aot_eager")
def test_compiled_pieces_are_counted_from_zero() -> None:
    dynamo.start_counting()
    assert dynamo.pieces_compiled() == 0
    for _ in range(2):
        dynamo.compile_piece(fx.symbolic_trace(Sum()), [torch.ones(2), torch.ones(2)], "aot_eager")
    assert dynamo.pieces_compiled() == 2
    torch.compile(Sum(), backend="eager")(torch.ones(2), torch.ones(2))
    assert dynamo.pieces_compiled() == 2
    dynamo.start_counting()
    assert dynamo.pieces_compiled() == 0


@pytest.mark.xdist_group("aot_eager")
def test_caches_are_cold_and_come_back() -> None:
    before = os.environ.get("TORCHINDUCTOR_CACHE_DIR")
    with dynamo.cold_caches():
        inside = os.environ["TORCHINDUCTOR_CACHE_DIR"]
        assert inside != before
        assert not any(Path(inside).rglob("*"))
    assert os.environ.get("TORCHINDUCTOR_CACHE_DIR") == before
    assert not Path(inside).exists()


@pytest.mark.xdist_group("inductor")
def test_a_graph_that_inductor_runs_without_a_cuda_graph_is_counted() -> None:
    dynamo.start_counting()
    torch.compile(torch.neg, options={"triton.cudagraphs": True})(torch.ones(4))
    assert graphs_skipped() == 1  # on a CPU there is none
    dynamo.start_counting()
    assert graphs_skipped() == 0
