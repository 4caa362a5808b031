"""`audit --fail-on` and `--base`: which findings turn a CI red, and the last line with the reason."""

import re
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from cases.selftest.audit.written_verdicts import MEMBER, audited, base_with, class_verdicts, row
from cases.selftest.engines.synthetic_vllm import HANDS_ON, ModelFile, Vllm
from deepstack_harness.audit.account import Account, UnjudgedCarrier
from deepstack_harness.audit.audited_source import AuditedSource
from deepstack_harness.audit.base import base_of
from deepstack_harness.audit.class_verdicts import BrokenTrace, ClassVerdicts
from deepstack_harness.audit.findings import audit_findings
from deepstack_harness.audit.gate import Base, Gate, differences, judge_gate, seen_classes
from deepstack_harness.cli.audit_table import answer_of, outcome_of, show_answer, show_change, show_summary
from deepstack_harness.cli.main import main
from deepstack_harness.cli.output import Output
from deepstack_harness.contract.case import Regime
from deepstack_harness.contract.rules import Rule
from deepstack_harness.contract.verdicts import Effect, FaultKind, Row, Verdict
from deepstack_harness.document.findings import annotations_of
from deepstack_harness.errors import ExitCode, UsageError
from deepstack_harness.sources.folder import revision_of
from deepstack_harness.sources.source import inside_package

Capture = pytest.CaptureFixture[str]
BY_DEFAULT = row(Rule.STRUCTURE, Verdict.XFAIL, "default", effect=Effect.OUTPUT)
BY_FLAG = row(Rule.CLEAR, Verdict.XFAIL, "flag: --enable-dbo")
NOT_REACHED = row(Rule.REJECTION, Verdict.XFAIL, "latent", unit="calls", shape=FaultKind.ACCEPTED)
NEW = row(Rule.FRESHNESS, Verdict.FAIL, "latent")
NOT_READ = row(Rule.CAPACITY, Verdict.XFAIL, "unknown")
MENDED = row(Rule.BOUNDARY, Verdict.IMPROVED)
KEPT = row(Rule.PLACEMENT, Verdict.PASS)
NONE_WRONG = "no class that was judged is wrong with default settings"
CARRIER = UnjudgedCarrier("Fresh", "vllm/models/fresh.py", 7, "it was not called")
EVERY = (BY_DEFAULT, MENDED, NEW, NOT_READ, BY_FLAG, KEPT, NOT_REACHED)


@pytest.mark.parametrize(
    ("gate", "rules"),
    [
        (
            Gate.ANY,
            {Rule.STRUCTURE, Rule.BOUNDARY, Rule.FRESHNESS, Rule.CAPACITY, Rule.CLEAR, Rule.REJECTION},
        ),
        (Gate.NEW, {Rule.FRESHNESS}),
        (Gate.FLAG, {Rule.STRUCTURE, Rule.BOUNDARY, Rule.CAPACITY, Rule.CLEAR}),  # R2 is mended
        (Gate.DEFAULT, {Rule.STRUCTURE, Rule.CAPACITY}),
    ],
)
def test_each_gate_lets_its_findings_count(gate: Gate, rules: set[Rule]) -> None:
    result = judge_gate([audited(*EVERY)], gate)
    assert {row.rule for row in result.failing} == rules
    assert not result.holds


@pytest.mark.parametrize("gate", list(Gate))
def test_what_was_not_judged_fails_every_gate_unless_the_base_has_it_too(gate: Gate) -> None:
    error = row(Rule.ADDRESS, Verdict.ERROR)
    assert judge_gate([audited(KEPT)], gate).holds
    assert not judge_gate([audited(KEPT, error)], gate).holds
    assert not judge_gate([audited(error)], gate, base_with(row(Rule.ADDRESS, Verdict.PASS))).holds
    assert not judge_gate([audited(error)], gate, Base("main", {})).holds
    assert judge_gate([audited(error)], gate, base_with(error)).holds


