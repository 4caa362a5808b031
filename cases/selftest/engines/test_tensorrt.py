"""TensorRT-LLM: a tree of the user's, whose writer fills one buffer and returns views of it."""

from pathlib import Path

import pytest

from cases.selftest.engines.audited import audited
from cases.selftest.engines.synthetic_tensorrt import (
    EMPTY_ON_TEXT,
    HEADER,
    HELPER,
    MODEL,
    NOT_ZEROED,
    RIGHT,
    tensorrt_files,
)
from cases.selftest.engines.synthetic_vllm import write
from deepstack_harness.audit.class_verdicts import ClassVerdicts
from deepstack_harness.cli.main import main
from deepstack_harness.contract.case import Regime
from deepstack_harness.contract.rules import Rule
from deepstack_harness.contract.verdicts import Verdict
from deepstack_harness.engines.known import engine_of, open_source
from deepstack_harness.errors import ExitCode, UsageError

R = Rule
KEPT = {R.BOUNDARY, R.FRESHNESS, R.CLEAR, R.PLACEMENT}


def judged(root: Path, writer: str) -> ClassVerdicts:
    """Return the verdicts of the only class of a source with this writer."""
    return audited(write(root, tensorrt_files(writer)))[1]


@pytest.fixture(scope="module")
def empty(tmp_path_factory: pytest.TempPathFactory) -> ClassVerdicts:
    """A class that passes its decoder no level in a step of text."""
    return judged(tmp_path_factory.mktemp("empty"), EMPTY_ON_TEXT)


def test_no_levels_on_text_break_r1_and_views_too_short_r4(empty: ClassVerdicts) -> None:
    assert set(empty.broken) == {R.STRUCTURE, R.CAPACITY}
    assert set(empty.kept) >= KEPT


def test_a_text_step_is_reported_as_it_is_and_reached_by_default(empty: ClassVerdicts) -> None:
    (row,) = (row for row in empty.rows if row.rule is R.STRUCTURE and row.regime is Regime.LIVE)
    assert "was answered with 0 levels, not with 3 tensors" in row.detail
    assert row.reach == "default"


def test_rules_that_cannot_be_judged_have_a_reason(empty: ClassVerdicts) -> None:
    said = {row.rule: row for row in empty.rows if row.rule in (R.ADDRESS, R.REJECTION)}
    assert {row.verdict for row in said.values()} == {Verdict.SKIP}
    assert "graphs are not driven" in said[R.ADDRESS].detail
    assert "cut out of the encoder's rows" in said[R.REJECTION].detail


def test_views_on_every_step_keep_every_rule(tmp_path: Path) -> None:
    verdicts = judged(tmp_path, RIGHT)
    assert not verdicts.broken
    assert set(verdicts.kept) >= {*KEPT, R.STRUCTURE, R.CAPACITY}


def test_a_buffer_that_is_not_zeroed_shows_earlier_rows(tmp_path: Path) -> None:
    broken = set(judged(tmp_path, NOT_ZEROED).broken)
    assert broken == {R.STRUCTURE, R.FRESHNESS, R.CAPACITY, R.CLEAR}


def test_a_tree_is_recognised_and_a_release_refused(tmp_path: Path) -> None:
    source = open_source(str(write(tmp_path, tensorrt_files(RIGHT))))
    assert engine_of(source).package.name == "tensorrt-llm"
    assert "1.3.0" in source.label
    with pytest.raises(UsageError, match="TensorRT-LLM can only be judged by path, since its wheel"):
        open_source("tensorrt_llm==1.2.1")


def test_a_helper_that_moved_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = {**tensorrt_files(EMPTY_ON_TEXT), HELPER: "import torch\n"}
    assert main(["audit", "--source", str(write(tmp_path, files))]) == ExitCode.BROKEN
    said = capsys.readouterr().out
    assert "places_of is not there and is read" in " ".join(said.split())
    assert MODEL in said


def test_a_stub_has_no_class(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = {**tensorrt_files(RIGHT), MODEL: f"{HEADER}    pass\n"}
    assert main(["audit", "--source", str(write(tmp_path, files))]) == ExitCode.USAGE
    assert "has no class with a deepstack buffer" in capsys.readouterr().err
