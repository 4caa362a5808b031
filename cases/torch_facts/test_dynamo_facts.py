"""Facts of Dynamo that the harness rests on: guards, sizes, caches and counters."""

import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from cases.torch_facts.facts import Since, fact


def add(x: Tensor, payload: Tensor | None = None) -> Tensor:
    return x + 1 if payload is None else x + payload


def drop_all(guards: Sequence[object]) -> list[bool]:
    return [False] * len(guards)


def compiled(function: Callable[..., Any] = add, **options: Any) -> Callable[..., Any]:
    run: Callable[..., Any] = torch.compile(function, backend="eager", fullgraph=True, **options)
    return run


def graphs() -> int:
    from torch._dynamo.utils import counters

    return int(counters["stats"]["unique_graphs"])


@pytest.fixture(autouse=True)
def cleared() -> Iterator[None]:
    from torch._dynamo.utils import clear_compilation_metrics, counters

    torch.compiler.reset()
    counters.clear()
    clear_compilation_metrics()
    yield
    torch.compiler.reset()


X = torch.zeros(4)
PAYLOAD = torch.full((4,), 5.0)

# Guards


@fact("torch.compile", "every arm with kept guards")
def test_a_tensor_where_the_first_call_had_none_recompiles() -> None:
    run = compiled()
    assert run(X).tolist() == [1.0] * 4
    assert run(X, PAYLOAD).tolist() == [5.0] * 4
    assert graphs() == 2


@fact("torch.compile(options={'guard_filter_fn': ..})", "the arms drop_all and shape_env_only")
def test_a_dropped_guard_of_none_gives_the_result_of_the_first_call() -> None:
    run = compiled(options={"guard_filter_fn": drop_all})
    run(X)
    assert run(X, PAYLOAD).tolist() == [1.0] * 4
    assert graphs() == 1


@fact("torch.compile(options=..)", "compile/compiled.py, which hands a copy of the options over")
def test_compile_takes_the_guard_filter_out_of_the_options_of_its_caller() -> None:
    options = {"guard_filter_fn": drop_all}
    compiled(options=options)
    assert options == {}


@fact("torch._dynamo.types.GuardFilterEntry", "the guard filters and torch_compat/guards.py")
def test_a_guard_filter_is_given_name_type_and_value_of_each_guard() -> None:
    seen: dict[str, tuple[str, bool, bool]] = {}

    def read(guards: Sequence[Any]) -> list[bool]:
        seen.update({guard.name: (guard.guard_type, guard.has_value, guard.is_global) for guard in guards})
        return [True] * len(guards)

    compiled(options={"guard_filter_fn": read})(X)
    assert any("payload" in name for name in seen), seen
    assert any(guard_type == "TENSOR_MATCH" for guard_type, _, _ in seen.values()), seen


@fact("torch.compiler.skip_all_guards_unsafe", "the arm drop_all, as vLLM names it")
def test_skip_all_guards_unsafe_drops_every_guard() -> None:
    run = compiled(options={"guard_filter_fn": torch.compiler.skip_all_guards_unsafe})
    run(X)
    assert run(X, PAYLOAD).tolist() == [1.0] * 4


@fact("torch.compiler.keep_tensor_guards_unsafe", "the arm keep_tensor")
def test_keep_tensor_guards_unsafe_leaves_only_the_guards_of_tensors() -> None:
    run = compiled(options={"guard_filter_fn": torch.compiler.keep_tensor_guards_unsafe}, dynamic=False)
    run(X)
    assert run(X, PAYLOAD).tolist() == [1.0] * 4  # that it was None is guarded by identity
    assert run(torch.zeros(5)).shape == (5,)
    assert graphs() == 2


@fact("CheckFunctionManager", "compile/watched.py, which keeps the tree of all guards")
def test_all_names_that_check_dropped_guards_exist() -> None:
    from deepstack_harness.compile.torch_compat.guards import missing_names

    assert missing_names() == ()


