"""`audit --fail-on` and `--base`: which findings turn a CI red, and the last line that says why."""

import re
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from cases.selftest.audit.written_verdicts import MEMBER, audited, class_verdicts, row
from cases.selftest.engines.synthetic_vllm import HANDS_ON, ModelFile, Vllm
from deepstack_harness.audit.account import Account, UnjudgedCarrier
from deepstack_harness.audit.audited_source import (
    AuditedSource,
    FindingKey,
    Gate,
    base_of,
    judge_gate,
    keys_of,
)
from deepstack_harness.cli.audit_table import answer_of, show_answer, show_summary
from deepstack_harness.cli.main import main
from deepstack_harness.cli.output import Output
from deepstack_harness.contract.rules import Rule
from deepstack_harness.contract.verdicts import Effect, Row, Shape, Verdict
from deepstack_harness.errors import ExitCode, UsageError
from deepstack_harness.sources.folder import revision_of
from deepstack_harness.sources.source import inside_package

Capture = pytest.CaptureFixture[str]
BY_DEFAULT = row(Rule.R1, Verdict.XFAIL, "default", effect=Effect.OUTPUT)
BY_FLAG = row(Rule.R5, Verdict.XFAIL, "flag: --enable-dbo")
NOT_REACHED = row(Rule.R8, Verdict.XFAIL, "latent", unit="calls", shape=Shape.ACCEPTED)
NEW = row(Rule.R3, Verdict.FAIL, "latent")
NOT_READ = row(Rule.R4, Verdict.XFAIL, "unknown")
MENDED = row(Rule.R2, Verdict.IMPROVED)
KEPT = row(Rule.R7, Verdict.PASS)
NONE_WRONG = "no class that was judged is wrong with default settings"
CARRIER = UnjudgedCarrier("Fresh", "vllm/models/fresh.py", 7, "nothing drives it")
ALL = class_verdicts(BY_DEFAULT, MENDED, NEW, NOT_READ, BY_FLAG, KEPT, NOT_REACHED)


@pytest.mark.parametrize(
    ("gate", "rules"),
    [
        (Gate.ANY, {Rule.R1, Rule.R2, Rule.R3, Rule.R4, Rule.R5, Rule.R8}),
        (Gate.NEW, {Rule.R3}),
        (Gate.FLAG, {Rule.R1, Rule.R2, Rule.R4, Rule.R5}),  # R2 is mended
        (Gate.DEFAULT, {Rule.R1, Rule.R4}),
    ],
)
def test_each_gate_lets_its_findings_count(gate: Gate, rules: set[Rule]) -> None:
    result = judge_gate([ALL], gate)
    assert {one.rule for one in result.failing} == rules
    assert not result.holds


@pytest.mark.parametrize("gate", list(Gate))
def test_what_was_not_judged_fails_every_gate(gate: Gate) -> None:
    assert judge_gate([class_verdicts(KEPT)], gate).holds
    assert not judge_gate([class_verdicts(KEPT, row(Rule.R6, Verdict.ERROR))], gate).holds
    assert not judge_gate([class_verdicts(row(Rule.R6, Verdict.ERROR))], gate, keys_of([ALL])).holds


@pytest.mark.parametrize("gate", list(Gate))
@pytest.mark.parametrize("base", [None, keys_of([ALL])])
def test_a_carrier_that_was_not_judged_fails_every_gate(
    gate: Gate, base: frozenset[FindingKey] | None
) -> None:
    accounts = [Account(unjudged=(CARRIER,)), Account(outdated=("Old",))]
    assert judge_gate([class_verdicts(KEPT)], gate, base, accounts[:1]).carriers == (CARRIER,)
    assert not judge_gate([class_verdicts(KEPT)], gate, base, accounts[:1]).holds
    assert not judge_gate([class_verdicts(KEPT)], gate, base, accounts[1:]).holds
    known = Account(unjudged=(replace(CARRIER, reason="no encoder writes it"),))
    assert judge_gate([class_verdicts(KEPT)], gate, base, [known]).holds


@pytest.mark.parametrize(
    ("rows", "line"),
    [
        ((KEPT,), "reached by default: unknown for 1 class. New: none. Effect: none."),
        ((BY_DEFAULT,), "reached by default: R1 (43602), unknown for 1 class. New: none. Effect: output."),
    ],
)
@pytest.mark.parametrize("reason", ["", "no encoder writes it"])
def test_none_is_said_only_where_everything_was_judged(
    capsys: Capture, rows: tuple[Row, ...], line: str, reason: str
) -> None:
    found = replace(audited(*rows), account=Account(unjudged=(replace(CARRIER, reason=reason),)))
    show_summary(Output(None, quiet=False), [found], judge_gate(found.subjects, Gate.ANY))
    assert capsys.readouterr().out == f"{line}\n"