@pytest.mark.parametrize("gate", list(Gate))
@pytest.mark.parametrize("base", [None, base_with(*EVERY)])
def test_a_carrier_that_was_not_judged_fails_every_gate(gate: Gate, base: Base | None) -> None:
    def judged(account: Account) -> bool:
        return judge_gate([replace(audited(KEPT), account=account)], gate, base).holds

    assert not judged(Account(unjudged=(CARRIER,)))
    assert not judged(Account(outdated=("Old",)))
    known = replace(CARRIER, reason="no encoder writes it")
    assert judged(Account(unjudged=(known,)))
    if base is not None:
        base = replace(base, carriers={CARRIER.name})
        assert judged(Account(unjudged=(CARRIER,)))
        base = replace(
            base, carriers=(), classes=seen_classes([replace(class_verdicts(KEPT), model_class="Fresh")])
        )
        assert not judged(Account(unjudged=(known,)))  # the base was judged


@pytest.mark.parametrize(
    ("rows", "line"),
    [
        ((KEPT,), "reached by default: unknown for 1 class. Not known before: none. Effect: none. "),
        (
            (BY_DEFAULT,),
            "reached by default: R1 (43602), unknown for 1 class. Not known before: none. Effect: output. ",
        ),
    ],
)
@pytest.mark.parametrize("reason", ["", "no encoder writes it"])
def test_none_is_printed_only_where_everything_was_judged(
    capsys: Capture, rows: tuple[Row, ...], line: str, reason: str
) -> None:
    found = replace(audited(*rows), account=Account(unjudged=(replace(CARRIER, reason=reason),)))
    Output(None, quiet=False).show(show_summary([found], judge_gate([found], Gate.ANY)))
    assert capsys.readouterr().out.startswith(line)


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
def test_one_sentence_sums_up_a_source(found: AuditedSource, answer: str) -> None:
    assert answer_of(found) == f"vllm 0.22.1: {answer}"


def test_the_sentence_states_what_the_exit_code_means(capsys: Capture) -> None:
    found = replace(audited(BY_DEFAULT, NEW), account=Account(unjudged=(CARRIER,)))
    Output(None, quiet=False).show(show_answer([found], judge_gate([found], Gate.FLAG)))
    assert capsys.readouterr().out.splitlines()[1] == (
        "exit code 1: 1 finding with default settings or a flag; 1 class not judged"
    )
    Output(None, quiet=False).show(show_answer([audited(KEPT)], judge_gate([audited(KEPT)], Gate.FLAG)))
    assert "exit code 0: " in capsys.readouterr().out


def test_against_a_base_only_what_is_not_in_it_counts() -> None:
    base = base_with(BY_DEFAULT, NEW, NOT_READ)
    same = judge_gate([audited(BY_DEFAULT, MENDED, NEW)], Gate.ANY, base)
    assert (same.holds, same.stay, same.new) == (True, 2, ())
    (added,) = judge_gate([audited(*EVERY)], Gate.FLAG, base).failing
    assert added.rule is Rule.CLEAR
    mended = judge_gate([audited(replace(NOT_READ, verdict=Verdict.PASS))], Gate.ANY, base)
    assert (mended.holds, [row.rule for row in mended.mended]) == (True, [Rule.CAPACITY])


@pytest.mark.parametrize("base", [None, base_with(KEPT)])
def test_latent_findings_fail_no_default_gate(base: Base | None) -> None:
    assert judge_gate([audited(KEPT, NOT_REACHED)], Gate.FLAG, base).holds
    assert not judge_gate([audited(KEPT, NOT_REACHED)], Gate.ANY, base).holds


OLD = row(Rule.CLEAR, Verdict.XFAIL, "flag: --enable-dbo", effect=Effect.PADDING)
TRACES = ("cap 16: get 4", "cap 16: set 9; clear 5; get 9")
ROWS = frozenset({(3, 0, 5), (3, 0, 6)})


def broken(
    reach: str = "flag: --enable-dbo", traces: tuple[str, ...] = TRACES[1:],
    rows: frozenset[tuple[int, int, int]] = ROWS, effect: Effect = Effect.PADDING,
) -> ClassVerdicts:  # fmt: skip
    """A class with one broken rule: the base, or a change of it."""
    seen_rows = [
        BrokenTrace(Regime.LIVE, Rule.CLEAR, trace, 2, FaultKind.CLEARED, effect, (3,), rows)
        for trace in traces
    ]
    verdicts = class_verdicts(replace(OLD, reach=reach), row(Rule.PLACEMENT, Verdict.PASS))
    return replace(verdicts, broken_traces=tuple(seen_rows))


