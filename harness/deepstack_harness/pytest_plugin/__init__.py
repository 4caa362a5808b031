"""The pytest plugin: six fixtures for projects with a decoder or a buffer of their own.

Loaded into every pytest run where the harness is installed, so nothing here imports
torch or anything else that costs time; the fixtures do, when a test requests one.

Private, but for the name of this plugin and of its fixtures: what is public is imported from
`deepstack_harness` itself.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import pytest

from deepstack_harness.pytest_plugin.options import JUDGED, NOTICES, quiet_torch, setting, without_gpu

if TYPE_CHECKING:
    from deepstack_harness.compile.watch_facts import WatchedRegions
    from deepstack_harness.contract.oracles.promises import JudgedSteps
    from deepstack_harness.pytest_plugin.compile_arms import CompileArms
    from deepstack_harness.pytest_plugin.fixtures import DeepstackContract, GraphBudget, KernelFactsOf


_OPTIONS = {
    "device": "where the fixtures run: cpu (default), cuda, cuda:N; with cuda each xdist worker has one GPU",
    "arms": "arms of compile_arms, with commas between them; 'deepstack-harness list arms' has them",
    "profile": "hypothesis profile of the harness for this run: ci, dev or nightly",
    "report": "new folder for what the fixtures judged; 'deepstack-harness report' shows it",
}


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options; all but the one that rewrites files are ini keys too, such as `deepstack_device`."""
    group = parser.getgroup("deepstack", "deepstack harness")
    for name, text in _OPTIONS.items():
        group.addoption(f"--deepstack-{name}", metavar=name.upper(), help=text)
        parser.addini(f"deepstack_{name}", text)
    group.addoption(
        "--deepstack-require-gpu",
        action="store_true",
        help="a case that needs a GPU fails where there is none",
    )
    parser.addini("deepstack_require_gpu", "as --deepstack-require-gpu", type="bool", default=False)
    group.addoption(
        "--deepstack-update-baselines",
        nargs="?",
        const="all",
        choices=("all", "new"),
        help="rewrite the baselines that this run compares with; 'new' only adds missing ones",
    )


def pytest_load_initial_conftests(early_config: pytest.Config) -> None:
    """Take this worker's GPU before a conftest imports torch."""
    given = getattr(early_config.known_args_namespace, "deepstack_device", None)  # `option` has no values yet
    _take_gpu(given or early_config.getini("deepstack_device"))


def pytest_configure(config: pytest.Config) -> None:
    """Register the marker, and prepare what the options request."""
    config.addinivalue_line(
        "markers", "gpu: needs a CUDA device; skipped, with the reason, where there is none"
    )
    for notice in NOTICES:
        config.addinivalue_line("filterwarnings", notice)
    _take_gpu(
        setting(config, "device")
    )  # where a conftest names the plugin, no hook before this one is called
    if config.getoption("showfixtures", default=False):
        from deepstack_harness.contract.protocols import contract_text

        # `pytest --fixtures -v` shows whole docstrings: the contract is written in one place.
        _contract_fixture.__doc__ = f"{_contract_fixture.__doc__}\n{contract_text()}"
    if profile := setting(config, "profile"):
        from deepstack_harness.pytest_plugin.options import load_profile

        load_profile(profile)
    if (folder := setting(config, "report")) and not hasattr(config, "workerinput"):
        from deepstack_harness.pytest_plugin.report import ReportFolder

        config.pluginmanager.register(ReportFolder(config, folder), "deepstack-report")


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip or fail `gpu` cases where there is no GPU; only they pay for the question."""
    if item.get_closest_marker("gpu"):
        import torch

        if not torch.cuda.is_available():
            without_gpu(item.config, "no CUDA device")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Attach the judgements to the test's last report, which xdist sends to the controller at once.

    `config.workeroutput` comes at a worker's end, and never from one that crashed.
    """
    report = yield
    if call.when == "teardown" and JUDGED in item.stash:
        report.harness_judged = item.stash[JUDGED]  # type: ignore[attr-defined]
    return report


def _contract_fixture(request: pytest.FixtureRequest) -> DeepstackContract:
    from deepstack_harness.pytest_plugin.fixtures import DeepstackContract

    return DeepstackContract(request)


