"""`doctor`: each check reports what is here, and what does not work without it, whatever its tool does."""

import importlib.metadata
import os
import platform
import sys
from functools import partial
from pathlib import Path

import pytest
import torch

from cases.selftest.workers.misbehaving import ALWAYS
from deepstack_harness.catalogue import versions
from deepstack_harness.catalogue.versions import Suite, SuiteRun, TorchVersion, installed_version
from deepstack_harness.cli import doctor
from deepstack_harness.cli.doctor import WITHOUT_SANDBOX, MachineCheck, leave, sandbox_found
from deepstack_harness.cli.main import main
from deepstack_harness.compile.torch_compat import guards
from deepstack_harness.errors import ExitCode, MachineError
from deepstack_harness.runs import machine
from deepstack_harness.workers.limits import Limits
from deepstack_harness.workers.profiles import NO_SANDBOX
from deepstack_harness.workers.worker import Worker

Patch = pytest.MonkeyPatch


def fail(*_: object) -> None:
    raise ModuleNotFoundError("No module named 'torch'", name="torch")


RAN = (
    TorchVersion(
        "2.10",
        "3.6",
        runs=(
            SuiteRun(Suite.FACTS, "2.10.0", "3.11.7", 200),
            SuiteRun(Suite.PRODUCT, "2.10.0", "3.12.1", 500, red=("test_x: torch crashes",)),
        ),
    ),
    TorchVersion("2.13", "3.7", runs=(SuiteRun(Suite.PRODUCT, "2.13.0", "3.11.7", 525),)),
)
"""Runs that never were."""


@pytest.mark.parametrize(
    ("version", "python", "here", "found"),
    [
        ("2.9.1", "3.11.0", False, "never run; 2.10 .. 2.13 were"),
        ("2.10.0", "3.11.0", True, "facts of torch on Python 3.11: 200 passed"),
        ("2.10.1", "3.12.9", True, "product cases on Python 3.12: 500 passed, 1 red: test_x: torch crashes"),
        ("2.13.0+cpu", "3.11.9", True, "product cases on Python 3.11: 525 passed"),
        ("2.13.0a0+git1", "3.13.0", True, "never run on Python 3.13, but on 3.11"),
        ("2.14.0", "3.11.0", False, "never run; 2.10 .. 2.13 were"),
    ],
)
def test_what_was_seen_of_a_torch_on_this_python_is_shown(
    version: str, python: str, here: bool, found: str, monkeypatch: Patch
) -> None:
    monkeypatch.setattr(torch, "__version__", version)
    monkeypatch.setattr(platform, "python_version", lambda: python)
    monkeypatch.setitem(vars(versions.VERSIONS), "entries", RAN)
    check = doctor.torch_version()
    assert (check.here, check.needed) == (here, True)
    assert check.found == f"{version}, {found}"


@pytest.mark.parametrize(
    ("python", "here", "needed", "found"),
    [
        ("3.10.2", False, True, "3.10.2, never run; 3.11 .. 3.12 were"),
        ("3.11.9", True, False, "3.11.9"),
        ("3.14.0rc1", False, False, "3.14.0rc1, never run; 3.11 .. 3.12 were"),
    ],
)
def test_a_python_that_was_never_run_is_reported(
    python: str, here: bool, needed: bool, found: str, monkeypatch: Patch
) -> None:
    monkeypatch.setattr(platform, "python_version", lambda: python)
    monkeypatch.setitem(vars(versions.VERSIONS), "entries", RAN)
    assert doctor.python_version() == MachineCheck("python", here, found, needed)


def test_a_missing_private_name_of_torch_is_reported_with_the_command_that_it_stops(
    monkeypatch: Patch,
) -> None:
    assert doctor.dropped_guards().here == (not guards.missing_names())
    monkeypatch.setattr(guards, "missing_names", lambda: ("torch._dynamo.x",))
    check = doctor.dropped_guards()
    assert (check.here, check.needed) == (False, False)
    assert check.found == "torch has no torch._dynamo.x: 'watch' is refused, no dropped guard is named"


def test_without_torch_the_line_that_installs_it_is_shown(monkeypatch: Patch) -> None:
    monkeypatch.setattr("builtins.__import__", fail)
    try:
        check = [doctor.torch_version(), doctor.gpu(), doctor.inductor(60), doctor.dropped_guards()]
    finally:
        monkeypatch.undo()
    assert [thing.here for thing in check] == [False] * 4
    assert "pip install" in check[0].found
    assert check[1].found == "unknown: torch is needed to look for one"
    assert check[2].found == "torch is needed to compile"
    assert check[3].found == "torch is needed to look for its names"


@pytest.mark.parametrize("names", [[], ["NVIDIA H200", "NVIDIA H200"]])
def test_gpus_are_named(names: list[str], monkeypatch: Patch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: len(names))
    monkeypatch.setattr(torch.cuda, "get_device_name", names.__getitem__)
    check = doctor.gpu()
    assert check.here == bool(names)
    assert check.found == (", ".join(names) or "none: --device cuda is refused, GPU cases are skipped")


