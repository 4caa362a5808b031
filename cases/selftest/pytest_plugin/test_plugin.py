"""What the fixtures of the pytest plugin report of a buffer or module: a fault, or why nothing was judged."""

import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import deepstack_harness.pytest_plugin
from cases.selftest.models import wrong_shapes
from cases.selftest.models.adapters import adapter_class, numbers
from cases.shallow import shallow
from deepstack_harness.audit.class_verdicts import RULES
from deepstack_harness.catalogue.buffers import buffer_named
from deepstack_harness.catalogue.plans import AUDIT_TRACES
from deepstack_harness.compile.torch_compat import dynamo
from deepstack_harness.contract.observation import Observation
from deepstack_harness.contract.protocols import WHERE, Inputs
from deepstack_harness.contract.rules import Rule
from deepstack_harness.pytest_plugin.compile_arms import CompileArms
from deepstack_harness.pytest_plugin.fixtures import DeepstackContract, GraphBudget, KernelFactsOf
from deepstack_harness.pytest_plugin.options import JUDGED

Failed, Skipped = pytest.fail.Exception, pytest.skip.Exception
STALE = ["cap 16: set 9; set 3; get 9", "cap 16: get 4; set 9; get 9; set 3; get 4; get 9"]
SERVED = ["cap 16: profile 16; set 9; forward 16"]


def test_the_plugin_is_loaded_once(request: pytest.FixtureRequest) -> None:
    plugins = [plugin for _, plugin in request.config.pluginmanager.list_name_plugin()]
    assert plugins.count(deepstack_harness.pytest_plugin) == 1


def test_a_good_buffer_passes(deepstack_contract: DeepstackContract) -> None:
    live = deepstack_contract(buffer_named("reference"), traces=AUDIT_TRACES, regime="live")
    assert live.kept == frozenset(RULES) - {Rule.ADDRESS}
    assert deepstack_contract(buffer_named("reference"), regime="both").kept == frozenset(RULES)


@pytest.mark.slow  # 8 s; `check` of one by day
def test_a_buffer_for_live_use_is_refused_only_under_graphs(deepstack_contract: DeepstackContract) -> None:
    deepstack_contract(buffer_named("copies_on_get"))
    with pytest.raises(Failed) as caught:
        deepstack_contract(buffer_named("copies_on_get"), regime="captured")
    assert "broken: R6 address: " in str(caught.value)
    assert "captured: graphs replay what get and clear recorded" in str(caught.value)


def test_a_broken_rule_is_reported_with_its_shortest_trace(deepstack_contract: DeepstackContract) -> None:
    with pytest.raises(Failed) as caught:
        deepstack_contract(buffer_named("stale_after_shorter_set"), traces=STALE)
    title, *lines = str(caught.value).splitlines()
    assert title.endswith(":StaleAfterShorterSet does not keep the contract")
    assert lines[0].startswith("  broken: R3 freshness: ")
    assert lines[1].startswith("    R3 freshness: no row of a replaced payload is ever read")
    assert lines[2:] == [f"  {WHERE}"]
    assert f"on '{STALE[0]}' under eager: step 3 'get 9'" in lines[0]


def test_rules_that_were_not_requested_do_not_count(deepstack_contract: DeepstackContract) -> None:
    verdicts = deepstack_contract(buffer_named("stale_after_shorter_set"), traces=STALE, rules=["R1"])
    assert Rule.FRESHNESS in verdicts.broken


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"rules": ["R0"]}, "rule 'R0' is not judged here; known are R1, R2"),
        ({"rules": ["R3"], "traces": ["cap 16: get 4"]}, "not put to the test: R3 freshness"),
        ({"traces": ["cap 16: gett 4"]}, "step 'gett 4' is not one of set, get"),
        ({"traces": ["cap 16: set 4 levels=4"], "rules": ["R2"]}, "not put to the test: R2 boundary"),
        ({"dtype": "int3"}, "unknown dtype 'int3'"),
        ({"device": "tpu"}, "unknown device 'tpu'"),
        ({"regime": "frozen"}, "unknown regime 'frozen'; known are live, captured, both"),
    ],
)
def test_a_check_that_would_show_nothing_fails(
    deepstack_contract: DeepstackContract, options: dict[str, object], said: str
) -> None:
    with pytest.raises(Failed, match=said):
        deepstack_contract(buffer_named("reference"), **options)  # type: ignore[arg-type]


def test_a_class_that_does_not_fit_is_refused(deepstack_contract: DeepstackContract) -> None:
    with pytest.raises(Failed, match="builtins:dict cannot be made with .capacity, hidden, levels"):
        deepstack_contract(dict)  # type: ignore[arg-type]


