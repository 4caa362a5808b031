"""Campaigns: what is found stays, what was killed goes on, and every count at the boundary is tried."""

import json
import tempfile
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import asdict, replace
from pathlib import Path
from types import SimpleNamespace

import msgspec
import pytest

from cases.by_day import by_day
from cases.selftest.audit.written_verdicts import audited_class
from cases.selftest.engines.synthetic_vllm import Vllm
from cases.selftest.fuzz.hunting import campaign, target
from deepstack_harness.catalogue.scripts import ProgramBuffer
from deepstack_harness.contract.arm import EAGER
from deepstack_harness.contract.rules import Rule
from deepstack_harness.contract.trace import Op, Trace
from deepstack_harness.contract.verdicts import Verdict
from deepstack_harness.errors import UsageError
from deepstack_harness.fuzz import campaign as campaign_module
from deepstack_harness.fuzz.campaign import (
    JOURNAL,
    RUN,
    Campaign,
    Hunted,
    HuntLimits,
    boundary_examples,
    broken_rules,
    open_campaign,
    read_journal,
    run_campaign,
    search_boundary,
    small_traces,
    target_of,
)
from deepstack_harness.fuzz.faults import Finding, FuzzRequest, Progress
from deepstack_harness.fuzz.hunt import MOST_DEATHS, Hunt, hunt
from deepstack_harness.fuzz.player import FindingKind, InProcessPlayer
from deepstack_harness.workers.profiles import COMPILE, CONTRACT, OWN_CLASS, SandboxProfile

PR43617 = FuzzRequest(revision="pr43617")


class Killed(Exception):
    """The end of the command."""


def nothing(progress: Progress, findings: list[Finding]) -> None:
    pass


def run(one: Campaign) -> Hunted:
    return run_campaign(one, open_campaign(one), nothing)


@pytest.mark.slow
def test_a_crash_is_a_finding_and_a_hunt_that_only_crashes_is_given_up(tmp_path: Path) -> None:
    done = run(campaign("Segfaults", tmp_path, 10**4))
    assert {finding.kind for finding in done.findings} == {FindingKind.CRASH}
    assert len(Trace.parse(done.findings[0].trace).steps) <= 3
    assert done.progress.deaths == MOST_DEATHS
    assert not done.complete


@pytest.mark.slow
def test_a_hang_is_shrunk_like_any_other_finding(tmp_path: Path) -> None:
    done = run(campaign("Hangs", tmp_path, 4, HuntLimits(step_s=1)))
    assert {finding.kind for finding in done.findings} == {FindingKind.HANG}
    assert len(Trace.parse(done.findings[0].trace).steps) <= 3


@pytest.mark.slow  # 13 s
def test_a_run_that_is_killed_has_stored_its_findings_and_goes_on(tmp_path: Path) -> None:
    one = Campaign(PR43617, tmp_path, 60)

    def kill(progress: Progress, findings: list[Finding]) -> None:
        if findings:
            raise Killed

    with pytest.raises(Killed):
        run_campaign(one, open_campaign(one), kill)
    stored = read_journal(tmp_path)
    resumed = open_campaign(one)
    assert stored
    assert resumed.resumed == len(stored)
    done = run_campaign(one, resumed, nothing)
    assert done.findings[: len(stored)] == stored
    assert len(done.findings) > len(stored)
    assert done.progress.examples == one.examples
    # What is complete is begun anew: the same command gives the same findings.
    assert open_campaign(one).findings == []


def test_a_folder_of_another_run_is_refused(tmp_path: Path) -> None:
    (tmp_path / RUN).write_text(json.dumps({"campaign": {}, "finished": False}))
    with pytest.raises(UsageError, match="unfinished run with other options"):
        open_campaign(Campaign(PR43617, tmp_path, 10))
    (tmp_path / RUN).write_text(json.dumps({"campaign": {"schema_version": 1}, "finished": False}))
    with pytest.raises(UsageError, match="unfinished run of another version"):
        open_campaign(Campaign(PR43617, tmp_path, 10))
    (tmp_path / RUN).write_text("nothing")
    with pytest.raises(UsageError, match="not written by a fuzz run"):
        open_campaign(Campaign(PR43617, tmp_path, 10))


@pytest.mark.slow
def test_what_the_process_cannot_do_is_reported_as_by_every_command(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="unknown revision 'nobody'"):
        run(Campaign(FuzzRequest(revision="nobody"), tmp_path, 10))


@pytest.mark.slow
def test_time_that_is_up_leaves_examples_for_later(tmp_path: Path) -> None:
    one = Campaign(FuzzRequest(revision="reference"), tmp_path, 10**6, limits=HuntLimits(seconds=0.1))
    done = run(one)
    assert not done.complete
    assert 0 < done.progress.examples < 10**6
    assert open_campaign(one).progress.examples == done.progress.examples


def test_a_source_is_a_target_before_its_class_is_known() -> None:
    assert FuzzRequest(source="vllm==0.33.0").target().buffer.name == "vllm==0.33.0"
    assert FuzzRequest(buffer="mine:Buffer").target().buffer.name == "mine:Buffer"