@pytest.mark.parametrize(
    ("torch_version", "triton_version", "here", "sentence"),
    [
        ("2.13.0", "3.7.1", True, "3.7.1"),
        ("2.13.0", "3.6.0", True, "3.6.0; torch 2.13.0 with triton 3.6.0 was never checked: do not rely"),
        ("2.13.0", None, False, "'kernels --target h200' is refused: code for a GPU that is not here needs"),
        (
            "2.9.0",
            "3.5.0",
            False,
            "'kernels --target h200' is refused: torch 2.9.0 with triton 3.5.0 is older",
        ),
    ],
)
def test_the_pair_of_torch_and_triton_is_checked_as_commands_check_it(
    torch_version: str, triton_version: str | None, here: bool, sentence: str, monkeypatch: Patch
) -> None:
    def installed(name: str) -> str:
        version = {"torch": torch_version, "triton": triton_version}[name]
        if version is None:
            raise importlib.metadata.PackageNotFoundError(name)
        return version

    monkeypatch.setattr(importlib.metadata, "version", installed)
    check = doctor.triton()
    assert check.here is here
    assert check.found.startswith(sentence)


def test_a_library_is_found_by_its_metadata() -> None:
    assert doctor.library("pytest", "").found == importlib.metadata.version("pytest")
    absent = doctor.library("no-such-library", "'report --html' is refused")
    assert (absent.here, absent.found) == (False, "not installed: 'report --html' is refused")


@pytest.mark.parametrize(
    ("programs", "here", "text"),
    [
        ((), False, "none of chromium, chromium-browser, google-chrome: browser cases are skipped"),
        (("google-chrome",), False, "no chromedriver: browser cases are skipped"),
        (("google-chrome", "chromedriver"), True, "/bin/google-chrome, with chromedriver"),
    ],
)
def test_a_browser_needs_its_driver(
    programs: tuple[str, ...], here: bool, text: str, monkeypatch: Patch
) -> None:
    monkeypatch.setattr("shutil.which", lambda name: f"/bin/{name}" if name in programs else None)
    assert doctor.chromium() == MachineCheck("chromium", here, text)