@pytest.mark.slow  # 6 s; `check` of one by day
def test_an_adapter_class_is_held_to_the_contract(deepstack_contract: DeepstackContract) -> None:
    right = adapter_class(wrong_shapes.Numbers, **numbers("read", "write", "reset"))
    assert Rule.FRESHNESS in deepstack_contract(right, traces=STALE).kept
    with pytest.raises(Failed, match="R3 freshness: 6 rows"):
        deepstack_contract(wrong_shapes.WRONG["StaleNumbers"].adapter, traces=STALE)


def test_a_removed_argument_names_the_adapter_class(deepstack_contract: DeepstackContract) -> None:
    with pytest.raises(Failed, match="adapter, shape, rows and capacity were removed: pass an adapter class"):
        deepstack_contract(buffer_named("reference"), adapter="get=read")


@pytest.mark.skipif(torch.cuda.is_available(), reason="a GPU is here")
def test_without_a_gpu_a_check_on_it_is_skipped_or_fails(
    deepstack_contract: DeepstackContract,
    compile_arms: CompileArms,
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(request.config.option, "deepstack_device", "cuda")
    with pytest.raises(Skipped, match="device 'cuda' is not available"):
        deepstack_contract(buffer_named("reference"))
    monkeypatch.setattr(request.config.option, "deepstack_require_gpu", True)
    said = "device 'cuda' is not available.*, and --deepstack-require-gpu was given"
    with pytest.raises((Failed, Skipped), match=said) as caught:
        compile_arms.calls(torch.relu, inputs_of(0), [4])
    assert caught.type is Failed


def test_a_fault_of_the_compiled_module_is_reported(compile_arms: CompileArms) -> None:
    with pytest.raises(Failed) as caught:
        compile_arms(
            shallow("qwen3_vl").decoder,
            buffer_named("pr40932"),
            SERVED,
            arms=["eager/drop_all"],
            hidden=128,
            levels=2,
        )
    line, cause = str(caught.value).splitlines()[1:]
    assert line.startswith("  broken: R0 output: ")
    assert cause.startswith(
        "    `payload` was None in step 1 'profile 16', which compiled the graph, and the"
    )
    assert "under eager/drop_all: step 3 'forward 16'" in line
    assert "0 from no-deepstack" in line


@pytest.mark.slow  # by day one arm at a time
def test_arms_are_observed_side_by_side(compile_arms: CompileArms) -> None:
    zero, dropped = compile_arms(
        shallow("qwen3_vl").decoder, buffer_named("pr43617"), SERVED,
        arms=["zero-deepstack", "eager/drop_all"], hidden=128, levels=2,
    )  # fmt: skip
    assert (zero.arm, zero.graphs) == ("zero-deepstack", 0)
    assert (dropped.arm, dropped.graphs, dropped.worst) == ("eager/drop_all", 1, 0)
    assert zero.worst == dropped.distances[1].effect > 0.1
    assert isinstance(dropped.observation, Observation)


class Adds(nn.Module):
    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(hidden), requires_grad=False)

    def forward(self, hidden: Tensor, positions: Tensor, payload: tuple[Tensor, ...] | None) -> Tensor:
        return sum(payload or (), hidden) * self.weight


class TakesNoPositions(nn.Module):
    def forward(self, hidden: Tensor, payload: tuple[Tensor, ...] | None) -> Tensor:
        return hidden


class ReturnsTwo(nn.Module):
    def forward(self, hidden: Tensor, positions: Tensor, payload: object) -> tuple[Tensor, Tensor]:
        return hidden, positions


@pytest.mark.parametrize(
    ("decoder", "hidden", "said"),
    [
        (TakesNoPositions(), 8, "not compiled, raised TypeError: .* takes 3 positional arguments but 4"),
        (ReturnsTwo(), 8, "returned tuple, not a tensor"),
        (Adds(8).to("meta"), 8, "not compiled, raised RuntimeError: .* device"),
        (Adds(8), 16, r"hidden \(16, 16\) float32, positions \(3, 16\) int64, payload 2 tensors \(16, 16\)"),
    ],
)
def test_a_wrong_decoder_is_no_verdict_about_the_compiler(
    compile_arms: CompileArms, decoder: nn.Module, hidden: int, said: str
) -> None:
    with pytest.raises(Failed, match=said) as caught:
        compile_arms(decoder, buffer_named("reference"), SERVED, hidden=hidden, levels=2)
    assert type(decoder).__name__ in str(caught.value)
    assert "broken" not in str(caught.value)
    assert caught.value.__suppress_context__, "pytest would print the sentence twice"


