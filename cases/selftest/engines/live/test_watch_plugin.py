"""The plugin of a watch in a vLLM: every way of running a compiled model, caches, captured graphs, problems.

The engine is `synthetic/compiling`: a package `vllm` with the names that the plugin touches.
"""

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from importlib.metadata import entry_points
from pathlib import Path

import pytest

from cases.selftest.engines.synthetic_vllm import COMPILING
from deepstack_harness.cli.main import main
from deepstack_harness.compile.watch_process import FOLDER, RESTORED
from deepstack_harness.engines.live.watch_plugin import AOT, BYTECODE, CACHE, SET, without_cache
from deepstack_harness.errors import ExitCode

SERVE = """
import os, sys
import torch
from vllm.plugins import load_general_plugins

load_general_plugins()
from vllm.compilation.wrapper import TorchCompileWithNoGuardsWrapper

class Decoder(TorchCompileWithNoGuardsWrapper, torch.nn.Module):
    evaluate_guards = "evaluate_guards" in sys.argv

    def __init__(self):
        torch.nn.Module.__init__(self)
        TorchCompileWithNoGuardsWrapper.__init__(self)

    def forward(self, x, deepstack=None):
        return x * 3 if deepstack is None else x + deepstack

model = Decoder()
payload = torch.ones(4, 4) if "wrong" in sys.argv else None
for step in range(6):
    model(torch.ones(4, 4), deepstack=payload if step % 2 else None)
"""
GRAPHS = """
import sys
import torch
from cases.selftest.compile.recorded_graphs import RecordedGraph, recorded

torch.cuda.CUDAGraph, torch.cuda.graph = RecordedGraph, recorded
from vllm.plugins import load_general_plugins

load_general_plugins()
from vllm.compilation import breakable_cudagraph, cuda_graph

class Model(torch.nn.Module):
    side = None

    def forward(self, x, deepstack=None):
        return x * 3 if deepstack is None else x + deepstack

class Piece:
    submod_name = "submod_2"

    def __call__(self, *args):
        return args[0] + 1

x, other = torch.ones(4, 4), torch.ones(4, 4)
full, piece = cuda_graph.CUDAGraphWrapper(Model()), cuda_graph.CUDAGraphWrapper(Piece())
broken = breakable_cudagraph.BreakableCUDAGraphWrapper(Model())
full(x, deepstack=other)  # without a graph
cuda_graph.MODE["batch"] = 4
for each in (full, broken):
    each(x)
    each(x, deepstack=None)
    each(x, deepstack=other if "wrong" in sys.argv else None)
piece(x)
piece(other if "wrong" in sys.argv else x)
"""