@pytest.mark.parametrize(
    ("found", "answer"),
    [
        (audited(KEPT), NONE_WRONG),
        (audited(BY_DEFAULT, NEW), "1 class is wrong with default settings (Qwen3VL, 43602)"),
        (audited(BY_FLAG), f"{NONE_WRONG}, 1 with a flag"),
        (
            audited(NEW, MENDED),
            ("no class that was judged is wrong with default settings, 1 could be wrong under calls no "
            "engine makes today; 1 known failure mended"),
        ),
        (
            audited(NOT_READ),
            ("no class that was judged is wrong with default settings, 1 in a way that nobody has traced in "
            "the engine"),
        ),
        (
            replace(audited(KEPT), account=Account(unjudged=(CARRIER, replace(CARRIER, reason="known")))),
            f"{NONE_WRONG}; 2 not judged, 1 of them known with a reason",
        ),
    ],
)  # fmt: skip
def test_one_sentence_answers_for_a_source(found: AuditedSource, answer: str) -> None:
    assert answer_of(found) == f"vllm 0.22.1: {answer}"


def test_the_answer_says_what_the_exit_code_stands_for(capsys: Capture) -> None:
    found = replace(audited(BY_DEFAULT, NEW), account=Account(unjudged=(CARRIER,)))
    result = judge_gate(found.subjects, Gate.FLAG, None, [found.account])
    show_answer(Output(None, quiet=False), [found], result, None)
    assert capsys.readouterr().out.splitlines()[1] == (
        "exit code 1: faults that default settings or a flag lead to count: 1 finding; 1 class not judged"
    )
    holds = judge_gate([class_verdicts(KEPT)], Gate.FLAG)
    show_answer(Output(None, quiet=False), [found], holds, "main")
    assert "exit code 0: " in capsys.readouterr().out


def test_beside_a_base_only_what_it_lacks_counts() -> None:
    base = keys_of([class_verdicts(BY_DEFAULT, NEW)])
    assert judge_gate([class_verdicts(BY_DEFAULT, MENDED, NEW)], Gate.ANY, base).holds
    (added,) = judge_gate([ALL], Gate.DEFAULT, base).failing
    assert added.rule is Rule.R4
    other_shape = row(Rule.R3, Verdict.FAIL, "latent", shape=Shape.LIVE)
    assert judge_gate([class_verdicts(other_shape)], Gate.ANY, base).failing == (other_shape,)


def test_the_last_line_says_what_matters(capsys: Capture) -> None:
    found = audited(BY_DEFAULT, NEW, NOT_REACHED)
    show_summary(Output(None, quiet=False), [found], judge_gate(found.subjects, Gate.ANY))
    line = capsys.readouterr().out
    assert line == "reached by default: R1 (43602). New: R3. Effect: output.\n"


@pytest.mark.parametrize(
    ("where", "told"),
    [
        ("/cache/packages/vllm/0.22.1/vllm/models/a.py:7", "vllm/models/a.py:7"),
        ("/src/vllm/vllm/models/a.py:7", "vllm/models/a.py:7"),
        ("/src/other/a.py:7", "/src/other/a.py:7"),
        ("", ""),
    ],
)
def test_a_place_is_told_inside_the_package(where: str, told: str) -> None:
    assert inside_package(where, "vllm") == told


SLICED = """\
def _get_deepstack_input_embeds(self, num_tokens):
    if num_tokens < 0:
        raise ValueError("negative")
    return IntermediateTensors(
        {f"deepstack_input_embeds_{i}": x[:num_tokens] for i, x in enumerate(self.deepstack_input_embeds)}
    )
"""