def test_results_are_under_the_file_and_line_of_their_test(
    compile_arms: CompileArms, request: pytest.FixtureRequest
) -> None:
    compile_arms(Adds(8), buffer_named("reference"), SERVED, arms=["eager/drop_all"], hidden=8, levels=2)
    (stored, *_) = request.node.stash[JUDGED]
    file, line, _ = request.node.location
    assert {row["where"] for row in stored["rows"]} == {f"{file}:{line + 1}"}
    assert {row["node_id"] for row in stored["rows"]} == {request.node.nodeid}


def test_fixtures_are_shown_with_signature_options_example_and_the_contract(tmp_path: Path) -> None:
    ran = subprocess.run(
        [sys.executable, "-m", "pytest", "--fixtures", "-v", "-p", "no:cacheprovider",
         "-p", "deepstack_harness.pytest_plugin"],
        cwd=tmp_path, capture_output=True, text=True, check=False,
    )  # fmt: skip
    for name in ("deepstack_contract", "compile_arms", "graph_budget", "kernel_facts"):
        text = ran.stdout.partition(f"\n{name} -- ")[2].partition("\n\n\n")[0]
        assert f"{name}(" in text.partition("def test_")[0], text
        assert f"({name})" in text.partition("def test_")[2], text
    for words in (
        "Buffer.set", "(levels, N, hidden), N >= 0", "the recorded clear(P) zeroes P rows",
    ):  # fmt: skip
        assert words in ran.stdout