@fact("RootGuardManager.add_epilogue_lambda_guard", "compile/watched.py")
def test_a_dropped_guard_that_fails_in_a_later_call_is_found() -> None:
    from deepstack_harness import watch_guards

    with watch_guards() as watched:
        run = compiled(options={"guard_filter_fn": drop_all})
        run(X)
        run(X, PAYLOAD)
    (region,) = watched.regions
    assert any("payload" in guard.source for guard in region.failed.values()), region


@fact("torch._dynamo.eval_frame._debug_get_cache_entry_list", "torch_compat/dynamo.py: checked_guards")
def test_the_guard_tree_of_a_cached_graph_can_be_printed() -> None:
    from torch._dynamo.eval_frame import _debug_get_cache_entry_list

    compiled()(X)
    (entry,) = _debug_get_cache_entry_list(add.__code__)
    assert "+- " in str(entry.guard_manager)
    assert "payload" in str(entry.guard_manager)


@fact("torch._dynamo.eval_frame._callback_from_stance", "torch_compat/dynamo.py: counting_runs")
def test_each_run_of_a_graph_can_be_counted() -> None:
    from deepstack_harness.compile.torch_compat.dynamo import counting_runs

    run = compiled()
    with counting_runs() as runs:
        run(X)
        run(X)
    assert runs() == 2


@fact("torch.compile", "promise I1 over attributes")
def test_an_attribute_that_was_none_is_guarded() -> None:
    class Reader(nn.Module):
        side: Tensor | None = None

        def forward(self, x: Tensor) -> Tensor:
            return add(x, self.side)

    module = Reader()
    run = compiled(module)
    run(X)
    module.side = PAYLOAD
    assert run(X).tolist() == [5.0] * 4


# Sizes and Python values


@fact("torch._dynamo.mark_dynamic", "every arm with symbolic sizes")
def test_a_marked_dimension_has_one_graph_for_all_sizes_from_two() -> None:
    from torch._dynamo import mark_dynamic

    run = compiled(dynamic=False)
    for tokens in (4, 5, 6):
        x = torch.zeros(tokens)
        mark_dynamic(x, 0)
        run(x)
    assert graphs() == 1


@fact("torch.compile(dynamic=True)", "contract/graph_budgets: one token has a graph of its own")
@pytest.mark.parametrize("tokens", [0, 1])
def test_zero_and_one_row_have_graphs_of_their_own(tokens: int) -> None:
    run = compiled(dynamic=True)
    for size in (4, 5, tokens):
        run(torch.zeros(size))
    assert graphs() == 2


@fact("torch._dynamo.decorators.mark_unbacked", "the arm mark_unbacked")
def test_an_unbacked_size_has_one_graph_for_zero_and_one_too() -> None:
    from torch._dynamo.decorators import mark_unbacked

    run = compiled(dynamic=False)
    for tokens in (4, 1, 0, 5):
        x = torch.zeros(tokens)
        mark_unbacked(x, 0)
        run(x)
    assert graphs() == 1


@fact("torch.compile", "compile_steps: an int that changes")
def test_a_python_int_is_a_constant_first_and_a_symbol_from_its_second_value() -> None:
    run = compiled(lambda x, scale: x * scale + scale)
    counts = []
    for scale in (3, 4, 5, 6):
        run(X, scale)
        counts.append(graphs())
    assert counts == [1, 2, 2, 2]


# Recompiles, their limit, and stances


@fact("torch._dynamo.utils.get_compilation_metrics", "torch_compat/dynamo.py: recompile_reasons")
def test_a_recompile_names_the_guard_that_failed() -> None:
    from torch._dynamo.utils import get_compilation_metrics

    run = compiled()
    run(X)
    run(X, PAYLOAD)
    reasons = [metrics.recompile_reason for metrics in get_compilation_metrics()]
    assert reasons[0] is None
    assert "payload is None" in str(reasons[1])


