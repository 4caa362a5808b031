"""FastDeploy: a tree of the user's, whose buffer of Paddle tensors is judged by every rule."""

from collections.abc import Mapping
from pathlib import Path

import pytest

from cases.selftest.engines.audited import audited
from cases.selftest.engines.synthetic_fastdeploy import MODEL, NO_COUNT, RIGHT, fastdeploy_files
from cases.selftest.engines.synthetic_vllm import write
from deepstack_harness.audit.class_verdicts import ClassVerdicts
from deepstack_harness.cli.main import main
from deepstack_harness.contract.case import Regime
from deepstack_harness.contract.rules import Rule
from deepstack_harness.engines.kinds.fastdeploy import FASTDEPLOY
from deepstack_harness.engines.known import engine_of, newest_release, open_source
from deepstack_harness.errors import ExitCode, UsageError

R = Rule


def judged(root: Path, files: Mapping[str, str]) -> ClassVerdicts:
    """Return the verdicts of the only class of a source."""
    return audited(write(root, files))[1]


@pytest.fixture(scope="module")
def stale(tmp_path_factory: pytest.TempPathFactory) -> ClassVerdicts:
    """A class that does not count the tokens it was given."""
    return judged(tmp_path_factory.mktemp("stale"), fastdeploy_files(NO_COUNT))


def test_a_buffer_without_a_count_breaks_the_named_rules(stale: ClassVerdicts) -> None:
    assert set(stale.broken_in(Regime.LIVE)) == {R.FRESHNESS, R.CAPACITY, R.CLEAR, R.REJECTION}
    assert R.ADDRESS in stale.broken_in(Regime.CAPTURED)
    assert {R.STRUCTURE, R.BOUNDARY, R.PLACEMENT} <= stale.kept


def test_stale_rows_are_counted_and_placed(stale: ClassVerdicts) -> None:
    (row,) = (row for row in stale.rows if row.rule is R.FRESHNESS and row.regime is Regime.LIVE)
    assert row.value == 18
    assert row.where is not None
    assert row.where.startswith(f"{MODEL}:")
    assert row.reach == "unknown"
    assert row.detail.endswith("3 orders of the engine tried")


@pytest.mark.slow  # 5 s
def test_a_buffer_that_refuses_and_zeroes_passes_every_rule(tmp_path: Path) -> None:
    verdicts = judged(tmp_path, fastdeploy_files(RIGHT))
    assert not verdicts.broken
    assert {
        R.STRUCTURE,
        R.BOUNDARY,
        R.FRESHNESS,
        R.CAPACITY,
        R.CLEAR,
        R.ADDRESS,
        R.PLACEMENT,
        R.REJECTION,
    } <= verdicts.kept


@pytest.mark.parametrize("folder", ["", "fastdeploy"])
def test_a_tree_and_a_package_folder_are_recognised(tmp_path: Path, folder: str) -> None:
    root = write(tmp_path, fastdeploy_files(RIGHT))
    assert engine_of(open_source(str(root / folder))).package.name == "fastdeploy"


def test_a_renamed_package_folder_of_vllm_stays_one(tmp_path: Path) -> None:
    root = write(tmp_path, {"renamed/model_executor/__init__.py": "", "renamed/core/__init__.py": ""})
    assert engine_of(open_source(str(root / "renamed"))).package.name == "vllm"


def test_a_release_of_the_other_project_is_refused() -> None:
    with pytest.raises(
        UsageError, match="FastDeploy can only be judged by path, since the index has another"
    ):
        open_source("fastdeploy==3.1.1")
    with pytest.raises(UsageError, match="'fastdeploy': FastDeploy can only be judged by path"):
        newest_release(FASTDEPLOY.package)


@pytest.mark.parametrize(
    ("methods", "lacking"),
    [
        (
            NO_COUNT.replace("level[:rows].zero_()", "paddle.assign(0, level)"),
            "the harness has no paddle.assign",
        ),
        (NO_COUNT.replace("copy_(theirs, False)", "set_value(theirs)"), "no attribute 'set_value'"),
        (NO_COUNT.replace("_get_deepstack", "_fetch_deepstack"), "has no _get_deepstack_input_embeds"),
    ],
    ids=["function", "method", "renamed"],
)
def test_parts_of_paddle_that_are_not_there_are_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], methods: str, lacking: str
) -> None:
    root = write(tmp_path, fastdeploy_files(methods))
    assert main(["audit", "--source", str(root)]) == ExitCode.BROKEN
    output = capsys.readouterr().out
    assert lacking in output
    assert f"{MODEL}:" in output


def test_a_tree_without_deepstack_is_reported_as_that(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files = {name: "" if "deepstack" in text else text for name, text in fastdeploy_files(RIGHT).items()}
    assert main(["audit", "--source", str(write(tmp_path, files))]) == ExitCode.USAGE
    assert "has no class with a deepstack buffer" in capsys.readouterr().err
