"""Nothing is green that was not exercised: structures of inputs, empty buffers, code that never ran."""

import functools
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from cases.by_day import by_day
from deepstack_harness.contract.observation import NOT_FINITE
from deepstack_harness.contract.protocols import Inputs
from deepstack_harness.contract.verdicts import Verdict
from deepstack_harness.models.reference import ReferenceBuffer
from deepstack_harness.pytest_plugin.compile_arms import CompileArms
from deepstack_harness.pytest_plugin.fixtures import DeepstackContract, GraphBudget, KernelFactsOf

Failed = pytest.fail.Exception
Structure = Any
Make = Callable[[int], Structure]


def rows(tokens: int, seed: int = 0) -> Tensor:
    return torch.randn(tokens, 8, generator=torch.Generator().manual_seed(100 * seed + tokens))


def given(payloads: Mapping[int, Make]) -> Callable[[int], Inputs]:
    """Return `inputs` with the payload that is stated for each number of tokens."""
    return lambda tokens: Inputs(
        rows(tokens, 7), torch.zeros(3, tokens, dtype=torch.long), payloads[tokens](tokens)
    )


def none(tokens: int) -> None:
    return None


def empty(tokens: int) -> tuple[()]:
    return ()


def two(tokens: int) -> tuple[Tensor, Tensor]:
    return rows(tokens, 1), rows(tokens, 2)


def adds_if_there(hidden: Tensor, positions: Tensor, payload: Structure) -> Tensor:
    """Branch on None, as the class of vLLM 43602 does."""
    return hidden if payload is None else hidden + payload[0] + payload[1]


def adds_all(hidden: Tensor, positions: Tensor, payload: Structure) -> Tensor:
    for level in payload:
        hidden = hidden + level
    return hidden


def adds_keys(hidden: Tensor, positions: Tensor, payload: Structure) -> Tensor:
    for key in sorted(payload):
        hidden = hidden + payload[key]
    return hidden


def scales(hidden: Tensor, positions: Tensor, payload: Structure) -> Tensor:
    scaled: Tensor = hidden * payload
    return scaled


def adds_nested(hidden: Tensor, positions: Tensor, payload: Structure) -> Tensor:
    first, (second, rest) = payload
    added: Tensor = hidden + first + second
    return added if rest is None else added + rest[0]


def halves_a_profile(hidden: Tensor, positions: Tensor, payload: Structure) -> Tensor:
    return hidden / 2 if payload["profile"] else hidden


def one_key(tokens: int) -> dict[str, Tensor]:
    return {"image": rows(tokens, 1)}


def two_keys(tokens: int) -> dict[str, Tensor]:
    return {"image": rows(tokens, 1), "video": rows(tokens, 2)}


def nested(tokens: int) -> Structure:
    return rows(tokens, 1), (rows(tokens, 2), (rows(tokens, 3),))


def nested_none(tokens: int) -> Structure:
    return rows(tokens, 1), (rows(tokens, 2), None)


CASES: Mapping[str, tuple[Callable[..., Tensor], Mapping[int, Make], Sequence[int]]] = {
    "None at the largest size, last": (adds_if_there, {4: two, 9: none}, [4, 9]),
    "None at the largest size, first": (adds_if_there, {4: two, 9: none}, [9, 4]),
    "None at the smallest size, last": (adds_if_there, {4: none, 9: two}, [9, 4]),
    "None at the smallest size, first": (adds_if_there, {4: none, 9: two}, [4, 9]),
    "None in between": (adds_if_there, {4: two, 6: none, 9: two}, [4, 6, 9]),
    "() at the largest size, first": (adds_all, {4: two, 9: empty}, [9, 4]),
    "() at the largest size, last": (adds_all, {4: two, 9: empty}, [4, 9]),
    "a key less at the largest size, first": (adds_keys, {4: two_keys, 9: one_key}, [9, 4]),
    "a key more at the largest size, first": (adds_keys, {4: one_key, 9: two_keys}, [9, 4]),
    "another number": (scales, {4: lambda _: 3, 9: lambda _: 5}, [9, 4]),
    "a flag": (halves_a_profile, {4: lambda _: {"profile": False}, 9: lambda _: {"profile": True}}, [9, 4]),
    "None inside at the largest size, first": (adds_nested, {4: nested, 9: nested_none}, [9, 4]),
    "None inside at the largest size, last": (adds_nested, {4: nested, 9: nested_none}, [4, 9]),
}


@pytest.mark.parametrize("name", by_day(CASES, count=5))
def test_a_structure_that_changes_shows_that_its_guards_were_dropped(
    compile_arms: CompileArms, name: str
) -> None:
    function, payloads, sizes = CASES[name]
    with pytest.raises(Failed, match="is not the same when compiled\n  broken: R0 output: ") as caught:
        compile_arms.calls(function, given(payloads), sizes, arms=["eager/drop_all"])
    assert re.search(r"the guard '.+' \(.+\) was dropped", str(caught.value))