@fact(
    "torch._dynamo.utils.get_compilation_metrics", "torch_compat/dynamo.py, which clears them for each case"
)
@pytest.mark.slow  # 4 s
def test_the_last_64_compilations_are_retained_and_no_more() -> None:
    from torch._dynamo.utils import get_compilation_metrics

    for _ in range(66):
        torch.compiler.reset()
        compiled()(X)
    assert len(get_compilation_metrics()) == 64


@fact("torch.compile", "torch_compat/dynamo.py: refuse_silent_fallback")
def test_behind_the_recompile_limit_calls_run_uncompiled_without_an_error() -> None:
    from torch._dynamo import config

    allowed = torch.compiler.config.patch(fail_on_recompile_limit_hit=False)  # type: ignore[attr-defined]
    with allowed, config.patch(recompile_limit=2), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        run = torch.compile(lambda x, mode: x + len(mode), backend="eager")
        answers = [run(X, "x" * length).tolist()[0] for length in range(5)]
    assert answers == [0.0, 1.0, 2.0, 3.0, 4.0]
    assert graphs() == 2


@fact("torch.compile", "torch_compat/dynamo.py: refuse_silent_fallback, which puts the setting back")
def test_a_whole_graph_call_that_compiles_nothing_leaves_settings_changed() -> None:
    from torch._dynamo import config

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch advises against TorchScript
        scripted = torch.jit.trace(nn.Linear(4, 4), X)  # type: ignore[no-untyped-call]
    with config.patch(automatic_dynamic_shapes=True):
        with pytest.raises(RuntimeError, match="found no compiled frames"):
            compiled(scripted, dynamic=False)(X)
        assert config.automatic_dynamic_shapes is False


@fact("torch.compiler.config.fail_on_recompile_limit_hit", "torch_compat/dynamo.py: refuse_silent_fallback")
def test_the_recompile_limit_can_be_made_an_error() -> None:
    from torch._dynamo import config

    from deepstack_harness.compile.torch_compat.dynamo import is_recompile_limit, refuse_silent_fallback

    with refuse_silent_fallback(), config.patch(recompile_limit=1):
        run = compiled()
        run(X)
        with pytest.raises(Exception) as caught:  # noqa: PT011  # the class differs between releases
            run(X, PAYLOAD)
    assert is_recompile_limit(caught.value)


@fact("torch.compiler.set_stance('fail_on_recompile')", "graph budgets")
def test_the_stance_that_forbids_recompiles_forbids_the_first_compilation_too() -> None:
    run = compiled()
    with torch.compiler.set_stance("fail_on_recompile"), pytest.raises(RuntimeError):
        run(X)


@fact("torch.compile", "compile/compiled.py: each case has classes and caches of its own")
def test_two_modules_of_one_class_share_the_cache_of_their_code() -> None:
    class Scale(nn.Module):
        def __init__(self, scale: float) -> None:
            super().__init__()
            self.scale = scale

        def forward(self, x: Tensor) -> Tensor:
            return x * self.scale

    from torch._dynamo.eval_frame import _debug_get_cache_entry_list

    for scale in (2.0, 3.0):
        compiled(Scale(scale))(X)
    assert len(_debug_get_cache_entry_list(Scale.forward.__code__)) == 2


@fact("torch.compiler.reset", "torch_compat/dynamo.py: start_counting")
def test_reset_drops_compiled_graphs_and_leaves_the_counters() -> None:
    run = compiled()
    run(X)
    torch.compiler.reset()
    assert graphs() == 1
    run(X)
    assert graphs() == 2


@fact("torch._dynamo.utils.counters['graph_break']", "torch_compat/dynamo.py: graph_breaks")
def test_graph_breaks_are_counted_by_their_reason() -> None:
    from torch._dynamo import graph_break
    from torch._dynamo.utils import counters

    def broken(x: Tensor) -> Tensor:
        graph_break()
        return x + 1

    torch.compile(broken, backend="eager")(X)
    assert sum(counters["graph_break"].values()) == 1


