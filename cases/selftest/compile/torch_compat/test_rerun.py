"""A region run again on copies: the measured effect of a dropped guard, and what is refused or untouched."""

import threading
from collections.abc import Callable, Iterator
from importlib import import_module
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from cases.selftest.compile.watched_programs import compile_without_guards, rows
from deepstack_harness import watch_guards
from deepstack_harness.compile.torch_compat import rerun
from deepstack_harness.compile.torch_compat.modes import fake_world
from deepstack_harness.compile.torch_compat.rerun import CannotRerun, _copied
from deepstack_harness.compile.watch_facts import FailedGuard

COUNTS: list[int] = []


@pytest.fixture(autouse=True)
def fresh() -> None:
    torch.compiler.reset()
    COUNTS.clear()


class Branch(nn.Module):
    """A layer whose branch for an extra argument is not traced at first."""

    def __init__(self, branch: Callable[["Branch", Tensor, Any], Tensor]) -> None:
        super().__init__()
        self.branch = branch
        self.cache: Tensor
        self.register_buffer("cache", torch.zeros(4))
        self.count = 0
        self.drop = nn.Dropout(0.5)

    def forward(self, x: Tensor, extra: Any = None) -> Tensor:  # noqa: ANN401
        """Return (n, 4)."""
        return x + 1 if extra is None else self.branch(self, x, extra)


def watched_call(layer: nn.Module, extra: object = 1, backend: str = "eager") -> FailedGuard:
    """Return the guard that fails where a layer is called with an argument that it was not traced with."""
    run = torch.compile(
        layer, backend=backend, options={"guard_filter_fn": torch.compiler.skip_all_guards_unsafe}
    )
    with watch_guards() as watched, torch.no_grad():
        run(rows())
        run(rows(), extra)
    (guard,) = watched.decisive
    return guard


def writes_state(layer: Branch, x: Tensor, _: int) -> Tensor:
    layer.cache.add_(1)
    return x + layer.cache


def runs_a_collective(_: Branch, x: Tensor, __: int) -> Tensor:
    torch.distributed.all_reduce(x)
    return x


@torch.library.custom_op("watched_rerun::keeps", mutates_args=())
def keeps(x: Tensor) -> Tensor:
    return x.clone()


def runs_an_operator_of_its_own(_: Branch, x: Tensor, __: int) -> Tensor:
    kept: Tensor = keeps(x)
    return kept


def raises(_: Branch, __: Tensor, ___: int) -> Tensor:
    raise ValueError("no extra")


@pytest.mark.parametrize(
    ("branch", "reason"),
    [
        (writes_state, "it writes into a tensor that is no argument (aten.add_.Tensor)"),
        (runs_a_collective, "it runs a collective, c10d.allreduce_.default"),
        (runs_an_operator_of_its_own, "it runs watched_rerun.keeps.default, which is not torch's own and"),
        (raises, "the uncompiled code raises ValueError"),
    ],
)
def test_what_could_change_the_program_is_not_run_again(
    branch: Callable[[Branch, Tensor, Any], Tensor], reason: str
) -> None:
    layer = Branch(branch)
    with fake_world(0, 2):
        guard = watched_call(layer)
    assert str(guard.effect).startswith(f"effect not measured: {reason}")
    assert torch.equal(layer.cache, torch.zeros(4))
    assert guard.counts


def write_triple(out: Tensor, x: Tensor) -> None:
    out.copy_(x * 3)


ENGINE: Any = torch.library.Library("_C", "FRAGMENT")  # type: ignore[no-untyped-call]  # vLLM's namespace
for name in ("silu_and_mul", "unread"):
    ENGINE.define(f"{name}(Tensor! out, Tensor input) -> ()")
    ENGINE.impl(name, write_triple, "CPU")


@pytest.mark.parametrize(("name", "runs"), [("silu_and_mul", True), ("unread", False)])
def test_an_operator_of_an_engine_is_run_again_where_it_was_read(name: str, runs: bool) -> None:
    def computes(_: Branch, x: Tensor, __: int) -> Tensor:
        out = torch.empty_like(x)
        getattr(torch.ops._C, name)(out, x)
        return out

    effect = watched_call(Branch(computes)).effect
    assert (effect.calls, effect.distance) == ((1, 21) if runs else (0, 0)), effect.reason
    assert runs or effect.reason.startswith("it runs _C.unread.default, which is not torch's own")


