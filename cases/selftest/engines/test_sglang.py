"""SGLang: a payload argument is read by its effect, and each released prefill runner replays or loses it."""

import io
import re
import tarfile
from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
import torch

from cases.selftest.engines.audited import audited
from cases.selftest.engines.synthetic_sglang import (
    MODEL,
    MODEL_FILE,
    RUNNER,
    RUNNER_FILE,
    WRITER_FILE,
    sglang_files,
    with_slot,
)
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
from cases.selftest.engines.synthetic_vllm import write
from deepstack_harness.audit.class_verdicts import ClassVerdicts
from deepstack_harness.audit.classes import judge_class
from deepstack_harness.audit.source_worker import SourceWorker
from deepstack_harness.cli.main import main
from deepstack_harness.contract.case import Regime
from deepstack_harness.contract.rules import Rule
from deepstack_harness.contract.verdicts import Row, Verdict
from deepstack_harness.engines.bind import ArgumentClass, DefinedClass, ReplayedArgument
from deepstack_harness.engines.classes import classes_of
from deepstack_harness.engines.known import open_alone
from deepstack_harness.errors import ExitCode

R = Rule
ASKED = {R.BOUNDARY, R.FRESHNESS, R.CLEAR, R.PLACEMENT, R.REJECTION}


def row_of(verdicts: ClassVerdicts, rule: Rule, regime: Regime) -> Row:
    """Return the row of a rule in a regime."""
    return next(row for row in verdicts.rows if row.rule is rule and row.regime is regime)


@pytest.fixture(scope="module")
def without_slot(tmp_path_factory: pytest.TempPathFactory) -> ClassVerdicts:
    """A source whose graphs are captured without the payload."""
    return audited(write(tmp_path_factory.mktemp("without"), sglang_files()))[1]


LOST = "input_deepstack_embeds has no static slot"
LEVELS, HIDDEN = 3, 5


def class_in(root: Path, files: Mapping[str, str]) -> DefinedClass:
    """Return the only class of a source, defined in this process: the files are ours."""
    (found,) = classes_of(open_alone(str(write(root, files))))
    return found


def replayed(found: DefinedClass, size: int, visual: int) -> torch.Tensor:
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


def test_a_payload_without_a_slot_is_lost_at_replay(without_slot: ClassVerdicts) -> None:
    assert without_slot.broken_in(Regime.CAPTURED) == {R.BOUNDARY}
    assert not without_slot.broken_in(Regime.LIVE)
    row = row_of(without_slot, R.BOUNDARY, Regime.CAPTURED)
    assert "input_deepstack_embeds has no static slot" in row.detail
    assert "holds zeros" in row.detail
    closure = RUNNER_FILE.splitlines().index("        def replays(*given, **named):") + 1
    assert row.where == f"{RUNNER}:{closure}-{closure + 2}"
    assert str(row.where) in row.detail


def test_its_reach_names_the_options(without_slot: ClassVerdicts) -> None:
    row = row_of(without_slot, R.BOUNDARY, Regime.CAPTURED)
    assert row.reach == ("flag: --cuda-graph-backend-prefill full or --cuda-graph-backend-prefill breakable")


def test_what_cannot_be_judged_has_a_reason(without_slot: ClassVerdicts) -> None:
    assert without_slot.kept >= ASKED - {R.BOUNDARY}
    for rule in (R.STRUCTURE, R.CAPACITY, R.ADDRESS):
        row = row_of(without_slot, rule, Regime.LIVE)
        assert row.verdict is Verdict.SKIP
        assert "argument" in row.detail or "effect" in row.detail


def test_a_slot_that_is_filled_passes_every_rule(tmp_path: Path) -> None:
    found, verdicts = audited(write(tmp_path, with_slot()))
    assert not found.ways.lost
    assert row_of(verdicts, R.BOUNDARY, Regime.CAPTURED).verdict is Verdict.PASS
    assert not verdicts.broken
    assert verdicts.kept >= ASKED


@pytest.mark.slow
def test_a_slot_that_a_text_step_leaves_filled_is_reported(tmp_path: Path) -> None:
    _, verdicts = audited(write(tmp_path, with_slot(zeroes=False)))
    assert verdicts.broken_in(Regime.CAPTURED) == {R.CLEAR}
    assert not verdicts.broken_in(Regime.LIVE)