FINDING = Finding(
    kind=FindingKind.RULE, rule=Rule.CLEAR, verdict=Verdict.FAIL, trace="cap 16: set 9; clear 9; get 16",
    shape="rows", detail="row 0 was read", revision="reference", family="qwen3_vl", examples=3, seconds=0.5,
    seed=0, **EAGER.columns,
)  # fmt: skip


def test_an_interrupted_run_goes_on_with_its_findings_and_its_count(tmp_path: Path) -> None:
    asked = Campaign(FuzzRequest(revision="pr43617"), tmp_path, 100)
    written = {"campaign": asked.describe(), "finished": False, "progress": asdict(Progress(examples=40))}
    (tmp_path / RUN).write_text(json.dumps(written))
    death = replace(FINDING, kind=FindingKind.CRASH, rule=None, shape=None)
    torn = msgspec.json.encode(FINDING)[:30]
    (tmp_path / JOURNAL).write_bytes(msgspec.json.Encoder().encode_lines([FINDING, death]) + torn)
    begun = open_campaign(asked)
    assert (begun.findings, begun.progress.examples, begun.resumed) == ([FINDING, death], 40, 2)
    with pytest.raises(UsageError, match="has an unfinished run with other options"):
        open_campaign(replace(asked, seed=1))
    (tmp_path / RUN).write_text(json.dumps({**written, "finished": True}))
    assert open_campaign(asked).findings == []
    assert not (tmp_path / JOURNAL).exists()


def test_a_folder_that_cannot_be_made_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="cannot keep findings in .*/file/run': Not a directory"):
        open_campaign(Campaign(FuzzRequest(), tmp_path / "file" / "run", 100))


@pytest.mark.parametrize(
    ("asked", "profile"),
    [
        (FuzzRequest(revision="pr43617", arm="inductor/drop_all"), None),
        (FuzzRequest(buffer="mine:Mine"), OWN_CLASS),
        (FuzzRequest(source="TREE"), CONTRACT),
        (FuzzRequest(source="TREE", arm="eager/drop_all"), COMPILE),
    ],
)
def test_code_of_others_runs_in_a_sandbox(
    asked: FuzzRequest, profile: SandboxProfile | None, tmp_path: Path
) -> None:
    if asked.source:
        asked = replace(asked, source=str(Vllm().tree(tmp_path)))
    assert campaign_module._sandbox(asked) is profile
    with ExitStack() as stack:
        assert campaign_module._environment(asked, stack) is None


@pytest.mark.parametrize(
    "asked", [FuzzRequest(arm="eager/drop_all"), FuzzRequest(revision="reference@state_in_trace")]
)
def test_a_finding_that_needs_a_decoder_has_no_program(asked: FuzzRequest) -> None:
    assert campaign_module.program_of(FINDING, asked) is None
    assert campaign_module.program_of(replace(FINDING, rule=None), FuzzRequest()) is None
    program = campaign_module.program_of(FINDING, FuzzRequest(revision="reference"))
    assert program is not None
    compile(program, "found.py", "exec")


def test_a_program_is_given_the_class_of_a_source_and_its_member(tmp_path: Path) -> None:
    found = replace(FINDING, model_class="Qwen3VLForConditionalGeneration")
    whose = campaign_module._program_buffer(found, FuzzRequest(source=str(Vllm().tree(tmp_path))))
    assert whose == ProgramBuffer("Qwen3VLForConditionalGeneration", "vllm/model_executor/models/qwen3_vl.py")


def test_a_finding_has_a_program_only_where_the_buffer_by_itself_shows_it() -> None:
    graphs = replace(FINDING, trace="cap 16: capture 9; set 9; replay 9")
    assert campaign_module.program_of(graphs, FuzzRequest(revision="reference")) is None


def test_a_finding_on_a_class_of_a_source_is_reported_with_its_reach(monkeypatch: pytest.MonkeyPatch) -> None:
    """One class was found in the source; a death has no rule, which orders could break."""
    source = SimpleNamespace(classes=lambda: [audited_class("Vl"), audited_class("Other")])
    asked: list[object] = []

    def opened(text: str) -> AbstractContextManager[object]:
        asked.append(text)
        return nullcontext(source)

    monkeypatch.setattr(campaign_module, "SourceWorker", opened)
    monkeypatch.setattr(campaign_module, "play_orders", lambda one, _: [one.model_class])
    monkeypatch.setattr(
        campaign_module, "reach_in", lambda rule, _one, _worker, played: (f"{rule} {played[0]}", None)
    )
    findings = [replace(FINDING, model_class="Vl"), replace(FINDING, model_class="Gone")]
    findings.append(replace(FINDING, model_class="Vl", rule=None, kind=FindingKind.CRASH))
    reached = campaign_module.with_reach(findings, FuzzRequest(source="TREE"))
    assert [finding.reach for finding in reached] == ["R5 Vl", "unknown", None]
    assert campaign_module.with_reach([FINDING], FuzzRequest(source="TREE")) == [FINDING]
    assert asked == ["TREE"]


