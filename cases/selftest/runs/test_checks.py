"""A check of the machine is told whatever the tool that it asks does."""

import os
from pathlib import Path

import pytest

from cases.selftest.workers.misbehaving import ALWAYS
from deepstack_harness.cli import doctor as checks
from deepstack_harness.errors import MachineError
from deepstack_harness.runs import machine as environment
from deepstack_harness.runs import machine as gpus
from deepstack_harness.workers.limits import Limits

MISBEHAVING = "cases.selftest.workers.misbehaving"


@pytest.mark.parametrize("name", ALWAYS)
def test_a_compiler_that_misbehaves_is_a_check_that_failed(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checks, "_COMPILE", f"{MISBEHAVING}:{name}")
    monkeypatch.setattr(checks, "_COMPILE_SECONDS", 0.5 if name == "hang_always" else 60.0)
    found = checks.inductor()
    assert not found.here
    assert found.found.startswith(ALWAYS[name])


@pytest.mark.parametrize("name", ALWAYS)
def test_a_driver_that_misbehaves_is_the_machine_s_fault(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(gpus.VISIBLE, raising=False)
    monkeypatch.setattr(gpus, "_COUNT", f"{MISBEHAVING}:{name}")
    monkeypatch.setattr(gpus, "_COUNTING_S", 0.5 if name == "hang_always" else 60.0)
    with pytest.raises(MachineError, match=f"torch cannot count the GPUs: {ALWAYS[name]}"):
        gpus.visible_gpus()


def test_gpus_are_counted_by_a_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(gpus.VISIBLE, raising=False)
    monkeypatch.setattr(gpus, "_COUNT", "cases.selftest.runs.three_gpus:count_gpus")
    assert gpus.visible_gpus() == ["0", "1", "2"]


@pytest.mark.parametrize(
    "script", ["exec sleep 600", "echo H100; exit 9", "echo H100; kill -SEGV $$", "yes", "echo H100 >&2"]
)
def test_a_tool_that_misbehaves_is_as_if_it_were_not_there(
    script: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    limits = Limits(call_s=0.5 if "sleep" in script else 60, output=2**20)
    monkeypatch.setattr(environment, "_COMMAND_LIMITS", limits)
    write_tool(tmp_path, script, monkeypatch)
    found = environment.environment()
    assert (found.device, found.driver) == ((), None)


def test_names_of_devices_and_the_driver_come_from_the_tool(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_tool(
        tmp_path, "echo 'NVIDIA H200, 575.1'; echo 'NVIDIA H100, 575.1'; echo warning >&2", monkeypatch
    )
    found = environment.environment()
    assert (found.device, found.driver) == (("NVIDIA H200", "NVIDIA H100"), "575.1")


def write_tool(folder: Path, script: str, monkeypatch: pytest.MonkeyPatch) -> None:
    tool = folder / "nvidia-smi"
    tool.write_text(f"#!/bin/sh\n{script}\n")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")