_contract_fixture.__doc__ = """Hold a buffer class to the contract, R1 to R8.

`deepstack_contract(make, *, rules=None, traces=None, dtype="float32", device=None, regime=None)`

make     a class or function, called as make(capacity, hidden, levels, *, dtype, device), or "module:Class",
         which is imported and played in a worker: there an exit, a crash or a hang is a broken rule too
rules    names of the rules that count, such as ["R2", "R5"] (default: all)
traces   traces to play, such as ["cap 16: set 9; get 16"] (default: those of `deepstack-harness check`)
dtype    float32, bfloat16, float16 or float64
device   cpu, cuda or cuda:N (default: --deepstack-device)
regime   live (default), captured (graphs replay what get and clear recorded) or both

Returns where every rule stands; fails with the rules that are broken, each with the shortest trace.

    def test_buffer(deepstack_contract):
        deepstack_contract(MyBuffer, regime="both")
"""
deepstack_contract = pytest.fixture(name="deepstack_contract")(_contract_fixture)


@pytest.fixture
def compile_arms(request: pytest.FixtureRequest) -> CompileArms:
    """Run a decoder eagerly and compiled, and compare: the output (R0), and the graphs that are built (R11).

    `compile_arms(decoder, buffer, traces, *, hidden, levels, positions=.., **options)`

    decoder    nn.Module, called as decoder(hidden (n, h), positions (3, n) int64, payload), returns (n, h);
               the payload is a tuple with one (n, h) per level, or None
    buffer     class or function of the buffer, as for `deepstack_contract`
    traces     such as ["cap 16: profile 16; set 9; forward 16"]
    hidden     h, the width of hidden states and payload
    levels     number of payload tensors
    positions  function (tokens, device) -> (3, tokens) int64 (default: M-RoPE positions of text)

    Options: arms=["inductor/drop_all"] (default: --deepstack-arms; `deepstack-harness list arms`),
    rules=["R0", "R11"], graphs=1 (most graphs of an arm), dtype="bfloat16", device="cuda", routed=True
    (tokens go to experts), thorough=False (compare with eager and a zero payload only).

    `compile_arms.calls(function, inputs, sizes, **options)` compares any function instead: it is called as
    function(hidden, positions, payload) with inputs(tokens) (`deepstack_harness.Inputs`) for each size.  The
    payload may be any structure, and another one for each size: None, (), a dict, a number, nested tuples.
    A tensor or number of it that never moves the output fails the test: nothing shows that it is read.
    It is `compile_steps` judged by R0 and R11: arguments that are written in place are compared too, and the
    tolerance is the function's own noise, so that `thorough` and the control arms do not apply.

    Every run begins from the state in which the decoder was given. State that it retains between calls is
    compared as its output is: a count, cache, random generator or mode that is not the same when compiled
    breaks R0.  Payloads are multiplied until they matter to the output, and the tolerance is measured.

    Both return one run per arm and trace, with `arm`, `worst` (distance to eager), `graphs`, and `state`: the
    places of state that the decoder retains.

        def test_decoder(compile_arms):
            traces = ["cap 16: profile 16; set 9; forward 16"]
            compile_arms(MyDecoder(), MyBuffer, traces, hidden=64, levels=2)
    """
    from deepstack_harness.pytest_plugin.compile_arms import CompileArms

    return CompileArms(request)


@pytest.fixture(name="compile_steps")
def compile_steps_fixture(request: pytest.FixtureRequest) -> Iterator[Callable[..., JudgedSteps]]:
    """Run any function or module over calls, uncompiled and compiled, and fail where they differ.

    `compile_steps(region, steps, *, arms=.., warm_up=1, neutral=None, live=None, split=None)`

    region    nn.Module, function or callable object; a copy of it runs
    steps     calls in order: `Call(x, mask=m)`, a tuple of positional arguments, a dict of keyword ones, or a
              function that is called with the region between two calls, to change it; the first are the
              warm-up
    arms      such as ["inductor/drop_all"] (default: eager/stock, eager/drop_all, aot_eager/drop_all;
              `eager/full` captures the warm-up, and replays it)
    neutral   function of a call's arguments -> views of rows that must have no influence (I3)
    live      function (result, arguments of the call) -> the part of the result that is compared
    split     function of a call's arguments -> the `Call`s of its parts (I5)

    Returns what was judged; fails too where nothing was put to the test.  `deepstack_harness.compile_steps`
    is the same outside of tests.

        def test_mask(compile_steps):
            x = torch.randn(4, 8)
            compile_steps(score, [Call(x), Call(x, mask=torch.ones(4, 8))])
    """
    from deepstack_harness.errors import HarnessError
    from deepstack_harness.play.steps import compile_steps

    def run(region: Callable[..., object], steps: Sequence[object], **options: Any) -> JudgedSteps:
        try:
            judged = compile_steps(region, steps, **options)
        except HarnessError as error:
            wrong_call = str(error)
        else:
            if judged.good:
                return judged
            wrong_call = str(judged)
        raise pytest.fail.Exception(wrong_call, pytrace=False) from None

    restore_logging = quiet_torch(request.config)
    yield run
    restore_logging()