@pytest.mark.parametrize("gate", [Gate.ANY, Gate.NEW, Gate.FLAG])
@pytest.mark.parametrize(
    ("worse", "why"),
    [
        (broken("default"), "reach default, in the base flag: --enable-dbo"),
        (broken("unknown"), "reach unknown, in the base flag: --enable-dbo"),
        (broken("flag: --enable-dbo or --eager"), "another setting leads there: --eager"),
        (broken(traces=TRACES), "also broken on 'cap 16: get 4'"),
        (broken(rows=ROWS | {(3, 1, 5)}), f"on '{TRACES[1]}' 3 rows are wrong, in the base 2"),
        (broken(rows=frozenset({(3, 2, 8)})), f"on '{TRACES[1]}' 1 rows are wrong, in the base 2"),
        (broken(effect=Effect.OUTPUT), f"on '{TRACES[1]}' users notice output, in the base padding"),
    ],
)
def test_a_finding_that_is_worse_is_new(gate: Gate, worse: ClassVerdicts, why: str) -> None:
    base = Base("main", seen_classes([broken()]), {"Qwen3VL": MEMBER})
    source = replace(audited(), classes=(worse,))
    result = judge_gate([source], gate, base)
    assert [new for _, new in result.new] == [why]
    assert not result.holds
    assert judge_gate([source], Gate.DEFAULT, base).holds is ("reach" not in why)


@pytest.mark.parametrize(
    "better", [broken("latent"), broken(rows=frozenset({(3, 0, 5)})), broken(effect=Effect.COST)]
)
def test_a_finding_that_is_better_is_not_new(better: ClassVerdicts) -> None:
    assert differences(better, broken()) == {}
    assert differences(broken(), better) != {}


def trace_of(rule: Rule, trace: str, *, effect: Effect | None, steps: tuple[int, ...]) -> BrokenTrace:
    return BrokenTrace(Regime.LIVE, rule, trace, 1.0, None, effect, steps)


@pytest.mark.parametrize(
    ("other", "is_new"),
    [
        (trace_of(Rule.ADDRESS, "cap 16: get 2", effect=None, steps=(1,)), False),  # rows were not judged
        (trace_of(Rule.BOUNDARY, "cap 16: get 2", effect=Effect.OUTPUT, steps=(2,)), False),
        (trace_of(Rule.BOUNDARY, "cap 16: get 2", effect=Effect.PADDING, steps=(1,)), True),
        (trace_of(Rule.BOUNDARY, "cap 16: get 2", effect=Effect.OUTPUT, steps=(3,)), True),
        (trace_of(Rule.BOUNDARY, "cap 16: get 3", effect=Effect.OUTPUT, steps=(1,)), True),
    ],
)
def test_a_trace_that_the_base_broke_before_shows_nothing_new(other: BrokenTrace, is_new: bool) -> None:
    known = trace_of(Rule.CLEAR, "cap 16: get 1", effect=Effect.OUTPUT, steps=(1,))
    also = trace_of(Rule.CLEAR, "cap 16: get 2", effect=Effect.OUTPUT, steps=(2,))
    before, now = (
        replace(class_verdicts(BY_FLAG), broken_traces=traces) for traces in ((known, other), (known, also))
    )
    assert bool(differences(now, before)) is is_new


@pytest.mark.parametrize(
    ("above", "was", "is_new"),
    [
        (BY_FLAG, Verdict.XFAIL, False),
        (BY_FLAG, Verdict.PASS, True),  # the class gave its payload before, and the rule passed
        (replace(BY_FLAG, reach="latent"), Verdict.XFAIL, True),
        (replace(BY_FLAG, where="vllm/models/qwen3_vl.py:7-9"), Verdict.XFAIL, True),
        (replace(BY_FLAG, verdict=Verdict.PASS, reach=None), Verdict.XFAIL, True),
    ],
)
def test_a_class_that_gives_its_payload_at_last_shows_the_faults_above_it(
    above: Row, was: Verdict, is_new: bool
) -> None:
    gave, gives = row(Rule.STRUCTURE, was, "default"), row(Rule.STRUCTURE, Verdict.PASS)
    shown = replace(class_verdicts(BY_FLAG, gives), model_class="Derived")
    found = replace(
        audited(KEPT), classes=(shown,), members={"Derived": MEMBER}, derived_from={"Derived": ["Qwen3VL"]}
    )
    there = seen_classes([class_verdicts(above), replace(class_verdicts(gave), model_class="Derived")])
    result = judge_gate([found], Gate.FLAG, Base("main", there, {"Derived": MEMBER, "Qwen3VL": MEMBER}))
    assert (Rule.CLEAR in {row.rule for row in result.failing}) is is_new