@pytest.mark.parametrize("name", by_day(CASES, count=5))
def test_a_structure_that_changes_is_no_fault_where_its_guards_stay(
    compile_arms: CompileArms, name: str
) -> None:
    function, payloads, sizes = CASES[name]
    (run,) = compile_arms.calls(function, given(payloads), sizes, arms=["eager/stock"])
    assert (run.worst, len(run.distances)) == (0, len(sizes))
    assert run.graphs == len(set(payloads.values()))


def test_an_equal_structure_at_all_sizes_is_one_graph_without_guards(compile_arms: CompileArms) -> None:
    for function, make in ((adds_all, two), (adds_keys, two_keys), (adds_nested, nested)):
        (run,) = compile_arms.calls(function, given({4: make, 9: make}), [9, 4, 9], arms=["eager/drop_all"])
        assert (run.worst, run.graphs, len(run.distances)) == (0, 1, 3)


def test_inputs_are_drawn_once_for_each_call_of_any_arm(compile_arms: CompileArms) -> None:
    """Equal sizes with other structures: what a function of only the size could not give."""
    drawn = iter([None, two(4), None])

    def inputs(tokens: int) -> Inputs:
        return Inputs(rows(tokens, 7), torch.zeros(3, tokens), next(drawn))

    with pytest.raises(Failed, match="broken: R0 output: .* step 2 'forward 4': ") as caught:
        compile_arms.calls(adds_if_there, inputs, [4, 4, 4], arms=["eager/stock", "eager/drop_all"])
    assert "eager/stock" not in str(caught.value)
    assert list(drawn) == []


def test_a_tensor_that_nothing_reads_is_reported(compile_arms: CompileArms) -> None:
    def reads_the_first(hidden: Tensor, positions: Tensor, payload: Structure) -> Tensor:
        added: Tensor = hidden + payload[0]
        return added

    with pytest.raises(Failed) as caught:
        compile_arms.calls(reads_the_first, given({4: two}), [4], arms=["eager/stock", "eager/drop_all"])
    title, *lines = str(caught.value).splitlines()
    assert title.endswith("was not compared in all that was asked for")
    assert [line.partition("payload")[2][:34] for line in lines] == ["[1] moves the output by 0 at most "] * 2
    compile_arms.calls(reads_the_first, given({4: two}), [4], rules=[])


@functools.lru_cache
def doubled(number: int) -> int:
    return 2 * number


def test_a_warning_of_the_compiler_that_is_an_error_is_no_broken_rule(compile_arms: CompileArms) -> None:
    """As torch's warning about Python 3.13.0 was: "broken: R0 1.79769e+308"."""

    def looks_up(hidden: Tensor, positions: Tensor, payload: Structure) -> Tensor:
        added: Tensor = hidden * doubled(3) + payload[0] + payload[1]
        return added

    with pytest.raises(Failed) as caught:
        compile_arms.calls(looks_up, given({4: two, 9: two}), [4, 9], arms=["eager/drop_all"])
    said = str(caught.value)
    assert "broken: " not in said
    assert "not judged: R0" in said
    assert (
        f"the compiler of torch {torch.__version__} failed here: InternalTorchDynamoError: UserWarning"
        in said
    )


def test_zeros_are_a_payload_that_can_matter(compile_arms: CompileArms) -> None:
    def zeros(tokens: int) -> tuple[Tensor, Tensor]:
        return torch.zeros(tokens, 8), torch.zeros(tokens, 8)

    compile_arms.calls(adds_if_there, given({4: zeros, 9: two}), [9, 4], arms=["eager/drop_all"])
    with pytest.raises(Failed, match=r"payload\[1\] moves the output by 0 at most"):
        compile_arms.calls(lambda hidden, *_: hidden * 2, given({4: zeros}), [4], arms=["eager/drop_all"])


def test_a_payload_that_cannot_be_zeroed_is_no_error(compile_arms: CompileArms) -> None:
    def rotates(hidden: Tensor, positions: Tensor, payload: Structure) -> Tensor:
        rotated: Tensor = hidden @ torch.linalg.inv(payload["basis"])
        return rotated

    inputs = given({4: lambda _: {"basis": torch.eye(8) * 2}})
    (run,) = compile_arms.calls(rotates, inputs, [4], arms=["eager/stock"])
    assert (run.worst, run.distances[0].effect) == (0, NOT_FINITE)