def test_the_caches_of_a_worker_that_interprets_end_with_its_campaign(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checked: list[bool] = []
    monkeypatch.setattr(campaign_module, "check_support", lambda: checked.append(True))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with ExitStack() as stack:
        given = campaign_module._environment(FuzzRequest(arm="h200/drop_all"), stack)
        (folder,) = tmp_path.iterdir()
        assert given is not None
        assert given["TRITON_INTERPRET"] == "1"
        assert any(value.startswith(str(folder)) for value in given.values())
    assert checked == [True]
    assert list(tmp_path.iterdir()) == []


def test_a_campaign_at_the_boundary_plays_its_traces_and_draws_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Player(InProcessPlayer):
        def __init__(self, **_: object) -> None:
            pass

        def close(self) -> None:
            pass

    asked: list[Hunt] = []
    monkeypatch.setattr(campaign_module, "WorkerPlayer", Player)
    monkeypatch.setattr(campaign_module, "search_boundary", asked.append)
    monkeypatch.setattr(Hunt, "search", lambda *_: pytest.fail("it drew traces"))
    done = Campaign(FuzzRequest(revision="reference"), tmp_path, 7, boundary=True)
    assert not campaign_module.run_campaign(done, Hunted(), lambda *_: None).complete
    assert [campaign.target.subject for campaign in asked] == ["reference"]


def boundary_hunt(buffer: str, drawn: int) -> Hunt:
    going = Hunt(target(buffer), InProcessPlayer())
    search_boundary(going, drawn)
    return going


def test_every_n_and_p_of_a_small_capacity_is_played() -> None:
    acting = [
        [step for number, step in enumerate(trace.steps) if number % 2]
        for trace in small_traces()
        if trace.capacity == 3
    ]
    assert {(n, p) for n in range(5) for p in range(-1, 6)} <= {(a[0].tokens, a[-1].tokens) for a in acting}


def test_all_rows_are_read_before_the_first_step_and_after_each() -> None:
    questions_of_3 = [trace for trace in small_traces() if trace.capacity == 3]
    assert all({step.op for step in trace.steps[::2]} == {Op.GET} for trace in questions_of_3)
    assert Trace.parse("cap 3: get 3; set 4; get 4; get 5; get 5; clear 5; get 5") in questions_of_3


def test_reference_answers_every_question_rightly() -> None:
    result = boundary_hunt("reference", 20)
    assert result.findings == []
    assert result.progress.examples == boundary_examples(20)


@pytest.mark.parametrize(
    ("buffer", "rule"),
    by_day(
        [
            ("pr40145", "R2"),
            ("pr43617", "R4"),
            ("refuses_padding", "R2"),
            ("refuses_full_capacity", "R2"),
            ("clear_checks_padded_count", "R2"),
            ("answers_up_to_capacity", "R4"),
            ("accepts_negative_get", "R8"),
            ("rejects_get_after_clearing", "R8"),
        ]
    ),
)
def test_a_fault_of_the_boundary_is_found(buffer: str, rule: str) -> None:
    assert rule in {finding.name for finding in boundary_hunt(buffer, 5).findings}


STALE = """
from cases.selftest.models.wrong_shapes import {name}


class Adapter:
    fixed = {{"dtype": "int64", "levels": 1, "hidden": 1}}

    def __init__(self, capacity, hidden, levels, *, dtype, device):
        self.made = {name}(capacity)
        self.capacity = capacity

    def get(self, tokens):
        return (self.made.read(tokens)[:, None],)

    def set(self, payload):
        self.made.write(payload[0, :, 0])

    def clear(self, tokens):
        self.made.reset(tokens)
"""


def adapter_file(name: str, folder: Path) -> str:
    file = folder / f"adapter_of_{name.lower()}.py"
    file.write_text(STALE.format(name=name))
    return f"{file}:Adapter"


@pytest.mark.slow  # 6 s
def test_a_hunt_on_an_adapter_class_finds_its_fault_in_a_trace_that_fits(tmp_path: Path) -> None:
    request, player = FuzzRequest(buffer=adapter_file("StaleNumbers", tmp_path)), InProcessPlayer()
    target = target_of(request, player)
    searched = hunt(target, player, examples=40)
    assert {finding.rule for finding in searched.findings} == {Rule.FRESHNESS}
    trace = Trace.parse(searched.findings[0].trace)
    assert (trace.levels, trace.hidden, trace.dtype) == (1, 1, "int64")
    assert Rule.FRESHNESS in broken_rules(str(trace), buffer=request.buffer)


@pytest.mark.slow  # 2 s
def test_a_hunt_on_a_right_adapter_class_finds_nothing(tmp_path: Path) -> None:
    request, player = FuzzRequest(buffer=adapter_file("Numbers", tmp_path)), InProcessPlayer()
    assert not hunt(target_of(request, player), player, examples=60).findings


def test_an_adapter_class_fits_no_decoder(tmp_path: Path) -> None:
    request = FuzzRequest(buffer=adapter_file("AnswersOneMore", tmp_path), arm="eager/drop_all")
    with pytest.raises(UsageError, match="--arm eager/drop_all: an adapter class fits no decoder"):
        target_of(request, InProcessPlayer())