def test_an_operator_of_an_engine_does_not_write_into_what_is_no_copy() -> None:
    def writes(layer: Branch, x: Tensor, _: int) -> Tensor:
        torch.ops._C.silu_and_mul(layer.cache, x[0])
        return x + layer.cache

    layer = Branch(writes)
    effect = watched_call(layer).effect
    assert effect.reason == "it writes into a tensor that is no argument (_C.silu_and_mul.default)"


@torch.library.custom_op("watched_rerun::triples", mutates_args=(), tags=(torch.Tag.pointwise,))
def triples(x: Tensor) -> Tensor:
    return x * 3


def test_an_operator_with_the_tag_pointwise_is_run_again() -> None:
    effect = watched_call(Branch(lambda _, x, __: triples(x))).effect
    assert (effect.calls, effect.distance) == (1, 21)


def test_a_module_that_holds_its_compiled_function_is_copied_without_it() -> None:
    layer = Branch(lambda _, x, __: x * 3)
    root = import_module("torch._C._dynamo.guards").RootGuardManager()
    vars(layer)["compiled"] = [compile_without_guards(lambda x: x), root, threading.Lock()]
    effect = watched_call(layer).effect
    assert (effect.calls, effect.distance) == (1, 21)


def test_batch_norm_in_training_writes_what_its_schema_does_not_say() -> None:

    class Both(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm = nn.BatchNorm1d(4)

        def forward(self, x: Tensor, extra: int | None = None) -> Tensor:
            return x + 1 if extra is None else self.norm(x)

    layer = Both().train()
    guard = watched_call(layer)
    assert "it writes into a tensor that is no argument" in guard.effect.reason
    assert torch.equal(layer.norm.running_mean, torch.zeros(4))  # type: ignore[arg-type]


def test_state_of_python_is_left_as_it_was() -> None:
    def counts(layer: Branch, x: Tensor, _: int) -> Tensor:
        layer.count += 1
        COUNTS.append(1)
        return x * 2

    layer = Branch(counts)
    guard = watched_call(layer)
    assert guard.effect.distance == 10
    assert layer.count == 0


def counts_calls(layer: Branch, x: Tensor, _: Tensor) -> Tensor:
    layer.count += 1
    return x + 1


def writes_its_argument(_: Branch, x: Tensor, extra: Tensor) -> Tensor:
    extra.mul_(5)
    return x + 1


@pytest.mark.parametrize(
    ("branch", "name"),
    [(counts_calls, "self.count"), (writes_its_argument, "extra")],
    ids=["state", "argument"],
)
def test_state_that_a_call_changed_is_an_effect_where_the_outputs_are_equal(
    branch: Callable[[Branch, Tensor, Any], Tensor], name: str
) -> None:
    extra = torch.ones(3, 4)
    guard = watched_call(Branch(branch), extra)
    assert (guard.name, str(guard.effect)) == ("extra", f"the call leaves another {name}")
    assert torch.equal(extra, torch.ones(3, 4))


def test_a_global_container_that_the_region_names_is_left_as_it_was() -> None:
    def count(x: Tensor, extra: int | None = None) -> Tensor:
        if extra is None:
            return x + 1
        COUNTS.append(1)
        return x * 2

    run = compile_without_guards(count)
    with watch_guards() as watched:
        run(rows())
        run(rows(), 1)
    assert watched.decisive[0].effect.distance == 10
    assert COUNTS == []


def test_an_argument_is_copied_with_its_strides_before_it_is_written() -> None:
    def writes_argument(_: Branch, __: Tensor, extra: Tensor) -> Tensor:
        extra.mul_(5)
        assert extra.stride() == (1, 3)
        return extra

    extra = torch.ones(4, 3).t()
    guard = watched_call(Branch(writes_argument), extra)
    assert guard.effect.calls == 1
    assert torch.equal(extra, torch.ones(3, 4))


def test_random_numbers_are_those_without_a_watch() -> None:
    def outputs() -> Iterator[Tensor]:
        torch.manual_seed(3)
        torch.compiler.reset()
        run = torch.compile(
            Branch(lambda layer, x, _: layer.drop(x)).train(),
            backend="eager",
            options={"guard_filter_fn": torch.compiler.skip_all_guards_unsafe},
        )
        yield run(rows())
        yield run(rows(), 1)
        yield torch.rand(4)

    with watch_guards() as watched:
        seen = list(outputs())
    assert watched.decisive[0].effect.distance > 0
    assert all(torch.equal(*pair) for pair in zip(seen, outputs(), strict=True))


def test_hooks_are_not_run_again() -> None:
    calls: list[int] = []
    layer = Branch(lambda layer, x, _: layer.drop(x))
    run = compile_without_guards(layer)
    with watch_guards() as watched:
        run(rows())
        layer.drop.register_forward_hook(lambda *_: calls.append(1))
        run(rows(), 1)
    assert [guard.effect.reason for guard in watched.decisive] == ["hooks of its modules would run again"]
    assert calls == []


def test_an_input_that_cannot_be_copied() -> None:
    guard = watched_call(Branch(lambda _, x, __: x * 2), (letter for letter in "ab"))
    assert guard.effect.reason.startswith("its inputs cannot be copied: TypeError: cannot pickle 'generator'")


def test_the_rest_after_a_graph_break_is_not_run() -> None:
    def count(x: Tensor) -> Tensor:
        COUNTS.append(1)
        return x

    counted: Callable[[Tensor], Tensor] = torch.compiler.disable(count)  # type: ignore[no-untyped-call]

    def broken(x: Tensor, extra: int | None = None) -> Tensor:
        return counted(x + 1 if extra is None else x * 2) - 1

    run = torch.compile(
        broken, backend="eager", options={"guard_filter_fn": torch.compiler.skip_all_guards_unsafe}
    )
    with watch_guards() as watched:
        run(rows())
        run(rows(), 1)
    reasons = [guard.effect.reason for guard in watched.decisive]
    assert reasons == ["the graph is broken, and its rest would run too"]
    assert COUNTS == [1, 1]


def test_a_compiled_kernel_is_not_run_on_another_layout() -> None:
    def half(x: Tensor) -> Tensor:
        return x * 0.5

    for backend, measured in (("eager", True), ("aot_eager", False)):
        torch.compiler.reset()
        run = torch.compile(
            half, backend=backend, options={"guard_filter_fn": torch.compiler.skip_all_guards_unsafe}
        )
        with watch_guards() as watched:
            run(torch.ones(4, dtype=torch.float32))
            run(torch.ones(4, dtype=torch.float64))
        (guard,) = watched.regions[0].failed.values()
        assert guard.effect.is_none is measured
        assert guard.counts is not measured
        if not measured:
            assert guard.effect.reason.startswith("its kernels are for another dtype")


def test_a_branch_of_user_code_on_a_size_of_1_is_found_by_its_effect() -> None:
    def branch(x: Tensor) -> Tensor:
        return x * 10 if x.shape[0] == 1 else x

    run = compile_without_guards(branch)
    with watch_guards() as watched:
        run(rows(6))
        run(rows(1) + 1)
    (guard,) = watched.decisive
    assert (guard.name, guard.rule) == ("x.shape[0]", "2 <= L['x'].size()[0]")
    assert (guard.guard_class.value, guard.effect.distance) == ("shown", 36)
    assert (guard.then.value, guard.now.value) == ("6", "1")


def test_no_effect_in_the_first_call_is_looked_at_again() -> None:
    run = compile_without_guards(Branch(lambda _, x, extra: x + 1 + extra))
    with watch_guards() as watched:
        run(rows())
        run(rows(), torch.zeros(3, 4))
        assert watched.decisive == []
        for step in range(3):
            run(rows(), torch.full((3, 4), float(step)))
    (guard,) = watched.decisive
    assert (guard.effect.calls, guard.effect.distance) == (3, 2)


class Unreadable:
    """An object of a program that cannot be looked at, as some of an engine's configuration."""

    def __getattribute__(self, name: str) -> object:
        raise AssertionError("the configuration is not set")


def test_an_object_that_cannot_be_looked_at_is_refused() -> None:
    layer = torch.nn.Linear(2, 2)
    vars(layer)["config"] = Unreadable()
    with pytest.raises(CannotRerun, match="cannot be copied: AssertionError: the configuration is not set"):
        _copied({"self": layer})
    many = {"self": torch.nn.Linear(2, 2), "x": [[number] for number in range(30_000)]}
    with pytest.raises(CannotRerun, match="lead to more than 20000 objects"):
        _copied(many)


def test_an_infinite_element_hides_no_other_difference() -> None:
    written, traced = torch.tensor([float("inf"), 1.0]), torch.tensor([float("inf"), 2.0])
    assert rerun._difference([written], [traced]).matters
    assert not rerun._difference([written], [written.clone()]).matters


def test_outputs_without_values_are_not_compared() -> None:
    answers = [torch.empty(2, device="meta")]
    with pytest.raises(CannotRerun, match="'meta' has no values to compare"):
        rerun._difference(answers, answers)