@pytest.fixture
def graph_budget(request: pytest.FixtureRequest) -> Iterator[GraphBudget]:
    """Fail when a block builds more graphs than stated, whoever calls `torch.compile` in it.

    `graph_budget(graphs, *, breaks=0, recompiles=None)` is used with `with`.

    graphs      most graphs, counted from a cold start; 0: nothing more than was compiled before the block,
                which calls something compiled
    breaks      most graph breaks
    recompiles  most recompiles (default: as many as the graphs allow)

    Gives a counter; its `so_far` has graphs, recompiles, breaks and the reasons of torch. Fails too when a
    guard that was dropped fails in the block, and decides the result: a graph is used for something else than
    it was compiled for (see `guard_watch`; seen of graphs that are compiled in the same test).

        def test_serving_compiles_once(graph_budget):
            with graph_budget(1):
                serve()
            with graph_budget(0):
                serve()
    """
    from deepstack_harness.compile.watched import watch_guards
    from deepstack_harness.pytest_plugin.fixtures import GraphBudget

    with watch_guards() as watched:
        yield GraphBudget(request, watched)


@pytest.fixture
def kernel_facts(request: pytest.FixtureRequest) -> KernelFactsOf:
    """Measure the kernels that a call runs, compiled with backend inductor: rows, points and bytes of each.

    `kernel_facts(call, *, tokens, capacity, profile=None, arguments=("hidden", "positions"), run=True)`

    call       function without arguments that calls something compiled with backend inductor
    tokens     rows of the step; capacity: rows of the buffer, another number
    profile    called before, as an engine's first run
    arguments  names of the parameters of the compiled function whose sizes are tokens
    run        False generates code without compiling it, and ends where the first graph would run

    Returns `calls`, one for each graph that was called, with its `kernels`, `rows`, `points` and `bytes`.

        def test_kernels(kernel_facts):
            step = torch.compile(decode, dynamic=True)
            found = kernel_facts(lambda: step(hidden, positions, rows), tokens=77, capacity=8192)
            assert found.calls[-1].rows == 77
    """
    from deepstack_harness.pytest_plugin.fixtures import KernelFactsOf

    return KernelFactsOf(request)


@pytest.fixture
def guard_watch(request: pytest.FixtureRequest) -> Iterator[WatchedRegions]:
    """Fail a test in which a guard that was dropped fails in a later call, and decides the result.

    Drops what was compiled before, watches every region that is compiled in the test, by whoever calls
    `torch.compile`, and fails too where none was, or one has no guards that could be evaluated.
    Gives the facts: `regions`, `decisive` and `report()`.

        def test_serving_computes_what_was_traced(guard_watch):
            serve()
    """
    import torch

    from deepstack_harness.compile.watched import watch_guards

    restore_logging = quiet_torch(request.config)
    torch.compiler.reset()  # a graph of another test has no guards that could be evaluated
    with watch_guards() as watched:
        yield watched
    restore_logging()
    if watched.decisive or not watched.regions or any(region.problem for region in watched.regions):
        pytest.fail(watched.report(), pytrace=False)


def _take_gpu(device: str) -> None:
    import os

    worker = os.environ.get("PYTEST_XDIST_WORKER", "")
    if not worker.startswith("gw") or device != "cuda":
        return
    from deepstack_harness.errors import MachineError
    from deepstack_harness.runs.machine import VISIBLE, visible_gpus

    try:
        gpus = visible_gpus()
    except MachineError:
        return  # a fixture that needs a GPU reports it
    os.environ[VISIBLE] = gpus[int(worker[2:]) % len(gpus)]
