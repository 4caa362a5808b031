"""SGLang's older prefill runners: each shape that a release had is driven, and keeps or loses a payload."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from cases.selftest.engines.synthetic_omni import write
from cases.selftest.engines.synthetic_sglang import RUNNER, RUNNER_FILE, sglang_files
from cases.selftest.engines.synthetic_sglang_runners import (
    BREAKABLE,
    BREAKABLE_FILE,
    EXECUTE_FILE,
    PIECEWISE,
    PIECEWISE_FILE,
    WHOLE_FILE,
    piecewise,
    with_runner,
)
from deepstack_harness.binding.argument_buffer import ReplayedArgument
from deepstack_harness.binding.argument_class import ArgumentClass
from deepstack_harness.binding.found_classes import Found
from deepstack_harness.cli import main
from deepstack_harness.engines.classes import classes_of
from deepstack_harness.engines.known import open_alone
from deepstack_harness.errors import ExitCode

LOST = "input_deepstack_embeds has no static slot"
LEVELS, HIDDEN = 3, 5


def found_in(root: Path, files: Mapping[str, str]) -> Found:
    """Return the only class of a source, defined in this process: the files are ours."""
    (found,) = classes_of(open_alone(str(write(root, files))))
    return found


def replayed(found: Found, size: int, visual: int) -> torch.Tensor:
    """Replay a padded step with N visual rows of ones; return the levels (levels, size - 1, hidden)."""
    assert isinstance(found.methods, ArgumentClass)
    engine = replace(found.methods, replays=True)
    buffer = engine(16, HIDDEN, LEVELS, dtype=torch.float32, device=torch.device("cpu"))
    assert isinstance(buffer, ReplayedArgument)
    buffer.begin_step(size, profile=True)
    buffer.get(size)
    buffer.set(torch.ones(LEVELS, visual, HIDDEN))
    buffer.begin_step(size - 1, profile=False)
    return torch.stack(buffer.get(size - 1))


def expected(size: int, visual: int) -> torch.Tensor:
    """Return ones (levels, size - 1, hidden) in the first N rows of each level."""
    rows = torch.zeros(LEVELS, size - 1, HIDDEN)
    rows[:, :visual] = 1
    return rows


@pytest.mark.parametrize(
    ("member", "text"), [(RUNNER, EXECUTE_FILE), (BREAKABLE, BREAKABLE_FILE), (BREAKABLE, WHOLE_FILE)]
)
def test_a_graph_without_a_slot_loses_the_payload(tmp_path: Path, member: str, text: str) -> None:
    found = found_in(tmp_path, with_runner(member, text, "0.5.14"))
    assert found.graphs.replays, found.graphs.said
    assert found.graphs.said.startswith(LOST)
    assert not replayed(found, 8, 3).any()


@pytest.mark.parametrize(("member", "text"), [(RUNNER, EXECUTE_FILE), (BREAKABLE, BREAKABLE_FILE)])
def test_a_slot_that_is_filled_keeps_it(tmp_path: Path, member: str, text: str) -> None:
    found = found_in(tmp_path, with_runner(member, text, "0.5.14", slot=True))
    assert found.graphs.replays, found.graphs.said
    assert not found.graphs.said
    assert torch.equal(replayed(found, 8, 3), expected(8, 3))


def test_a_runner_that_runs_visual_steps_eagerly_keeps_it(tmp_path: Path) -> None:
    text = EXECUTE_FILE.replace("own = self", "own = eager = self").replace(
        "            _fill(self",
        '            if named.get("input_deepstack_embeds") is not None:\n'
        "                return eager(*given, **named)\n            _fill(self",
    )
    assert text.count("eager") == 2
    found = found_in(tmp_path, with_runner(RUNNER, text, "0.5.14"))
    assert not found.graphs.said
    assert torch.equal(replayed(found, 8, 3), expected(8, 3))


def test_a_runner_without_a_graph_of_its_own_hands_the_payload_on(tmp_path: Path) -> None:
    found = found_in(tmp_path, piecewise("0.5.10"))
    assert found.graphs.replays, found.graphs.said
    assert not found.graphs.said
    assert torch.equal(replayed(found, 8, 3), expected(8, 3))


def test_a_runner_without_a_graph_of_its_own_that_drops_the_payload_loses_it(tmp_path: Path) -> None:
    found = found_in(tmp_path, piecewise("0.5.10", loses=True))
    assert found.graphs.said.startswith(LOST)
    assert not replayed(found, 8, 3).any()


def test_a_runner_that_does_nothing_adds_nothing(tmp_path: Path) -> None:
    text = PIECEWISE_FILE.partition("        own = ")[0] + "        return None\n"
    found = found_in(tmp_path, with_runner(PIECEWISE, text, "0.5.10"))
    assert found.graphs.said.startswith(LOST)
    assert not replayed(found, 8, 3).any()


def test_a_newer_runner_that_is_not_driven_is_not_passed_over(tmp_path: Path) -> None:
    moved = RUNNER_FILE.replace("_execute_body_capture", "_execute_elsewhere")
    files = {**piecewise("0.5.10"), **sglang_files("0.5.24", runner=moved)}
    assert PIECEWISE in files
    found = found_in(tmp_path, files)
    assert not found.graphs.replays
    assert "has no _execute_body_capture" in found.graphs.said


TREES = {
    "0.5.10": (piecewise("0.5.10"), ExitCode.HOLDS, "asked", PIECEWISE),
    "0.5.11": (with_runner(BREAKABLE, WHOLE_FILE, "0.5.11"), ExitCode.BROKEN, "where", BREAKABLE),
    "0.5.12": (with_runner(BREAKABLE, BREAKABLE_FILE, "0.5.12"), ExitCode.BROKEN, "where", BREAKABLE),
    "0.5.14": (with_runner(RUNNER, EXECUTE_FILE, "0.5.14"), ExitCode.BROKEN, "where", RUNNER),
}


@pytest.mark.slow
@pytest.mark.parametrize("release", TREES)
def test_a_bisection_names_the_tree_where_it_came_in(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], release: str
) -> None:
    files, code, word, member = TREES[release]
    root = str(write(tmp_path, files))
    assert main(["repro", "33726", "--source", root, "--family", "qwen3_vl", "--bisect"]) == code
    said = capsys.readouterr().out
    assert f"{word}: {member}:" in said
    assert ("--enable-breakable-cuda-graph" in said) == (member == BREAKABLE)


@pytest.mark.slow
def test_a_runner_that_raises_is_told_apart(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = BREAKABLE_FILE.replace("graph.replay()", 'named["input_embeds"] or graph.replay()')
    root = str(write(tmp_path, with_runner(BREAKABLE, text, "0.5.13")))
    assert main(["repro", "33726", "--source", root, "--family", "qwen3_vl"]) == ExitCode.BROKEN
    said = capsys.readouterr().out
    assert "raises, and does not lose rows silently as in incident 33726" in said
    assert "Boolean value of Tensor" in said
