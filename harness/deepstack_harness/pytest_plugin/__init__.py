"""The pytest plugin: four fixtures for projects with a decoder or a buffer of their own.

Loaded into every pytest run where the harness is installed, so nothing here imports
torch or anything else that costs time; the fixtures do, when a test asks for one.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from deepstack_harness.pytest_plugin.arms_fixture import CompileArms
    from deepstack_harness.pytest_plugin.contract_fixture import DeepstackContract
    from deepstack_harness.pytest_plugin.graph_fixture import GraphBudget
    from deepstack_harness.pytest_plugin.kernel_fixture import KernelFactsOf

_OPTIONS = {
    "device": "where the fixtures run: cpu (default), cuda, cuda:N; with cuda each xdist worker has one GPU",
    "arms": "arms of compile_arms, with commas between them; 'deepstack-harness list arms' has them",
    "profile": "hypothesis profile of the harness for this run: ci, dev or nightly",
    "report": "new folder for what the fixtures judged; 'deepstack-harness report' shows it",
}
JUDGED: pytest.StashKey[list[dict[str, Any]]] = pytest.StashKey()
"""What the fixtures judged in one test: cases with their rows, as plain data."""


def pytest_addoption(parser: pytest.Parser) -> None:
    """All but the option that rewrites files are ini keys too: `--deepstack-device`, `deepstack_device`."""
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
    """Register the marker, and prepare what was asked for."""
    config.addinivalue_line(
        "markers", "gpu: needs a CUDA device; skipped, with the reason, where there is none"
    )
    _take_gpu(
        setting(config, "device")
    )  # where a conftest names the plugin, no hook before this one is called
    if profile := setting(config, "profile"):
        from deepstack_harness.pytest_plugin.hypothesis_profiles import load_profile

        load_profile(profile)
    if (folder := setting(config, "report")) and not hasattr(config, "workerinput"):
        from deepstack_harness.pytest_plugin.report_option import ReportFolder

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
    """Hang what was judged on the test's last report: xdist hands it to the controller at once.

    `config.workeroutput` comes at a worker's end, and never from one that crashed.
    """
    report = yield
    if call.when == "teardown" and JUDGED in item.stash:
        report.harness_judged = item.stash[JUDGED]  # type: ignore[attr-defined]
    return report


@pytest.fixture
def deepstack_contract(request: pytest.FixtureRequest) -> DeepstackContract:
    """Hold a buffer to the contract: `deepstack_contract(MyBuffer)`."""
    from deepstack_harness.pytest_plugin.contract_fixture import DeepstackContract

    return DeepstackContract(request)


@pytest.fixture
def compile_arms(request: pytest.FixtureRequest) -> CompileArms:
    """Run a module eagerly and under arms: `compile_arms(decoder, MyBuffer, traces, hidden=64, levels=2)`."""
    from deepstack_harness.pytest_plugin.arms_fixture import CompileArms

    return CompileArms(request)


@pytest.fixture
def graph_budget(request: pytest.FixtureRequest) -> GraphBudget:
    """Fail when a block builds more graphs than stated: `with` the fixture, called with their number."""
    from deepstack_harness.pytest_plugin.graph_fixture import GraphBudget

    return GraphBudget(request)


@pytest.fixture
def kernel_facts(request: pytest.FixtureRequest) -> KernelFactsOf:
    """The kernels that Inductor makes of a call: `kernel_facts(call, tokens=77, capacity=8192)`."""
    from deepstack_harness.pytest_plugin.kernel_fixture import KernelFactsOf

    return KernelFactsOf(request)


def setting(config: pytest.Config, name: str) -> str:
    """An option, else the ini key of its name; empty where neither is given."""
    given = config.getoption(f"--deepstack-{name}")
    return str((config.getini(f"deepstack_{name}") if given is None else given) or "")


def without_gpu(config: pytest.Config, why: str) -> None:
    """Skip, or with `--deepstack-require-gpu` fail."""
    if config.getoption("--deepstack-require-gpu") or config.getini("deepstack_require_gpu"):
        pytest.fail(f"{why}, and --deepstack-require-gpu was given", pytrace=False)
    pytest.skip(why)


def _take_gpu(device: str) -> None:
    import os

    worker = os.environ.get("PYTEST_XDIST_WORKER", "")
    if not worker.startswith("gw") or device != "cuda":
        return
    from deepstack_harness.errors import MachineError
    from deepstack_harness.machine.gpus import VISIBLE, visible_gpus

    try:
        found = visible_gpus()
    except MachineError:
        return  # whatever needs a GPU says so
    os.environ[VISIBLE] = found[int(worker[2:]) % len(found)]
