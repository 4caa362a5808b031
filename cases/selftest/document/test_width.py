"""Every line of every command has at most 80 columns in a pipe, but for commands to copy and JSON."""

import re
from pathlib import Path

import pytest

from cases.by_day import by_day
from cases.selftest.engines.synthetic_vllm import write_driven
from cases.selftest.runs.report.written_runs import planned, write_run
from deepstack_harness.catalogue.incidents import catalogue
from deepstack_harness.cli.main import COMMANDS, main

MINE = """
import torch
from deepstack_harness import Call
from deepstack_harness.models.reference import ReferenceBuffer


def score(x: torch.Tensor, mask: torch.Tensor | None = None) -> torch.Tensor:
    return x * 2 if mask is None else x * 2 + mask


def late_mask():
    x = torch.randn(4, 8)
    return score, [Call(x), Call(x, mask=torch.ones(4, 8))]


class NeverClears(ReferenceBuffer):
    def clear(self, tokens):
        pass
"""
QUICK = (
    "list",
    "list incidents",
    "show R5",
    "show answers ignore the image",
    "repro answers ignore the image",
    "affected vllm==0.22.1",
    "affected sglang==0.5.23",
    "steps mine.py:late_mask",
    "repro 43602 --arm eager",
    "repro 40143",
    "audit --source vllm_tree",
    "report run",
    "compare run other",
    "nightly --list",
)
LONG = (
    "selftest none_when_empty",
    "fuzz --revision pr40145 --examples 5 --out found",
    "audit --source vllm_tree --all --fail-on any",
    "check mine.py:NeverClears",
    "audit --inputs --source inputs",
    "watch -- python mine.py",
    "run --out played family=qwen3_vl arm=eager dtype=float32 revision=pr40145 incident=43602",
    "kernels --tokens 17 --capacity 64",
    "repro 43602 --arm eager/drop_all",
    "repro 35917",
    "doctor",
    "engine --source vllm_tree --dry-run",
)
COPIED = re.compile(r"\s*(\S+: |[\w ]+ {2,})?(deepstack-harness|python3? -m|::(error|warning|notice) )")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "mine.py").write_text(MINE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("COLUMNS")
    return tmp_path


def too_wide(command: str, capsys: pytest.CaptureFixture[str]) -> list[str]:
    code = main(command.split())
    printed = capsys.readouterr()
    assert code in {0, 1, 2, 3}, printed.err
    lines = [*printed.out.splitlines(), *printed.err.splitlines()]
    assert lines
    return [line for line in lines if len(line) > 80 and not COPIED.match(line)]


def prepare(folder: Path, command: str) -> None:
    if "vllm_tree" in command:
        write_driven(folder / "vllm_tree")
    if " run" in command:
        for name in ("run", "other"):
            write_run(folder / name, found=planned()[:2])
    if " inputs" in command:
        synthetic = Path(__file__).parents[1] / "engines/synthetic/inputs/wrong"
        (folder / "inputs").symlink_to(synthetic)


@pytest.mark.parametrize("command", by_day(QUICK, count=9))
def test_no_line_is_wider(command: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    prepare(folder, command)
    assert too_wide(command, capsys) == []


@pytest.mark.slow
@pytest.mark.parametrize("command", LONG)
def test_no_line_of_a_long_command_is_wider(
    command: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    prepare(folder, command)
    assert too_wide(command, capsys) == []


@pytest.mark.parametrize("incident", [incident.id for incident in catalogue()])
def test_no_line_about_an_incident_is_wider(
    incident: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert too_wide(f"show {incident}", capsys) == []


def test_every_command_is_here() -> None:
    shown = {command.split()[0] for command in (*QUICK, *LONG)}
    assert shown == set(COMMANDS)