def test_a_rule_with_fewer_chances_is_new_unless_the_class_has_more_room() -> None:
    tested = [
        replace(row(rule, Verdict.PASS), chances=9) for rule in (Rule.BOUNDARY, Rule.CAPACITY, Rule.CLEAR)
    ]
    base = base_with(*tested)
    fewer = [replace(old, chances=4) if old.rule is Rule.CLEAR else old for old in tested]
    result = judge_gate([audited(*fewer)], Gate.DEFAULT, base)
    assert ([why for _, why in result.new], result.holds) == (
        ["tested 4 times, in the base 9 times"],
        False,
    )
    roomy = [replace(old, chances={Rule.BOUNDARY: 14, Rule.CAPACITY: 4}.get(old.rule, 9)) for old in tested]
    assert judge_gate([audited(*roomy)], Gate.ANY, base).holds
    assert not judge_gate([audited(*tested[:2])], Gate.ANY, base).holds  # R5 is not judged any more


def test_zeros_in_place_of_none_are_no_new_fault() -> None:
    none = row(Rule.STRUCTURE, Verdict.XFAIL, "flag: --full", shape=FaultKind.NONE)
    zeros = row(Rule.BOUNDARY, Verdict.FAIL, "flag: --full", shape=FaultKind.ZEROS)
    base = base_with(none, row(Rule.BOUNDARY, Verdict.PASS))
    passed = replace(none, verdict=Verdict.PASS)
    assert judge_gate([audited(passed, zeros)], Gate.ANY, base).holds
    for worse in (
        audited(none, zeros),
        audited(passed, replace(zeros, reach="default")),
        audited(passed, replace(zeros, shape=FaultKind.CLEARED)),
        audited(passed, replace(zeros, trace="cap 16: set 9; get 16")),
    ):
        assert not judge_gate([worse], Gate.ANY, base).holds


def test_a_class_with_another_name_is_compared_with_the_one_that_is_gone() -> None:
    base = Base("main", seen_classes([replace(class_verdicts(BY_FLAG), model_class="Old")]), {"Old": MEMBER})
    source = replace(audited(BY_FLAG), members={"Qwen3VL": MEMBER})
    assert judge_gate([source], Gate.ANY, base).holds
    assert not judge_gate([replace(source, members={"Qwen3VL": "vllm/a.py"})], Gate.ANY, base).holds


def test_a_new_class_has_no_new_fault_where_it_inherits_the_lines() -> None:
    base = Base(
        "main", seen_classes([replace(class_verdicts(BY_FLAG), model_class="Above")]), {"Above": MEMBER}
    )
    source = replace(
        audited(BY_FLAG),
        members={"Qwen3VL": "vllm/a.py", "Above": MEMBER},
        derived_from={"Qwen3VL": ["Above"]},
    )
    assert judge_gate([source], Gate.ANY, base).holds
    own = replace(source, classes=(class_verdicts(replace(BY_FLAG, where="vllm/a.py:3-9")),))
    ((_, why),) = judge_gate([own], Gate.ANY, base).new
    assert why == "not in the base: the class is new"