@fact("torch.compiler.disable", "graph budgets: no graph is no measurement")
def test_a_function_that_only_calls_a_disabled_one_has_no_graph_and_no_warning() -> None:
    disabled = torch.compiler.disable(add)  # type: ignore[no-untyped-call]
    assert torch.compile(lambda x: disabled(x), backend="eager")(X).tolist() == [1.0] * 4  # noqa: PLW0108
    assert graphs() == 0


@fact("torch.compile", "graph budgets")
def test_compiling_a_disabled_function_compiles_what_it_wraps() -> None:
    disabled = torch.compiler.disable(add)  # type: ignore[no-untyped-call]
    run: Callable[..., Any] = torch.compile(disabled, backend="eager")
    run(X)
    assert graphs() == 1


# Saved artifacts


@fact(
    "torch.compile(..).aot_compile",
    "torch_compat/artifact.py and vLLM 50891",
    began=Since("2.11", "what backend eager compiled cannot be saved before"),
)
def test_a_loaded_artifact_returns_as_in_its_first_call_if_no_guard_was_saved(tmp_path: Path) -> None:
    from torch._dynamo import config

    with config.patch(enable_aot_compile=True):
        run: Any = compiled(options={"guard_filter_fn": drop_all}, dynamic=False)
        run.aot_compile(((X, None), {})).save_compiled_function(str(tmp_path / "saved"))
    with (tmp_path / "saved").open("rb") as file:
        loaded = torch.compiler.load_compiled_function(file)
    assert loaded(X, PAYLOAD).tolist() == [1.0] * 4


# Operations that are recorded


@fact("torch.utils._python_dispatch.TorchDispatchMode", "torch_compat/modes.py: capture and replay on a CPU")
def test_a_mode_sees_each_operation_on_the_very_tensors() -> None:
    from torch.utils._python_dispatch import TorchDispatchMode

    seen = []

    class Recorder(TorchDispatchMode):  # type: ignore[no-untyped-call]
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            seen.append((str(func), args[0].data_ptr()))
            return func(*args, **(kwargs or {}))

    x = torch.zeros(2)
    with Recorder():  # type: ignore[no-untyped-call]
        x.add_(1)
    assert seen == [("aten.add_.Tensor", x.data_ptr())]


@fact("torch.utils._pytree", "torch_compat/structures.py")
def test_none_is_a_leaf_of_a_structure() -> None:
    from torch.utils._pytree import tree_flatten_with_path

    leaves, _ = tree_flatten_with_path({"a": (None, X)})
    assert [leaf is None for _, leaf in leaves] == [True, False]


@fact("torch.testing._internal.distributed.fake_pg.FakeStore", "torch_compat/modes.py: fake_world")
def test_a_process_can_be_a_rank_of_a_world_that_is_not_there() -> None:
    from deepstack_harness.compile.torch_compat.modes import fake_world

    with fake_world(1, 4):
        assert (torch.distributed.get_rank(), torch.distributed.get_world_size()) == (1, 4)


@fact("torch.utils.deterministic.fill_uninitialized_memory", "torch_compat/modes.py: filled_with_nan")
def test_memory_that_nobody_wrote_can_be_filled_with_nan() -> None:
    from deepstack_harness.compile.torch_compat.modes import filled_with_nan

    with filled_with_nan():
        assert torch.empty(64).isnan().all()


@fact("torch.nn.functional.scaled_dot_product_attention", "the decoders: a step of no tokens")
def test_attention_over_no_token_returns_uncompiled() -> None:
    rows = torch.zeros(1, 2, 0, 8)
    assert nn.functional.scaled_dot_product_attention(rows, rows, rows).shape == rows.shape