def repository(folder: Path) -> Path:
    """A tree whose commit answers with tensors, and whose files answer None: the fault of vLLM 43602."""
    root = Vllm("0.10.0", str(ModelFile(get=SLICED, more=HANDS_ON)), omni="").tree(folder)
    git = ["git", "-C", str(root), "-c", "user.name=a", "-c", "user.email=a@b"]
    subprocess.run([*git, "init", "-q", "-b", "main"], check=True)
    subprocess.run([*git, "add", "."], check=True)
    subprocess.run([*git, "commit", "-q", "-m", "before"], check=True)
    Vllm("0.10.0", str(ModelFile(more=HANDS_ON)), omni="").tree(folder)
    hook = root / "ran.sh"
    hook.write_text(f"#!/bin/sh\ntouch {folder / 'executed'}\n")
    hook.chmod(0o755)
    for key in ("core.fsmonitor", "core.hooksPath", "core.pager", "core.sshCommand"):
        subprocess.run([*git, "config", key, str(hook)], check=True)
    return root


def test_a_commit_is_read_with_no_configuration_of_its_repository(tmp_path: Path) -> None:
    root = repository(tmp_path)
    with revision_of(root, "main") as folder:
        assert (folder / MEMBER).read_text() == str(ModelFile(get=SLICED, more=HANDS_ON))
        assert (root / MEMBER).read_text() != (folder / MEMBER).read_text()
        assert not list(folder.rglob("*.sh"))
    assert not folder.exists()
    assert not (tmp_path / "executed").exists()


def test_a_worktree_shares_the_commits_of_its_repository(tmp_path: Path) -> None:
    root, other = repository(tmp_path), tmp_path / "other"
    subprocess.run(["git", "-C", str(root), "worktree", "add", "-q", str(other)], check=True)
    with revision_of(other, "HEAD") as folder:
        assert (folder / MEMBER).is_file()


def test_a_base_is_a_source_or_a_commit_of_the_only_source(tmp_path: Path) -> None:
    root = str(repository(tmp_path))
    for source in ("vllm==0.22.1", root):
        with base_of(source, [root, "vllm==0.23.0"]) as found:
            assert found == source
    with base_of("main", [root]) as found:
        assert (Path(found) / MEMBER).read_text() == str(ModelFile(get=SLICED, more=HANDS_ON))


@pytest.mark.parametrize(
    ("sources", "said"),
    [
        (["a", "b"], "'main' would be a commit of one --source, and there are 2"),
        (["vllm==0.22.1"], "'main' is no source, and 'vllm==0.22.1' is no repository that could have it"),
    ],
)
def test_a_commit_needs_one_repository(sources: list[str], said: str) -> None:
    with pytest.raises(UsageError, match=f"^{said}$"), base_of("main", sources):
        pass


@pytest.mark.slow  # 8 s for two audits: their parts are tested above
def test_a_change_that_adds_a_fault_is_refused_beside_its_commit(tmp_path: Path, capsys: Capture) -> None:
    root = repository(tmp_path)
    assert main(["audit", "--source", str(root), "--base", "main"]) == ExitCode.BROKEN
    out = capsys.readouterr().out
    assert "all faults count, where 'main' does not have them: 2 findings\n" in out
    assert "  R1 Qwen3VLForConditionalGeneration vllm/model_executor/models/qwen3_vl.py:" in out
    assert not (tmp_path / "executed").exists()


@pytest.mark.slow  # three audits, 12 s
def test_a_change_that_adds_nothing_passes_beside_its_commit(tmp_path: Path, capsys: Capture) -> None:
    root = repository(tmp_path)
    Vllm("0.10.0", str(ModelFile(get=SLICED, more=HANDS_ON)), omni="").tree(tmp_path)
    assert main(["audit", "--source", str(root), "--base", "HEAD", "--progress"]) == ExitCode.HOLDS
    out, err = capsys.readouterr()
    assert "0 findings" in out
    assert f"looking for classes in HEAD of {root}\n" in err
    assert re.search(r"deepstack-\w+/tree", err) is None
    assert main(["audit", "--source", str(root), "--base", "HEAD", "--bisect"]) == ExitCode.HOLDS


@pytest.mark.parametrize("base", ["no-such-branch", "--upload-pack=x", "HEAD~1"])
def test_a_base_that_is_no_commit_is_quoted(base: str, tmp_path: Path, capsys: Capture) -> None:
    root = repository(tmp_path)
    assert main(["audit", "--source", str(root), f"--base={base}"]) == ExitCode.USAGE
    assert f"'{base}' is neither a source nor a commit of '{root}'" in capsys.readouterr().err


def test_a_commit_of_no_repository(tmp_path: Path, capsys: Capture) -> None:
    root = Vllm().tree(tmp_path)
    assert main(["audit", "--source", str(root), "--base", "main"]) == ExitCode.USAGE
    assert f"'{root}' is no git repository, so 'main' names no commit of it" in capsys.readouterr().err
