"""Sources with a planted carrier: `audit` judges it or is red for it, and never says "none" beside it."""

import json
from pathlib import Path

import pytest

from cases.selftest.audit.test_account import NEW, PLAIN
from cases.selftest.engines.synthetic_carriers import BASE, NONE_UNTIL_THE_FIRST, build
from cases.selftest.engines.synthetic_vllm import GRANITE, QWEN, write_driven
from deepstack_harness.audit.account import account_of
from deepstack_harness.audit.source_worker import SourceWorker
from deepstack_harness.cli.main import main
from deepstack_harness.contract.verdicts import BROKEN
from deepstack_harness.engines.engine import KnownEngine
from deepstack_harness.engines.known import RELEASED, newest_source, open_source
from deepstack_harness.errors import ExitCode, MachineError

Capture = pytest.CaptureFixture[str]
FOLDER = NEW.rpartition("/")[0]
KNOWN_CLASS = "Qwen3VLForConditionalGeneration"


def planted(root: Path, text: str) -> Path:
    """A tree with a known carrier, and one in a new folder under new names with foreign annotations."""
    return write_driven(root, {GRANITE: "", NEW: text, f"{FOLDER}/base.py": BASE})


def audit(root: Path, tmp_path: Path, *words: str) -> tuple[ExitCode, list[dict[str, object]]]:
    path = tmp_path / "rows.jsonl"
    code = main(["audit", "--source", str(root), "--json", str(path), *words])
    return ExitCode(code), [json.loads(line) for line in path.read_text().splitlines()]


def test_a_new_carrier_that_can_be_driven_is_judged(tmp_path: Path, capsys: Capture) -> None:
    root = planted(tmp_path / "tree", build(NONE_UNTIL_THE_FIRST["dict"]))
    code, rows = audit(root, tmp_path)
    broken = {(row["model_class"], row["rule"]) for row in rows if row["verdict"] in BROKEN}
    assert code is ExitCode.BROKEN
    assert ("SoundModel", "R1") in broken
    assert KNOWN_CLASS in {row["model_class"] for row in rows}
    last = capsys.readouterr().out.splitlines()[-1]
    assert "R1" in last.partition(". ")[0]


@pytest.mark.parametrize(
    "words", [[], ["--fail-on", "new"], ["--fail-on", "default"], ["--bisect"], ["--base"]]
)
def test_a_new_carrier_that_cannot_be_driven_is_red(
    tmp_path: Path, capsys: Capture, words: list[str]
) -> None:
    root = planted(tmp_path / "tree", PLAIN)
    named = [*words, str(root)] if words == ["--base"] else words
    code, rows = audit(root, tmp_path, *named)
    assert code is ExitCode.BROKEN
    (row,) = (row for row in rows if row["rule"] is None)
    assert (row["model_class"], row["where"], row["verdict"]) == ("Twofold", f"{NEW}:6", "ERROR")
    assert KNOWN_CLASS in {row["model_class"] for row in rows if row["rule"]}
    first, second, *_, last = capsys.readouterr().out.splitlines()
    assert first.endswith("; 1 not judged")
    assert second.endswith("; 1 class not judged")
    assert "unknown for 1 class. " in last
    assert "reached by default: none" not in last


def test_a_new_carrier_that_is_the_only_one_is_red(tmp_path: Path, capsys: Capture) -> None:
    root = write_driven(tmp_path / "tree", {GRANITE: "", QWEN: PLAIN})
    assert main(["audit", "--source", str(root)]) == ExitCode.BROKEN
    assert main(["audit", "--source", str(root), "--bisect"]) == ExitCode.BROKEN
    (root / QWEN).write_text("# deepstack\n")
    capsys.readouterr()
    assert main(["audit", "--source", str(root)]) == ExitCode.USAGE
    assert "has no class with a deepstack buffer" in capsys.readouterr().err


@pytest.mark.network
@pytest.mark.slow
@pytest.mark.parametrize("engine", RELEASED, ids=lambda engine: engine.package.name)
def test_no_known_carrier_of_a_newest_release_can_be_driven(engine: KnownEngine) -> None:
    try:
        text = newest_source(engine.package)
    except MachineError as error:
        pytest.skip(str(error))
    with SourceWorker(text) as worker:
        found = account_of(open_source(text), worker.classes())
    assert found.outdated == ()