def test_a_function_may_change_its_arguments(compile_arms: CompileArms) -> None:
    def in_place(hidden: Tensor, positions: Tensor, payload: Structure) -> Tensor:
        for level in payload:
            hidden.add_(level)
            level.zero_()
        return hidden

    (run,) = compile_arms.calls(in_place, given({4: two, 9: two}), [9, 4, 9], arms=["eager/drop_all"])
    assert (run.worst, len(run.distances)) == (0, 3)


def test_strides_of_the_inputs_are_preserved(compile_arms: CompileArms) -> None:
    def by_strides(hidden: Tensor, positions: Tensor, payload: Structure) -> Tensor:
        added: Tensor = hidden + payload[0] * payload[0].stride(1)
        return added

    def transposed(tokens: int) -> tuple[Tensor]:
        return (rows(8, 1).new_ones(8, tokens).T,)

    (run,) = compile_arms.calls(
        by_strides, given({4: transposed, 9: transposed}), [4, 9], arms=["eager/stock"]
    )
    assert [round(distances.effect) for distances in run.distances] == [4, 9]


def first_two(hidden: Tensor, positions: Tensor, payload: Structure) -> Tensor:
    return hidden[:2]


@pytest.mark.parametrize(
    ("function", "inputs", "said"),
    [
        (
            adds_if_there,
            given({4: two, 9: one_key}),
            r"payload \{'image': '\(9, 8\) float32'\}\), not compiled",
        ),
        (adds_if_there, lambda _: None, r"inputs\(4\) returned NoneType, not deepstack_harness.Inputs"),
        (
            adds_if_there,
            lambda _: Inputs(rows(3), torch.zeros(3, 3), None),
            r"inputs\(4\) has positions \(3, 3\) float32, not \(3, 4\)",
        ),
        (first_two, given({4: none, 9: none}), r"a tensor \(2, 8\), not \(4, hidden\)"),
    ],
)
def test_a_wrong_call_is_no_verdict(
    compile_arms: CompileArms, function: Callable[..., Tensor], inputs: Callable[[int], Inputs], said: str
) -> None:
    with pytest.raises(Failed, match=said) as caught:
        compile_arms.calls(function, inputs, [4, 9], arms=["eager/stock"])
    assert "broken" not in str(caught.value)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"arms": []}, r"compile_arms\(arms=\[\]\): there is nothing to compare"),
        ({"arms": ["eager"]}, "not put to the test: R0 output: arm eager is neither compiled nor captured"),
        ({"arms": ["eager/stock"], "rules": ["R10"]}, "not put to the test: R10 work: "),
        ({"arms": ["eager/stock"], "graphs": 0}, "broken: R11 graphs: 1 graph, limit 0, on .*"),
    ],
)
def test_a_green_of_which_nothing_was_exercised_is_red(
    compile_arms: CompileArms, options: Structure, said: str
) -> None:
    with pytest.raises(Failed, match=said):
        compile_arms.calls(adds_all, given({4: two}), [4], **options)


class RefusesAll(ReferenceBuffer):
    def set(self, payload: Tensor) -> None:
        raise ValueError("no room")


class DropsAll(ReferenceBuffer):
    def set(self, payload: Tensor) -> None:
        pass


KEPT_WHEN_EMPTY = ["R1", "R4", "R7", "R8", "R11"]
"""By most of their traces; `DropsAll` breaks R4 and R8 where rows are read above the capacity."""


@pytest.mark.parametrize(
    ("make", "why"), by_day([(RefusesAll, ": set raised ValueError: no room"), (DropsAll, "")])
)
@pytest.mark.slow  # 5 s each; test_plugin.py has a check that would show nothing by day
def test_rules_that_an_empty_buffer_passes_were_not_tested(
    deepstack_contract: DeepstackContract, make: type[ReferenceBuffer], why: str
) -> None:
    """The traces are the same for each rule, so one run has all of them."""
    with pytest.raises(Failed) as caught:
        deepstack_contract(make, rules=KEPT_WHEN_EMPTY)
    assert f"  not put to the test: no answer had a row that was set{why}\n" in str(caught.value)


@pytest.mark.slow  # 5 s
def test_rules_that_an_empty_buffer_passes_are_tested_by_the_reference(
    deepstack_contract: DeepstackContract,
) -> None:
    verdicts = deepstack_contract(ReferenceBuffer, rules=KEPT_WHEN_EMPTY)
    put_to_the_test = {row.rule for row in verdicts.rows if row.verdict is Verdict.PASS}
    assert set(KEPT_WHEN_EMPTY) <= put_to_the_test