def test_a_cache_that_cannot_be_made_costs_time_and_no_more(tmp_path: Path, monkeypatch: Patch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("DEEPSTACK_HARNESS_CACHE", str(tmp_path / "file" / "cache"))
    check = doctor.cache_folder()
    assert (check.here, check.needed) == (False, False)
    assert check.found.endswith("Not a directory; releases are fetched by every command")
    monkeypatch.setenv("DEEPSTACK_HARNESS_CACHE", str(tmp_path / "cache"))
    assert doctor.cache_folder().here


def test_an_index_that_does_not_respond_is_reported(monkeypatch: Patch) -> None:
    for name, value in (("PIP_CONFIG_FILE", "/dev/null"), ("PIP_INDEX_URL", "http://127.0.0.1:9/simple")):
        monkeypatch.setenv(name, value)
    check = doctor.package_index()
    assert (check.here, check.needed) == (False, False)
    assert "127.0.0.1:9" in check.found


@pytest.mark.parametrize(
    ("here", "needed", "code", "sentence"),
    [
        (False, True, ExitCode.MACHINE, "cannot run 'repro 43602': a part missing"),
        (None, True, ExitCode.MACHINE, "not known whether 'repro 43602' can run: no reply from a part"),
        (None, False, ExitCode.HOLDS, "can run 'repro 43602' on the CPU"),
        (False, False, ExitCode.HOLDS, "can run 'repro 43602' on the CPU"),
        (True, True, ExitCode.HOLDS, "can run 'repro 43602' on the CPU"),
    ],
)
def test_doctor_ends_with_3_where_something_needed_is_missing_or_not_known(
    here: bool | None,
    needed: bool,
    code: ExitCode,
    sentence: str,
    monkeypatch: Patch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(
        doctor, "CHECKS", (("a part", lambda: MachineCheck("a part", here, "found", needed)),)
    )
    monkeypatch.setattr(doctor, "inductor", lambda _: MachineCheck("inductor on cpu", True, "compiles"))
    assert main(["doctor"]) == code
    assert capsys.readouterr().out.splitlines()[-1] == sentence


def test_a_machine_without_proc_has_the_name_that_python_knows(monkeypatch: Patch) -> None:
    def unreadable(*_: object) -> str:
        raise FileNotFoundError("/proc/cpuinfo")

    monkeypatch.setattr(Path, "read_text", unreadable)
    monkeypatch.setattr(platform, "processor", lambda: "arm")
    assert machine._cpu() == "arm"
    assert installed_version("no-such-library") is None


def test_without_a_sandbox_code_under_test_reaches_everything(tmp_path: Path, monkeypatch: Patch) -> None:
    outside = ["write outside its folder", "use the network", "send signals"]
    assert leave(str(tmp_path)) == outside
    monkeypatch.setenv(NO_SANDBOX, "1")
    assert sandbox_found() == (False, f"turned off: {WITHOUT_SANDBOX}")


def test_an_error_of_torch_that_nobody_knows_is_not_hidden(monkeypatch: Patch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    monkeypatch.setattr(doctor, "torch_problem", lambda _: None)
    with pytest.raises(ImportError, match="torch"):
        doctor._torch_problem()


MISBEHAVING = "cases.selftest.workers.misbehaving"


@pytest.mark.parametrize("name", ALWAYS)
def test_a_compiler_that_misbehaves_is_a_check_that_failed(name: str, monkeypatch: Patch) -> None:
    monkeypatch.setattr(doctor, "_COMPILE", f"{MISBEHAVING}:{name}")
    check = doctor.inductor(0.5 if name == "hang_always" else 60)
    assert not check.here
    assert ALWAYS[name] in check.found


@pytest.mark.parametrize("name", ALWAYS)
def test_a_driver_that_misbehaves_is_the_machine_s_fault(name: str, monkeypatch: Patch) -> None:
    monkeypatch.delenv(machine.VISIBLE, raising=False)
    monkeypatch.setattr(machine, "_COUNT", f"{MISBEHAVING}:{name}")
    monkeypatch.setattr(machine, "_COUNTING_S", 0.5 if name == "hang_always" else 60.0)
    with pytest.raises(MachineError, match=f"torch cannot count the GPUs: {ALWAYS[name]}"):
        machine.visible_gpus()


def test_gpus_are_counted_by_a_worker(monkeypatch: Patch) -> None:
    monkeypatch.delenv(machine.VISIBLE, raising=False)
    monkeypatch.setattr(machine, "_COUNT", "cases.selftest.workers.processes:count_three_gpus")
    assert machine.visible_gpus() == ["0", "1", "2"]


@pytest.mark.parametrize(
    "script", ["exec sleep 600", "echo H100; exit 9", "echo H100; kill -SEGV $$", "yes", "echo H100 >&2"]
)
def test_a_tool_that_misbehaves_is_as_if_it_were_not_there(
    script: str, tmp_path: Path, monkeypatch: Patch
) -> None:
    limits = Limits(call_s=0.5 if "sleep" in script else 60, output=2**20)
    monkeypatch.setattr(machine, "_COMMAND_LIMITS", limits)
    write_tool(tmp_path, script, monkeypatch)
    environment_now = machine.environment()
    assert (environment_now.device, environment_now.driver) == ((), None)


def test_names_of_devices_and_the_driver_come_from_the_tool(tmp_path: Path, monkeypatch: Patch) -> None:
    write_tool(
        tmp_path, "echo 'NVIDIA H200, 575.1'; echo 'NVIDIA H100, 575.1'; echo warning >&2", monkeypatch
    )
    environment_now = machine.environment()
    assert (environment_now.device, environment_now.driver) == (("NVIDIA H200", "NVIDIA H100"), "575.1")


def write_tool(folder: Path, script: str, monkeypatch: Patch) -> None:
    tool = folder / "nvidia-smi"
    tool.write_text(f"#!/bin/sh\n{script}\n")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")


def test_a_compiler_that_is_slow_is_not_called_broken() -> None:
    check = doctor.inductor(1e-9)
    assert (check.here, check.needed) == (None, True)
    assert check.found.startswith("not known, the machine may be busy: ")
    assert "doctor --seconds 60" in check.found


def test_a_check_that_had_no_time_is_not_called_missing(
    monkeypatch: Patch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """The real worker, a real compiler, and no time for either: nothing is known to be missing."""
    monkeypatch.setattr(doctor, "CHECKS", ())
    assert main(["doctor", "--seconds", "1e-9", "--json", str(tmp_path / "rows")]) is ExitCode.MACHINE
    said = capsys.readouterr().out
    assert "missing" not in said
    assert "inductor on cpu   ?    not known, the machine may be busy: " in said
    *_, again, last = said.splitlines()
    assert again == "try again: deepstack-harness doctor --seconds 60"
    assert last == "not known whether 'repro 43602' can run: no reply from inductor on cpu"
    assert '"what":"inductor on cpu","here":null' in (tmp_path / "rows").read_text()


def test_after_a_long_wait_a_longer_timeout_is_advised() -> None:
    assert [doctor._longer(seconds) for seconds in (8, 15, 40)] == [60, 60, 160]


def test_a_sandbox_that_does_not_respond_is_not_called_broken(monkeypatch: Patch) -> None:
    monkeypatch.setattr(doctor, "_ATTEMPTS", f"{MISBEHAVING}:hang_always")
    monkeypatch.setattr(doctor, "Worker", partial(Worker, Limits(call_s=0.5)))
    whole, parts = sandbox_found()
    assert whole is None
    assert ALWAYS["hang_always"] in parts


def test_a_limit_that_cannot_be_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--seconds", "0"]) is ExitCode.USAGE
    assert "--seconds 0 must be above 0" in capsys.readouterr().err


@pytest.mark.parametrize("asked", [True, False])
def test_engines_are_looked_for_only_where_they_are_requested(
    asked: bool, monkeypatch: Patch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(doctor, "CHECKS", ())
    monkeypatch.setattr(doctor, "inductor", lambda _: MachineCheck("inductor on cpu", True, "compiles"))
    main(["doctor", *(["--engines"] if asked else [])])
    assert ("installed:vllm" in capsys.readouterr().out) is asked
