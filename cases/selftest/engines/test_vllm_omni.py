"""vLLM-Omni: recognised by its folders, judged by every rule; R2 finds its erasing get under graphs."""

from collections.abc import Mapping
from pathlib import Path

import pytest

from cases.selftest.engines.audited import audited
from cases.selftest.engines.synthetic_omni import ERASES, READS_ONLY, REST, THINKER, omni_files
from cases.selftest.engines.synthetic_vllm import write
from deepstack_harness.audit.class_verdicts import ClassVerdicts
from deepstack_harness.audit.classes import judge_class
from deepstack_harness.audit.source_worker import SourceWorker
from deepstack_harness.cli.main import main
from deepstack_harness.contract.case import Regime
from deepstack_harness.contract.rules import Rule
from deepstack_harness.contract.verdicts import Verdict
from deepstack_harness.engines.known import engine_of, open_source
from deepstack_harness.errors import ExitCode, UsageError

R = Rule
OMNI = "Qwen3OmniMoeThinkerForConditionalGeneration"


def judged(root: Path, files: Mapping[str, str]) -> ClassVerdicts:
    """Return the verdicts of the only class of a source."""
    found, verdicts = audited(write(root, files))
    assert found.ways.forward, found.ways.refusals
    return verdicts


@pytest.fixture(scope="module")
def erasing(tmp_path_factory: pytest.TempPathFactory) -> ClassVerdicts:
    """A class whose get zeroes the rows after the payload."""
    return judged(tmp_path_factory.mktemp("erasing"), omni_files(ERASES))


def test_a_captured_get_that_erases_is_reported(erasing: ClassVerdicts) -> None:
    assert R.BOUNDARY in erasing.broken_in(Regime.CAPTURED)
    assert R.BOUNDARY not in erasing.broken_in(Regime.LIVE)


def test_its_row_names_what_leads_there(erasing: ClassVerdicts) -> None:
    (row,) = (row for row in erasing.rows if row.rule is R.BOUNDARY and row.regime is Regime.CAPTURED)
    assert row.reach == "flag: --compilation-config.cudagraph_mode=FULL"
    assert row.evidence == "read"
    assert row.where is not None
    assert row.where.startswith(THINKER)


def test_a_get_that_only_reads_passes_the_rule(tmp_path: Path) -> None:
    verdicts = judged(tmp_path, omni_files(READS_ONLY))
    assert R.BOUNDARY not in verdicts.broken
    assert {R.STRUCTURE, R.FRESHNESS, R.CLEAR, R.PLACEMENT} <= verdicts.kept


def test_a_package_folder_is_distinguished_from_that_of_vllm(tmp_path: Path) -> None:
    root = write(tmp_path, omni_files(READS_ONLY))
    for path in (root, root / "vllm_omni"):
        assert engine_of(open_source(str(path))).package.name == "vllm-omni"


def test_what_is_not_in_the_source_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lacking = REST.replace("        ours.zero_()", "        no_such_import(ours)")
    files = dict(omni_files(READS_ONLY, rest=lacking))
    files[THINKER] = f"from vllm.elsewhere import no_such_import\n{files[THINKER]}"
    assert main(["audit", "--source", str(write(tmp_path, files))]) == ExitCode.BROKEN
    output = capsys.readouterr().out
    assert "no class that was judged is wrong with default settings; 1 not judged" in output
    assert f"{THINKER}:" in output
    assert "no_such_import" in output


@pytest.mark.parametrize("text", ["sglang-omni==0.1.9", "installed:rtp-llm"])
def test_an_engine_that_is_not_driven_has_a_reason(text: str) -> None:
    with pytest.raises(UsageError, match="cannot be called: the payload is an argument"):
        open_source(text)


def test_another_package_names_the_engines() -> None:
    with pytest.raises(UsageError, match="requests cannot be judged, only vllm, vllm-omni"):
        open_source("requests==2.32.0")


def test_engines_are_listed_with_reasons(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list", "engines"]) == ExitCode.HOLDS
    lines = capsys.readouterr().out.splitlines()
    assert any(line.split()[:1] == ["vllm-omni"] and "not judged" not in line for line in lines)
    assert any(line.split()[:1] == ["lightllm"] and "not judged: " in line for line in lines)


@pytest.mark.network
@pytest.mark.slow
@pytest.mark.parametrize(
    ("release", "live", "captured"),
    [
        ("0.18.0", {R.FRESHNESS, R.CAPACITY, R.CLEAR, R.REJECTION}, {R.FRESHNESS, R.ADDRESS}),
        ("0.20.0", {R.STRUCTURE, R.REJECTION}, {R.STRUCTURE, R.CLEAR, R.ADDRESS}),
        ("0.30.0", {R.CAPACITY, R.REJECTION}, {R.BOUNDARY, R.ADDRESS}),
    ],
)
def test_released_classes(release: str, live: set[Rule], captured: set[Rule]) -> None:
    with SourceWorker(f"vllm-omni=={release}") as worker:
        (found,) = worker.classes()
        verdicts = judge_class(found, worker)
    assert found.model_class == OMNI
    assert set(verdicts.broken_in(Regime.LIVE)) == live
    assert set(verdicts.broken_in(Regime.CAPTURED)) == captured
    assert not verdicts.rules({Verdict.FAIL})
