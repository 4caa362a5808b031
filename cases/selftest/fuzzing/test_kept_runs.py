"""A hunt that was interrupted goes on with what its folder keeps, in the sandbox that its code needs."""

import json
import tempfile
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import asdict, replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from cases.selftest.binding.synthetic_vllm import Vllm
from deepstack_harness.auditing.source_worker import AuditedClass
from deepstack_harness.contract.rules import Rule
from deepstack_harness.errors import UsageError
from deepstack_harness.fuzzing import campaign, finding_files
from deepstack_harness.fuzzing.campaign import JOURNAL, RUN, Campaign, Hunted, start
from deepstack_harness.fuzzing.finding import Finding
from deepstack_harness.fuzzing.hunt import Hunt
from deepstack_harness.fuzzing.player import FindingKind, InProcessPlayer
from deepstack_harness.fuzzing.request import FuzzRequest
from deepstack_harness.fuzzing.watch import Progress
from deepstack_harness.scripts.findings import Whose
from deepstack_harness.workers.profiles import COMPILE, CONTRACT, SandboxProfile

FINDING = Finding(
    FindingKind.RULE, Rule.R5, "cap 16: set 9; clear 9; get 16", "rows", "row 0 was read", "reference",
    "eager", "qwen3_vl", 3, 0.5, 0,
)  # fmt: skip


def test_an_interrupted_run_goes_on_with_its_findings_and_its_count(tmp_path: Path) -> None:
    asked = Campaign(FuzzRequest(revision="pr43617"), tmp_path, 100)
    told = {"campaign": asked.describe(), "finished": False, "progress": asdict(Progress(examples=40))}
    (tmp_path / RUN).write_text(json.dumps(told))
    torn = FINDING.to_json()[:30]
    (tmp_path / JOURNAL).write_text(f"{FINDING.to_json()}\n{torn}")
    begun = start(asked)
    assert (begun.findings, begun.progress.examples, begun.resumed) == ([FINDING], 40, 1)
    with pytest.raises(UsageError, match="has an unfinished run with other options"):
        start(replace(asked, seed=1))
    (tmp_path / RUN).write_text(json.dumps({**told, "finished": True}))
    assert start(asked).findings == []
    assert not (tmp_path / JOURNAL).exists()


def test_a_folder_that_cannot_be_made_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="cannot keep findings in .*/file/run': Not a directory"):
        start(Campaign(FuzzRequest(), tmp_path / "file" / "run", 100))


@pytest.mark.parametrize(
    ("asked", "profile"),
    [
        (FuzzRequest(revision="pr43617", arm="inductor/drop_all"), None),
        (FuzzRequest(buffer="mine:Mine"), COMPILE),
        (FuzzRequest(source="TREE"), CONTRACT),
        (FuzzRequest(source="TREE", arm="eager/drop_all"), COMPILE),
    ],
)
def test_code_of_others_runs_in_a_sandbox(
    asked: FuzzRequest, profile: SandboxProfile | None, tmp_path: Path
) -> None:
    if asked.source:
        asked = replace(asked, source=str(Vllm().tree(tmp_path)))
    assert campaign._sandbox(asked) is profile
    with ExitStack() as stack:
        assert campaign._environment(asked, stack) is None


@pytest.mark.parametrize(
    "asked", [FuzzRequest(arm="eager/drop_all"), FuzzRequest(revision="reference@state_in_trace")]
)
def test_a_finding_that_needs_a_decoder_has_no_program(asked: FuzzRequest) -> None:
    assert finding_files.script_of(FINDING, asked) is None
    assert finding_files.script_of(replace(FINDING, rule=None), FuzzRequest()) is None
    program = finding_files.script_of(FINDING, FuzzRequest(revision="reference"))
    assert program is not None
    compile(program, "found.py", "exec")


def test_a_program_is_told_the_class_of_a_source_and_its_member(tmp_path: Path) -> None:
    found = replace(FINDING, model_class="Qwen3VLForConditionalGeneration")
    whose = finding_files._whose(found, FuzzRequest(source=str(Vllm().tree(tmp_path))))
    assert whose == Whose("Qwen3VLForConditionalGeneration", "vllm/model_executor/models/qwen3_vl.py")


def test_a_finding_has_a_program_only_where_the_buffer_alone_shows_it() -> None:
    graphs = replace(FINDING, trace="cap 16: capture 9; set 9; replay 9")
    assert finding_files.script_of(graphs, FuzzRequest(revision="reference")) is None


def test_a_finding_on_a_class_of_a_source_is_told_with_its_reach(monkeypatch: pytest.MonkeyPatch) -> None:
    """One class was found in the source; a death has no rule, which orders could break."""
    found = AuditedClass("Vl", "qwen3_vl.py", methods=True)
    source = SimpleNamespace(classes=lambda: [found, AuditedClass("Other", "other.py")])
    asked: list[object] = []

    def opened(text: str) -> AbstractContextManager[object]:
        asked.append(text)
        return nullcontext(source)

    monkeypatch.setattr(finding_files, "SourceWorker", opened)
    monkeypatch.setattr(finding_files, "play_orders", lambda one, _: [one.model_class])
    monkeypatch.setattr(
        finding_files, "reach_in", lambda rule, _one, _worker, played: (f"{rule} {played[0]}", None)
    )
    findings = [replace(FINDING, model_class="Vl"), replace(FINDING, model_class="Gone")]
    findings.append(replace(FINDING, model_class="Vl", rule=None, kind=FindingKind.CRASH))
    told = finding_files.with_reach(findings, FuzzRequest(source="TREE"))
    assert [one.reach for one in told] == ["R5 Vl", "unknown", None]
    assert finding_files.with_reach([FINDING], FuzzRequest(source="TREE")) == [FINDING]
    assert asked == ["TREE"]


def test_the_caches_of_a_worker_that_interprets_end_with_its_campaign(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checked: list[bool] = []
    monkeypatch.setattr(campaign, "check_interpreter", lambda: checked.append(True))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with ExitStack() as stack:
        given = campaign._environment(FuzzRequest(arm="h200/drop_all"), stack)
        (folder,) = tmp_path.iterdir()
        assert given is not None
        assert given["TRITON_INTERPRET"] == "1"
        assert any(value.startswith(str(folder)) for value in given.values())
    assert checked == [True]
    assert list(tmp_path.iterdir()) == []


def test_a_campaign_at_the_boundary_asks_its_questions_and_draws_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Player(InProcessPlayer):
        def __init__(self, **_: object) -> None:
            pass

        def close(self) -> None:
            pass

    asked: list[Hunt] = []
    monkeypatch.setattr(campaign, "WorkerPlayer", Player)
    monkeypatch.setattr(campaign, "search_boundary", asked.append)
    monkeypatch.setattr(Hunt, "search", lambda *_: pytest.fail("it drew traces"))
    done = Campaign(FuzzRequest(revision="reference"), tmp_path, 7, boundary=True)
    assert not campaign.carry_on(done, Hunted(), lambda *_: None).complete
    assert [one.target.subject for one in asked] == ["reference"]
