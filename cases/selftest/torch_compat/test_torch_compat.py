"""Each private torch API does what `deepstack_harness.torch_compat` says of it, on this torch."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

from deepstack_harness.torch_compat import dynamo


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