@pytest.fixture
def engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    root = str(Path(__file__).parents[4])
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(COMPILING), root]))
    monkeypatch.setenv("VLLM_CACHE_ROOT", str(tmp_path))
    for name in (CACHE, AOT, "VLLM_PLUGINS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "serve.py").write_text(SERVE)
    (tmp_path / "graphs.py").write_text(GRAPHS)
    return tmp_path


Watch = Callable[..., tuple[int, str]]


@pytest.fixture
def watch(engine: Path, capfd: pytest.CaptureFixture[str]) -> Watch:
    def run(*words: str) -> tuple[int, str]:
        code = main(["watch", "--", sys.executable, *words])
        captured = capfd.readouterr()
        return code, captured.out + captured.err

    return run


FOUND = "Decoder.forward: `deepstack` was None when compiled, and float32 tensor [4, 4] on cpu in 3 of"


@pytest.mark.slow  # 7 s
def test_a_server_that_is_started_twice_is_found_both_times(watch: Watch) -> None:
    for _ in range(2):
        code, output = watch("serve.py", "wrong")
        assert code == ExitCode.BROKEN
        assert FOUND in output
        assert f"vllm 0.99.0: {CACHE}=1 and {AOT}=1, set by the watch" in output


@pytest.mark.slow  # 9 s
def test_a_graph_of_its_cache_is_reported_as_one_without_guards(
    watch: Watch, engine: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    subprocess.run([sys.executable, "serve.py"], check=True)
    assert (engine / "model").exists()
    monkeypatch.setenv(CACHE, "0")
    code, output = watch("serve.py", "wrong")
    assert code == ExitCode.MACHINE
    assert f"{CACHE}=0, as it was set" in output
    assert (
        "Decoder.forward: the guards could not be evaluated in a graph that was loaded from a file" in output
    )


@pytest.mark.parametrize(
    "words",
    [("wrong",), ("wrong", "evaluate_guards")],
    ids=["bytecode", "evaluate_guards"],
)
@pytest.mark.slow  # by day each wrapper
def test_a_graph_that_is_run_by_its_bytecode_or_with_a_filter_of_its_own_is_watched(
    watch: Watch, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...]
) -> None:
    monkeypatch.setenv(AOT, "0")
    code, output = watch("serve.py", *words)
    assert code == ExitCode.BROKEN
    assert FOUND in output


@pytest.mark.slow
def test_a_right_server_exits_with_0(watch: Watch) -> None:
    code, output = watch("serve.py")
    assert code == ExitCode.HOLDS
    assert "failed and decide: none" in output


@pytest.mark.parametrize("plugins", [pytest.param("another", marks=pytest.mark.slow), ""])
def test_a_plugin_that_was_not_loaded_is_reported(
    watch: Watch, monkeypatch: pytest.MonkeyPatch, plugins: str
) -> None:
    monkeypatch.setenv("VLLM_PLUGINS", plugins)
    code, output = watch("serve.py")
    assert code == ExitCode.MACHINE
    assert re.search("process [0-9]+: vllm did not load the plugin 'deepstack_harness'", output)


@pytest.mark.slow  # 8 s
def test_a_client_that_only_imports_the_plugins_is_none_that_is_not_watched(
    watch: Watch, engine: Path
) -> None:
    """It starts the engine, and may use torch.compile's modules itself; the engine did load the plugin."""
    (engine / "client.py").write_text(
        "import subprocess, sys\nimport torch._dynamo, vllm.plugins\n"
        "subprocess.run([sys.executable, 'serve.py'], check=True)\n"
    )
    code, output = watch("client.py")
    assert code == ExitCode.HOLDS, output


@pytest.mark.slow
def test_an_engine_without_the_names_is_reported_and_runs_on(watch: Watch, engine: Path) -> None:
    (engine / "serve.py").write_text(
        SERVE.replace("load_general_plugins()", "import vllm.compilation.wrapper as w\n"
                      "kept, w.TorchCompileWithNoGuardsWrapper = w.TorchCompileWithNoGuardsWrapper, None\n"
                      "load_general_plugins()\nw.TorchCompileWithNoGuardsWrapper = kept")
    )  # fmt: skip
    code, output = watch("serve.py")
    assert code == ExitCode.MACHINE
    assert "vllm is not wholly watched: TypeError" in output


def test_each_wrapper_is_held_against_its_capture(watch: Watch) -> None:
    code, output = watch("graphs.py", "wrong")
    assert code == ExitCode.BROKEN
    absent = "`deepstack` (in 2 regions) was None when captured, and float32 tensor [4, 4] on cpu in 1 of 2"
    assert f"Model.forward: {absent}" in output
    assert "piece submod_2: `args[0]` was float32 tensor [4, 4] on cpu at 0x" in output
    assert "not visible" not in output


@pytest.mark.slow
def test_right_wrappers_exit_with_0(watch: Watch) -> None:
    code, output = watch("graphs.py")
    assert code == ExitCode.HOLDS, output


def test_without_the_variable_it_does_nothing_and_imports_no_torch() -> None:
    code = (
        "import sys; from deepstack_harness.engines.live.watch_plugin import watch_vllm; watch_vllm(); "
        "assert not {'torch', 'vllm'} & set(sys.modules)"
    )
    environment = {name: value for name, value in os.environ.items() if name != FOLDER}
    subprocess.run([sys.executable, "-c", code], env=environment, check=True)


def test_vllm_finds_it_by_its_documented_group() -> None:
    project = Path(__file__).parents[4] / "pyproject.toml"
    text = project.read_text()
    assert '[project.entry-points."vllm.general_plugins"]' in text
    assert 'deepstack_harness = "deepstack_harness.engines.live.watch_plugin:watch_vllm"' in text
    for found in entry_points(group="vllm.general_plugins", name="deepstack_harness"):
        assert found.load().__name__ == "watch_vllm"


def test_what_the_user_has_set_is_left() -> None:
    for setting in ("0", "1"):
        environment = {CACHE: setting}
        assert without_cache(environment, lambda: True) == f"{CACHE}={setting}, as it was set"
        assert environment == {CACHE: setting}
    ahead, live = dict[str, str](), {AOT: "0"}
    without_cache(ahead, lambda: True)
    without_cache(live, lambda: False)
    assert [json.loads(environment.pop(SET)) for environment in (ahead, live)] == [
        {CACHE: "1", AOT: "1"},
        {CACHE: "1"},
    ]
    assert (ahead, live) == ({CACHE: "1", AOT: "1"}, {CACHE: "1", AOT: "0"})
    assert without_cache({AOT: "0"}, lambda: True).endswith(f"; {AOT}=0, as it was set")
    restoring = {RESTORED: "[\"L['x']\"]", AOT: "1", CACHE: "1"}
    assert without_cache(restoring, lambda: True).startswith(f"{AOT}=0 and {BYTECODE}=0, set by the watch")
    assert (restoring[AOT], restoring[BYTECODE]) == ("0", "0")


def test_what_a_watch_set_in_a_parent_process_is_not_called_the_users() -> None:
    environment = {AOT: "0"}
    made = without_cache(environment, lambda: True)
    assert without_cache(environment, lambda: False) == made
    assert f"{CACHE}=1, set by the watch" in made
    environment[CACHE] = "0"  # the program itself, before it starts another engine
    assert f"{CACHE}=0, as it was set" in without_cache(environment, lambda: True)