@cache
def _changed(before: str, after: str) -> str:
    assert MODEL_FILE.count(before) == 1
    return MODEL_FILE.replace(before, after)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("first = self.width * index", "first = self.width * (self.depth - 1 - index)"),
        ("index < self.depth", "index < self.depth - 1"),
        ("index < self.depth", "index <= 0"),
    ],
)
def test_a_level_at_another_layer_is_reported_in_live_use(tmp_path: Path, before: str, after: str) -> None:
    _, verdicts = audited(write(tmp_path, sglang_files(model=_changed(before, after))))
    assert R.BOUNDARY in verdicts.broken_in(Regime.LIVE)


@pytest.mark.slow
def test_a_writer_that_forgets_a_row_is_reported_in_live_use(tmp_path: Path) -> None:
    writer = WRITER_FILE.replace(
        "        _put(found", "        marks[0] = False\n        levels = levels[1:]\n        _put(found"
    )
    _, verdicts = audited(write(tmp_path, sglang_files(writer=writer)))
    assert R.BOUNDARY in verdicts.broken_in(Regime.LIVE)


@pytest.mark.slow
def test_a_runner_that_moved_leaves_live_use_judged(tmp_path: Path) -> None:
    runner = RUNNER_FILE.replace("_execute_body_capture", "_execute_elsewhere")
    found, verdicts = audited(write(tmp_path, sglang_files(runner=runner)))
    assert found.ways.no_graphs is not None
    assert found.ways.no_graphs.file.endswith(RUNNER)
    assert found.ways.no_graphs.line is not None
    assert not verdicts.broken
    assert all(row.regime is Regime.LIVE for row in verdicts.rows)