def test_arms_come_from_the_run_and_what_was_not_judged_fails(
    compile_arms: CompileArms,
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(request.config.option, "deepstack_arms", "eager, eager/drop_all")
    with pytest.raises(Failed) as caught:
        compile_arms(
            shallow("qwen3_vl").decoder, buffer_named("reference"), ["cap 4: get 4"], hidden=128, levels=2
        )
    told = str(caught.value).splitlines()[1:]
    assert [line[: len("  not judged: R11")].strip() for line in told] == [
        "not judged: R0",
        "not judged: R11",
    ]
    assert all("on 'cap 4: get 4' under eager/drop_all: " in line for line in told)
    assert compile_arms(
        shallow("qwen3_vl").decoder,
        buffer_named("reference"),
        ["cap 4: get 4"],
        rules=[],
        hidden=128,
        levels=2,
    )


def inputs_of(levels: int) -> Callable[[int], Inputs]:
    def made(tokens: int) -> Inputs:
        drawn = torch.randn(levels + 1, tokens, 8, generator=torch.Generator().manual_seed(tokens))
        return Inputs(drawn[0], torch.ones(3, tokens), tuple(drawn[1:]) or None)

    return made


@dataclass
class Growing:
    """A callable that remembers what it was traced with."""

    calls: int = 0

    def __call__(self, hidden: Tensor, positions: Tensor, payload: tuple[Tensor, ...] | None) -> Tensor:
        return hidden * hidden.size(0) if payload is None else hidden + payload[0] * payload[-1]


class Remembering(Growing):
    def __call__(self, hidden: Tensor, positions: Tensor, payload: tuple[Tensor, ...] | None) -> Tensor:
        return hidden * (1.0 if torch.compiler.is_compiling() else 2.0)


@pytest.mark.parametrize("levels", [0, 2])
def test_any_callable_is_compared_call_by_call(compile_arms: CompileArms, levels: int) -> None:
    (run,) = compile_arms.calls(Growing(), inputs_of(levels), [9, 4, 9], arms=["eager/drop_all"])
    assert (run.worst, run.graphs, len(run.distances)) == (0, 1, 3)
    assert all((apart.effect > 0) is bool(levels) for apart in run.distances)


def test_a_callable_that_changes_when_compiled_is_reported(compile_arms: CompileArms) -> None:
    with pytest.raises(Failed, match="Remembering is not the same when compiled\n  broken: R0 output"):
        compile_arms.calls(Remembering(), inputs_of(0), [4], arms=["eager/drop_all"])
    with pytest.raises(Failed, match="there is nothing to call"):
        compile_arms.calls(Remembering(), inputs_of(0), [])
    with pytest.raises(Failed, match="arm eager/full: captured graphs read fixed storage"):
        compile_arms.calls(Remembering(), inputs_of(2), [4], arms=["eager/full"])


def doubled(x: Tensor) -> Tensor:
    return x * 2


def broken_in_two(x: Tensor) -> Tensor:
    y = x * 2
    print(end="")
    return y + 1


def called(step: Callable[[Tensor], Tensor], *sizes: int) -> None:
    for size in sizes:
        step(torch.ones(size))


def compiled(function: Callable[[Tensor], Tensor], **options: object) -> Callable[[Tensor], Tensor]:
    return torch.compile(function, backend="eager", **options)  # type: ignore[call-overload, no-any-return]


def test_a_met_budget_reports_its_margin(graph_budget: GraphBudget) -> None:
    step = compiled(doubled, dynamic=False)
    step(torch.ones(3))  # what was compiled before does not count as built
    with graph_budget(2) as seen:
        step(torch.ones(3))
        assert seen.so_far.graphs == 1
        step(torch.ones(4))
    found = seen.facts()
    assert (found.graphs, found.recompiles, found.breaks) == (2, 1, 0)


def test_graphs_above_the_budget_fail_with_the_reason(graph_budget: GraphBudget) -> None:
    step = compiled(doubled, dynamic=False)
    with (
        pytest.raises(Failed, match="graphs 2, at most 1: .* recompiled because .*size mismatch"),
        graph_budget(1),
    ):
        called(step, 3, 4)
    with (
        pytest.raises(Failed, match="over the budget: recompiles 1, at most 0"),
        graph_budget(2, recompiles=0),
    ):
        called(step, 3, 4)


def test_breaks_count_and_may_be_allowed(graph_budget: GraphBudget) -> None:
    with pytest.raises(Failed, match="over the budget: breaks 1, at most 0"), graph_budget(2):
        compiled(broken_in_two)(torch.ones(3))
    with graph_budget(2, breaks=1):
        compiled(broken_in_two)(torch.ones(3))


def test_a_budget_of_nothing_fails(graph_budget: GraphBudget) -> None:
    with pytest.raises(Failed, match="no graph was built: nothing in here was compiled"), graph_budget(1):
        doubled(torch.ones(3))
    with pytest.raises(Failed, match="a budget is 0 graphs or more"), graph_budget(-1):
        pass


def test_a_budget_of_0_is_for_code_that_is_warm(graph_budget: GraphBudget) -> None:
    step = compiled(doubled, dynamic=False)
    torch.compiler.reset()
    dynamo.start_counting()
    with pytest.raises(Failed, match="nothing is compiled yet: .* warm it up"), graph_budget(0):
        called(step, 3)
    called(step, 3)
    with graph_budget(0) as counter:
        called(step, 3)
    assert counter.so_far.graphs == 0
    with (
        pytest.raises(Failed, match="over the budget: graphs 1, at most 0: 1 graph, 1 recompile, 0 breaks"),
        graph_budget(0),
    ):
        called(step, 3, 4)


def test_a_block_of_a_budget_is_the_warm_up_of_the_next(graph_budget: GraphBudget) -> None:
    step = compiled(doubled)
    with graph_budget(1):
        called(step, 3)
    with graph_budget(0):
        called(step, 3, 3)


def test_going_on_eagerly_fails(graph_budget: GraphBudget) -> None:
    step = compiled(doubled, dynamic=False)
    limit = "reached torch's recompile limit, behind which it runs eagerly"
    with pytest.raises(Failed, match=limit), graph_budget(100):
        called(step, *range(2, 12))


def test_an_exception_of_the_block_comes_through(graph_budget: GraphBudget) -> None:
    with pytest.raises(ZeroDivisionError), graph_budget(1):
        raise ZeroDivisionError


def test_kernels_of_nothing_fail(kernel_facts: KernelFactsOf) -> None:
    with pytest.raises(Failed, match="no graph that Inductor compiled: .* with backend eager, and need"):
        kernel_facts(lambda: compiled(doubled)(torch.ones(3)), tokens=3, capacity=9)
    with pytest.raises(Failed, match="it compiled nothing at all"):
        kernel_facts(lambda: doubled(torch.ones(3)), tokens=3, capacity=9)
    with pytest.raises(Failed, match="tokens and capacity are both 3"):
        kernel_facts(lambda: None, tokens=3, capacity=3)


def test_loading_the_plugin_imports_nothing_slow() -> None:
    code = (
        "import sys, pytest; before = set(sys.modules); import deepstack_harness.pytest_plugin; "
        "print(*sorted(set(sys.modules) - before))"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout.split() == [
        "deepstack_harness",
        "deepstack_harness.pytest_plugin",
        "deepstack_harness.pytest_plugin.options",
    ]