def test_a_budget_of_0_is_for_calls_of_something_compiled(graph_budget: GraphBudget) -> None:
    step = torch.compile(torch.relu, backend="eager")
    step(torch.ones(3))
    nothing = pytest.raises(Failed, match="no compiled graph ran in here, so there is nothing to count")
    with nothing, graph_budget(0):
        torch.relu(torch.ones(3))
    with graph_budget(0):
        step(torch.ones(3))
    with nothing, graph_budget(0), torch.compiler.set_stance("force_eager"):
        step(torch.ones(3))


_disabled: Callable[..., Any] = torch.compiler.disable
"""Typed, as torch's own is not."""


def _doubled(x: Tensor) -> Tensor:
    return x * 2


_left_out: Callable[[Tensor], Tensor] = _disabled(_doubled)


def _calls_it(x: Tensor) -> Tensor:
    return _left_out(x)


class _LeftOut(nn.Module):
    forward = _disabled(lambda _, x: x * 2)


@pytest.mark.parametrize(
    "step",
    [
        torch.compile(_calls_it, backend="eager"),
        torch.compile(_LeftOut(), backend="eager"),
        _disabled(torch.compile(torch.relu, backend="eager")),
        _left_out,
    ],
    ids=["inside", "as a forward", "around what is compiled", "alone"],
)
def test_a_disabled_function_meets_no_budget(
    step: Callable[[Tensor], Tensor], graph_budget: GraphBudget
) -> None:
    with (
        pytest.raises(Failed, match="no graph was built: .*torch.compiler.disable"),
        graph_budget(1, breaks=1),
    ):
        step(torch.ones(3))
    warm = torch.compile(torch.sigmoid, backend="eager")
    warm(torch.ones(3))
    with pytest.raises(Failed, match="no compiled graph ran in here"), graph_budget(0, breaks=1):
        step(torch.ones(3))
    with graph_budget(0):
        warm(torch.ones(3))


def test_torch_compiles_a_function_that_was_disabled_before(graph_budget: GraphBudget) -> None:
    """`torch.compile(disable(f))` unwraps `f`, so that there is a graph to count."""
    step: Callable[[Tensor], Tensor] = torch.compile(_disabled(lambda x: x * 2), backend="eager")
    with graph_budget(1) as counter:
        step(torch.ones(3))
    assert counter.so_far.graphs == 1


def test_a_graph_that_is_used_for_something_else_meets_no_budget(graph_budget: GraphBudget) -> None:
    def add(x: torch.Tensor, extra: torch.Tensor | None = None) -> torch.Tensor:
        return x + 1 if extra is None else x + extra

    step = torch.compile(
        add, backend="eager", options={"guard_filter_fn": torch.compiler.skip_all_guards_unsafe}
    )
    with graph_budget(1):
        step(torch.ones(3))
        step(torch.ones(3), torch.ones(3))  # the output is the same
    failed = "(?s)a graph too few: 0 graphs.*: extra was None when compiled.*outputs differ by 1"
    with pytest.raises(Failed, match=failed), graph_budget(0):
        step(torch.ones(3), torch.zeros(3))
    with graph_budget(0):
        step(torch.ones(3))


def test_kernels_of_other_sizes_than_those_of_the_step_are_not_facts_of_it(
    kernel_facts: KernelFactsOf,
) -> None:
    step = torch.compile(lambda hidden: (hidden * 2).relu())
    with pytest.raises(Failed, match="no kernel has rows of the 7 tokens or of the capacity 16: is the call"):
        kernel_facts(lambda: step(torch.ones(5, 8)), tokens=7, capacity=16, run=False)
    facts = kernel_facts(lambda: step(torch.ones(5, 8)), tokens=5, capacity=16, run=False)
    assert facts.calls[0].rows == 5


class AddsLevels(nn.Module):
    """Decoder that adds its payload; hidden (n, 8), levels (n, 8) -> (n, 8)."""

    def forward(self, hidden: Tensor, positions: Tensor, payload: Structure) -> Tensor:
        return adds_all(hidden, positions, payload or ())


@pytest.mark.parametrize(
    ("trace", "arm"),
    [("cap 16: profile 16; forward 9", "eager/drop_all"), ("cap 16: capture 16; replay 16", "eager/full")],
)
def test_traces_that_set_nothing_put_no_output_to_the_test(
    compile_arms: CompileArms, trace: str, arm: str
) -> None:
    said = f"not put to the test: R0 output under {arm}: no step ran the decoder on a payload"
    with pytest.raises(Failed, match=said):
        compile_arms(AddsLevels(), ReferenceBuffer, [trace], hidden=8, levels=2, arms=[arm], rules=["R0"])
    compile_arms(
        AddsLevels(), ReferenceBuffer, [trace, f"{trace}; set 9; forward 16"], hidden=8, levels=2, arms=[arm],
        rules=["R0"],
    )  # fmt: skip