def test_a_writer_that_moved_is_not_driven(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root = write(tmp_path, sglang_files(writer=WRITER_FILE.replace("def embed_mm", "def place_mm")))
    assert main(["audit", "--source", str(root)]) == ExitCode.BROKEN
    output = capsys.readouterr().out
    assert "not judged: these carry a payload\n  Qwen3LLMModel" in output
    assert "embed_mm_inputs is not there" in output


def test_a_name_that_moved_is_reported_with_its_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = _changed("stream.start(forward_batch)", "stream.open(forward_batch)")
    assert main(["audit", "--source", str(write(tmp_path, sglang_files(model=model)))]) == ExitCode.BROKEN
    line = MODEL_FILE.splitlines().index("        stream.start(forward_batch)") + 1
    output = capsys.readouterr().out
    assert "Qwen3LLMModel cannot be run" in output
    assert f"({MODEL}:{line})" in output


@pytest.mark.network
@pytest.mark.slow
@pytest.mark.parametrize("release", ["0.5.16", "0.5.19", "0.5.21", "0.5.23"])
def test_released_text_models(release: str) -> None:
    with SourceWorker(f"sglang=={release}") as worker:
        found = {audited.model_class: audited for audited in worker.classes()}
        for name in ("Qwen3LLMModel", "Qwen3MoeLLMModel"):
            assert "input_deepstack_embeds has no static slot" in found[name].ways.lost
            verdicts = judge_class(found[name], worker)
            assert not verdicts.broken_in(Regime.LIVE)
            assert verdicts.broken_in(Regime.CAPTURED) == {R.BOUNDARY}
            assert verdicts.kept == ASKED - {R.BOUNDARY}
            assert not verdicts.rules({Verdict.FAIL})
        reasons = [audited.ways.refusals[-1] for audited in found.values() if not audited.ways.methods]
        assert all(reason.file.endswith(".py") and reason.line for reason in reasons)


def test_an_sdist_that_is_a_stub_is_reported_as_that(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "sglang-0.5.99.tar.gz"
    with tarfile.open(path, "w:gz") as archive:
        member = tarfile.TarInfo("sglang-0.5.99/PKG-INFO")
        text = b"Metadata-Version: 2.1\nName: sglang\nVersion: 0.5.99\n"
        member.size = len(text)
        archive.addfile(member, io.BytesIO(text))
    assert main(["audit", "--source", str(path)]) == ExitCode.USAGE
    assert "is sglang 0.5.99 without sglang/srt/, a stub" in capsys.readouterr().err


def test_a_source_without_deepstack_is_refused_with_the_first_release_that_has_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files = {"sglang/_version.py": "__version__ = '0.4.0'\n", "sglang/srt/models/llama.py": "x = 1\n"}
    assert main(["audit", "--source", str(write(tmp_path, files))]) == ExitCode.USAGE
    assert "has no class with a deepstack buffer; SGLang has had one since 0.5.4" in capsys.readouterr().err


@pytest.mark.slow
def test_graphs_that_are_not_driven_are_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    runner = RUNNER_FILE.replace("_execute_body_capture", "_execute_elsewhere")
    assert main(["audit", "--source", str(write(tmp_path, sglang_files(runner=runner)))]) == ExitCode.HOLDS
    output = capsys.readouterr().out
    assert re.search(rf"graphs \(sglang at .*has no _execute_body_capture, at .*{RUNNER}:\d+", output)


@pytest.mark.parametrize(
    ("member", "text"), [(RUNNER, EXECUTE_FILE), (BREAKABLE, BREAKABLE_FILE), (BREAKABLE, WHOLE_FILE)]
)
def test_a_graph_without_a_slot_loses_the_payload(tmp_path: Path, member: str, text: str) -> None:
    found = class_in(tmp_path, with_runner(member, text, "0.5.14"))
    assert found.graphs.replays, found.graphs.no_graphs
    assert found.graphs.lost.startswith(LOST)
    assert not replayed(found, 8, 3).any()


@pytest.mark.parametrize(("member", "text"), [(RUNNER, EXECUTE_FILE), (BREAKABLE, BREAKABLE_FILE)])
def test_a_slot_that_is_filled_passes_it(tmp_path: Path, member: str, text: str) -> None:
    found = class_in(tmp_path, with_runner(member, text, "0.5.14", slot=True))
    assert found.graphs.replays, found.graphs.no_graphs
    assert not found.graphs.lost
    assert torch.equal(replayed(found, 8, 3), expected(8, 3))


def test_a_runner_that_runs_visual_steps_eagerly_passes_it(tmp_path: Path) -> None:
    text = EXECUTE_FILE.replace("own = self", "own = eager = self").replace(
        "            _fill(self",
        '            if named.get("input_deepstack_embeds") is not None:\n'
        "                return eager(*given, **named)\n            _fill(self",
    )
    assert text.count("eager") == 2
    found = class_in(tmp_path, with_runner(RUNNER, text, "0.5.14"))
    assert not found.graphs.lost
    assert torch.equal(replayed(found, 8, 3), expected(8, 3))


def test_a_runner_without_a_graph_of_its_own_passes_the_payload_on(tmp_path: Path) -> None:
    found = class_in(tmp_path, piecewise("0.5.10"))
    assert found.graphs.replays, found.graphs.no_graphs
    assert not found.graphs.lost
    assert torch.equal(replayed(found, 8, 3), expected(8, 3))


def test_a_runner_without_a_graph_of_its_own_that_drops_the_payload_loses_it(tmp_path: Path) -> None:
    found = class_in(tmp_path, piecewise("0.5.10", loses=True))
    assert found.graphs.lost.startswith(LOST)
    assert not replayed(found, 8, 3).any()


def test_a_runner_that_does_nothing_adds_nothing(tmp_path: Path) -> None:
    text = PIECEWISE_FILE.partition("        own = ")[0] + "        return None\n"
    found = class_in(tmp_path, with_runner(PIECEWISE, text, "0.5.10"))
    assert found.graphs.lost.startswith(LOST)
    assert not replayed(found, 8, 3).any()


def test_a_newer_runner_that_is_not_driven_is_not_passed_over(tmp_path: Path) -> None:
    moved = RUNNER_FILE.replace("_execute_body_capture", "_execute_elsewhere")
    files = {**piecewise("0.5.10"), **sglang_files("0.5.24", runner=moved)}
    assert PIECEWISE in files
    found = class_in(tmp_path, files)
    assert not found.graphs.replays
    assert "has no _execute_body_capture" in str(found.graphs.no_graphs)


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
    output = capsys.readouterr().out
    assert f"{word}: {member}:" in output
    assert ("--enable-breakable-cuda-graph" in output) == (member == BREAKABLE)


@pytest.mark.slow
def test_a_runner_that_raises_is_not_the_incident(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = BREAKABLE_FILE.replace("graph.replay()", 'named["input_embeds"] or graph.replay()')
    root = str(write(tmp_path, with_runner(BREAKABLE, text, "0.5.13")))
    assert main(["repro", "33726", "--source", root, "--family", "qwen3_vl"]) == ExitCode.BROKEN
    output = capsys.readouterr().out
    assert "raises, and does not lose rows silently as in incident 33726" in output
    assert "Boolean value of Tensor" in output