@pytest.mark.parametrize("gate", list(Gate))
@pytest.mark.parametrize("base", [None, base_with(KEPT), base_with(BY_DEFAULT, NEW), base_with(*EVERY)])
@pytest.mark.parametrize("carriers", [(), (CARRIER,), (replace(CARRIER, reason="known"),)])
@pytest.mark.parametrize(
    "rows", [(KEPT,), (BY_DEFAULT,), (BY_FLAG,), (NOT_REACHED,), (NEW,), (NOT_READ,), (MENDED,), EVERY,
             (row(Rule.ADDRESS, Verdict.ERROR),)],
)  # fmt: skip
def test_headline_last_line_annotations_and_exit_code_agree(
    rows: tuple[Row, ...],
    carriers: tuple[UnjudgedCarrier, ...],
    base: Base | None,
    gate: Gate,
    capsys: Capture,
) -> None:
    source = replace(audited(*rows), account=Account(unjudged=carriers))
    result = judge_gate([source], gate, base)
    findings = audit_findings([source], result)
    output = Output(None, quiet=False)
    if base is None:
        output.show(show_answer([source], result))
        output.show(show_summary([source], result))
    else:
        output.show(show_change([source], result, findings))
    lines = capsys.readouterr().out.splitlines()
    first = lines[0 if base else 1]
    code = int(not result.holds)
    assert first.startswith(f"exit code {code}: ")
    assert f"xit code {code}: " in lines[-1]
    assert outcome_of(result).partition(": ")[2] in " ".join(lines[-4:])
    assert any(finding.fails for finding in findings) is not result.holds
    annotated = [
        line for line in annotations_of(findings, "x", good=result.holds) if line.startswith("::error")
    ]
    assert bool(annotated) is not result.holds
    if base is not None:
        assert ("nothing new" in first) is not bool(result.failing)


def test_the_last_line_states_what_matters(capsys: Capture) -> None:
    found = audited(BY_DEFAULT, NEW, NOT_REACHED)
    Output(None, quiet=False).show(show_summary([found], judge_gate([found], Gate.ANY)))
    assert capsys.readouterr().out == (
        "reached by default: R1 (43602). Not known before: R3. Effect: output. Exit code 1: 3 findings.\n"
    )


@pytest.mark.parametrize(
    ("where", "shown"),
    [
        ("/cache/packages/vllm/0.22.1/vllm/models/a.py:7", "vllm/models/a.py:7"),
        ("/src/vllm/vllm/models/a.py:7", "vllm/models/a.py:7"),
        ("/src/other/a.py:7", "/src/other/a.py:7"),
        ("", ""),
    ],
)
def test_a_place_is_given_inside_the_package(where: str, shown: str) -> None:
    assert inside_package(where, "vllm") == shown


SLICED = """\
def _get_deepstack_input_embeds(self, num_tokens):
    if num_tokens < 0:
        raise ValueError("negative")
    return IntermediateTensors(
        {f"deepstack_input_embeds_{i}": x[:num_tokens] for i, x in enumerate(self.deepstack_input_embeds)}
    )
"""


def repository(folder: Path) -> Path:
    """A tree whose get returns tensors in the commit, and None in the files: the fault of vLLM 43602."""
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
    ("sources", "message"),
    [
        (["a", "b"], "'main' would be a commit of one --source, and there are 2"),
        (["vllm==0.22.1"], "'main' is no source, and 'vllm==0.22.1' is no repository that could have it"),
    ],
)
def test_a_commit_needs_one_repository(sources: list[str], message: str) -> None:
    with pytest.raises(UsageError, match=f"^{message}$"), base_of("main", sources):
        pass


@pytest.mark.slow  # 8 s for two audits: their parts are tested above
def test_a_change_that_adds_a_fault_is_refused_against_its_commit(tmp_path: Path, capsys: Capture) -> None:
    root = repository(tmp_path)
    assert main(["audit", "--source", str(root), "--base", "main"]) == ExitCode.BROKEN
    out = capsys.readouterr().out
    assert out.startswith(
        "exit code 1: 1 new fault in 1 class compared with 'main' with default settings or a flag\n"
    )
    assert "R1 structure, " in out
    assert "vllm/model_executor/models/qwen3_vl.py:" in out
    assert not (tmp_path / "executed").exists()


@pytest.mark.slow  # three audits, 12 s
def test_a_change_that_adds_nothing_passes_against_its_commit(tmp_path: Path, capsys: Capture) -> None:
    root = repository(tmp_path)
    Vllm("0.10.0", str(ModelFile(get=SLICED, more=HANDS_ON)), omni="").tree(tmp_path)
    assert main(["audit", "--source", str(root), "--base", "HEAD", "--progress"]) == ExitCode.HOLDS
    out, err = capsys.readouterr()
    assert out.startswith("exit code 0: nothing new compared with 'HEAD'")
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
