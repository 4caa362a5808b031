"""Checks of the machine say what is here, and what does not work without it."""

import importlib.metadata
import platform
import sys
from pathlib import Path

import pytest
import torch

from deepstack_harness.cli import doctor as checks
from deepstack_harness.cli.doctor import WITHOUT_SANDBOX, MachineCheck, leave, sandbox_found
from deepstack_harness.cli.main import main
from deepstack_harness.errors import ExitCode
from deepstack_harness.runs import machine as environment
from deepstack_harness.workers.profiles import NO_SANDBOX

Patch = pytest.MonkeyPatch


def fail(*_: object) -> None:
    raise ModuleNotFoundError("No module named 'torch'", name="torch")


@pytest.mark.parametrize(
    ("version", "here"),
    [("2.9.1", False), ("2.10.0", True), ("2.13.0+cpu", True), ("2.15.0a0+git1", True), ("2.16.0", False)],
)
def test_a_torch_whose_private_apis_were_not_read_is_said(
    version: str, here: bool, monkeypatch: Patch
) -> None:
    monkeypatch.setattr(torch, "__version__", version)
    found = checks.torch_version()
    assert (found.here, found.needed) == (here, True)
    assert found.found == f"{version}, read in 2.10 .. 2.15"


def test_without_torch_the_line_that_installs_it_is_said(monkeypatch: Patch) -> None:
    monkeypatch.setattr("builtins.__import__", fail)
    try:
        found = [checks.torch_version(), checks.gpu(), checks.inductor()]
    finally:
        monkeypatch.undo()
    assert [one.here for one in found] == [False] * 3
    assert "pip install" in found[0].found
    assert found[1].found == "unknown: torch is needed to look for one"
    assert found[2].found == "torch is needed to compile"


@pytest.mark.parametrize("names", [[], ["NVIDIA H200", "NVIDIA H200"]])
def test_gpus_are_named(names: list[str], monkeypatch: Patch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: len(names))
    monkeypatch.setattr(torch.cuda, "get_device_name", names.__getitem__)
    found = checks.gpu()
    assert found.here == bool(names)
    assert found.found == (", ".join(names) or "none: --device cuda is refused, GPU cases are skipped")


def test_a_library_is_found_by_its_metadata() -> None:
    assert checks.library("pytest", "").found == importlib.metadata.version("pytest")
    absent = checks.library("no-such-library", "'report --html' is refused")
    assert (absent.here, absent.found) == (False, "not installed: 'report --html' is refused")


@pytest.mark.parametrize(
    ("programs", "here", "found"),
    [
        ((), False, "none of chromium, chromium-browser, google-chrome: browser cases are skipped"),
        (("google-chrome",), False, "no chromedriver: browser cases are skipped"),
        (("google-chrome", "chromedriver"), True, "/bin/google-chrome, with chromedriver"),
    ],
)
def test_a_browser_needs_its_driver(
    programs: tuple[str, ...], here: bool, found: str, monkeypatch: Patch
) -> None:
    monkeypatch.setattr("shutil.which", lambda name: f"/bin/{name}" if name in programs else None)
    assert checks.chromium() == MachineCheck("chromium", here, found)


def test_a_cache_that_cannot_be_made_costs_time_and_no_more(tmp_path: Path, monkeypatch: Patch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("DEEPSTACK_HARNESS_CACHE", str(tmp_path / "file" / "cache"))
    found = checks.cache_folder()
    assert (found.here, found.needed) == (False, False)
    assert found.found.endswith("Not a directory; releases are fetched by every command")
    monkeypatch.setenv("DEEPSTACK_HARNESS_CACHE", str(tmp_path / "cache"))
    assert checks.cache_folder().here


def test_an_index_that_does_not_answer_is_said(monkeypatch: Patch) -> None:
    for name, value in (("PIP_CONFIG_FILE", "/dev/null"), ("PIP_INDEX_URL", "http://127.0.0.1:9/simple")):
        monkeypatch.setenv(name, value)
    found = checks.package_index()
    assert (found.here, found.needed) == (False, False)
    assert "127.0.0.1:9" in found.found


@pytest.mark.parametrize(
    ("here", "needed", "code", "said"),
    [
        (False, True, ExitCode.MACHINE, "cannot run 'repro 43602': a part missing"),
        (False, False, ExitCode.HOLDS, "can run 'repro 43602' on the CPU"),
        (True, True, ExitCode.HOLDS, "can run 'repro 43602' on the CPU"),
    ],
)
def test_doctor_ends_with_3_where_something_needed_is_missing(
    here: bool,
    needed: bool,
    code: ExitCode,
    said: str,
    monkeypatch: Patch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(checks, "CHECKS", (lambda: MachineCheck("a part", here, "found", needed),))
    assert main(["doctor"]) == code
    assert capsys.readouterr().out.splitlines()[-1] == said


def test_a_machine_without_proc_has_the_name_that_python_knows(monkeypatch: Patch) -> None:
    def unreadable(*_: object) -> str:
        raise FileNotFoundError("/proc/cpuinfo")

    monkeypatch.setattr(Path, "read_text", unreadable)
    monkeypatch.setattr(platform, "processor", lambda: "arm")
    assert environment._cpu() == "arm"
    assert environment._version("no-such-library") is None


def test_without_a_sandbox_code_under_test_reaches_everything(tmp_path: Path, monkeypatch: Patch) -> None:
    outside = ["write outside its folder", "use the network", "send signals"]
    assert leave(str(tmp_path)) == outside
    monkeypatch.setenv(NO_SANDBOX, "1")
    assert sandbox_found() == (False, f"turned off: {WITHOUT_SANDBOX}")


def test_an_error_of_torch_that_nobody_knows_is_not_hidden(monkeypatch: Patch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    monkeypatch.setattr(checks, "torch_problem", lambda _: None)
    with pytest.raises(ImportError, match="torch"):
        checks._torch_problem()
