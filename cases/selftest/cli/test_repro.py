"""`repro`: which faults are shown and where, what is refused, and what it prints of sources and releases."""

import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest
from packaging.version import Version

from cases.selftest.contract.oracles.written_observations import QUIET, RIGHT, answer, observed
from cases.selftest.engines.synthetic_carriers import NONE_UNTIL_THE_FIRST, write_carrier
from cases.selftest.engines.synthetic_carriers import RIGHT as RIGHT_CARRIERS
from cases.selftest.engines.synthetic_vllm import Vllm
from deepstack_harness.audit.source_worker import FamilyWorker
from deepstack_harness.catalogue.incidents import find
from deepstack_harness.catalogue.plans import Where
from deepstack_harness.cli import repro, repro_releases
from deepstack_harness.cli.main import main
from deepstack_harness.cli.output import Output
from deepstack_harness.cli.repro import _is_as_expected
from deepstack_harness.cli.repro_releases import (
    SourceFaults,
    SourceVerdict,
    find_faults,
    is_compiled_fault,
    one_verdict,
    ranges_of_classes,
    show_verdict,
)
from deepstack_harness.cli.repro_table import ReproTable
from deepstack_harness.cli.versions import choose_releases
from deepstack_harness.contract.arm import EAGER, ArmSpec
from deepstack_harness.contract.case import Case, PlannedCase, registered
from deepstack_harness.contract.observation import Answer, Distances, Observation, Raised, RowRange, StepFacts
from deepstack_harness.contract.oracles.judge import JudgedCase, judge_case
from deepstack_harness.contract.rules import Rule
from deepstack_harness.contract.trace import Trace
from deepstack_harness.contract.verdicts import Judgement, Verdict
from deepstack_harness.document.blocks import BLANK, Document, all_of
from deepstack_harness.errors import ExitCode, UsageError
from deepstack_harness.sources.index import Index
from deepstack_harness.sources.source import Source


@pytest.mark.parametrize(("revision", "faulty"), [("granite_full", True), ("granite_sliced", False)])
@pytest.mark.parametrize("verdict", [Verdict.PASS, Verdict.FAIL])
def test_a_fault_is_shown_by_a_faulty_revision_under_its_caller(
    revision: str, verdict: Verdict, *, faulty: bool
) -> None:
    trace, arm = Trace.parse("cap 8: profile 8; forward 1"), ArmSpec.parse("h200/drop_all/no_size_asserts")
    case = Case("granite4_vision", registered(revision), trace, arm, caller="static_inputs")
    judgements = (Judgement(Rule.WORK, verdict),)
    judged_case = JudgedCase(PlannedCase(case, None), Observation("float32", "cpu", 4, 8, "", ()), judgements)
    assert _is_as_expected(find("40917"), judged_case) is (faulty == (verdict is Verdict.FAIL))


CASE = Case("qwen3_vl", registered("reference"), Trace.parse("cap 4: get 4; set 2; get 2"), EAGER)


def source(package: str) -> Source:
    return cast(Source, SimpleNamespace(label=f"{package} 1.0", package=package))


@pytest.mark.parametrize(
    ("package", "families", "sentence"),
    [
        ("ms-swift", ["qwen3_vl"], "ms-swift 1.0 has no buffer: 'audit --source SOURCE' judges its splitter"),
        (
            "vllm-omni",
            ["granite4_vision"],
            "43602 is about granite4_vision, and vllm-omni 1.0 has only a class of",
        ),
    ],
)
def test_a_source_without_a_class_for_the_incident_is_refused(
    package: str, families: list[str], sentence: str
) -> None:
    with pytest.raises(UsageError, match=sentence):
        repro._families_of_sources(find("43602"), families, source(package))


@pytest.mark.parametrize(
    ("steps", "where"),
    [
        ((StepFacts("get 4", 4, raised=Raised("ValueError", "no", "get", "vllm.py:7")),), "vllm.py:7"),
        ((StepFacts("get 4", 4, raised=Raised("ValueError", "no", "decoder", "us.py:1")),), "vllm.py"),
        (
            (StepFacts("get 4", 4), StepFacts("set 2", 4), StepFacts("get 2", 4, answer=Answer("none"))),
            "get 2",
        ),
        ((StepFacts("get 4", 4, answer=Answer("tensors")),), "vllm.py"),
    ],
)
def test_a_fault_is_placed_at_its_first_exception_or_empty_result(
    steps: tuple[StepFacts, ...], where: str
) -> None:
    rest = tuple(StepFacts(str(step), 4) for step in CASE.trace.steps[len(steps) :])
    seen = Observation("float32", "cpu", 3, 8, "", (*steps, *rest))
    worker = SimpleNamespace(filename="vllm.py", where_returned=lambda _case, _seen, tokens: f"get {tokens}")
    place = repro._place_of_first_fault(
        cast(FamilyWorker, worker), [JudgedCase(PlannedCase(CASE, None), seen, ())]
    )
    assert place == where


def test_what_is_known_is_shown_before_inductor_starts_and_only_there(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    arms = ["eager", "inductor/drop_all", "inductor/stock"]
    plan = [PlannedCase(replace(CASE, arm=ArmSpec.parse(arm)), frozenset()) for arm in arms]
    counts: list[int] = []
    lost = Observation("float32", "cpu", 3, 8, "", (), error="not played")

    def so_far(done: Sequence[JudgedCase], _seconds: float, _source: str) -> Document:
        counts.append(len(done))
        yield BLANK

    table = ReproTable(find("43602"), plan)
    monkeypatch.setattr(table, "so_far", so_far)
    Output(None, quiet=True).show(repro._play(lambda _: lost, plan, table))
    assert counts == [1]


def test_without_options_the_decisive_cases_are_played_and_the_rest_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    played: list[str] = []

    def ours(_incident: object, where: Where, _options: object, _title: object) -> Document[bool]:
        played.append(where.family)
        yield from ()
        return True

    monkeypatch.setattr(repro, "_play_revisions", ours)
    assert main(["repro", "43602"]) == ExitCode.HOLDS
    assert played == ["qwen3_vl"]
    assert re.match(
        r"all of it, \d+ cases of .*: deepstack-harness repro 43602 --full$", capsys.readouterr().out
    )
    assert main(["repro", "43602", "--full"]) == ExitCode.HOLDS
    assert capsys.readouterr().out == ""


TRACE = Trace.parse("cap 16: capture 16; set 16; replay 16; replay 16")
PLANNED = PlannedCase(
    Case("qwen3_vl", registered("pr43617"), TRACE, ArmSpec.parse("eager/full")),
    frozenset({Rule.OUTPUT, Rule.CLEAR}),
)
STALE = Answer("tensors", ((RowRange(1, 0, 0, 16),),), (8,), ("float32",), ("cpu",), (64,))


def stale_case(text_only: Distances) -> JudgedCase:
    """A visual step that is right, followed by a step of text that reads the payload again."""
    visual = StepFacts("replay 16", 16, answer=STALE, distances=replace(RIGHT, no_deepstack=3.0))
    text = StepFacts("replay 16", 16, answer=STALE, distances=text_only)
    capture = StepFacts("capture 16", 16, answer=answer())
    return judge_case(PLANNED, observed(capture, StepFacts("set 16", 16), visual, text, facts=None))


def cells(case: JudgedCase, capsys: pytest.CaptureFixture[str]) -> list[str]:
    Output(None, quiet=False).show(ReproTable(find("replayed-clear"), [PLANNED]).add(case))
    return capsys.readouterr().out.splitlines()[-1].split()


def test_a_wrong_step_of_only_text_is_the_distance(capsys: pytest.CaptureFixture[str]) -> None:
    wrong = stale_case(replace(QUIET, eager=4.2, no_deepstack=4.2, zero_deepstack=4.2))
    assert wrong.broken == {Rule.OUTPUT, Rule.CLEAR}
    revision, arm, to_eager, to_no_deepstack, *_ = cells(wrong, capsys)
    assert (revision, arm) == ("pr43617", "eager/full")
    assert (to_eager, to_no_deepstack) == ("4.2", "3")


def test_the_table_and_the_judgement_agree(capsys: pytest.CaptureFixture[str]) -> None:
    wrong = stale_case(replace(QUIET, eager=0.25))
    (judgement,) = (judgement for judgement in wrong.judgements if judgement.rule is Rule.OUTPUT)
    assert cells(wrong, capsys)[2] == f"{judgement.value:.2g}" == "0.25"


def whole_buffer_case(revision: str, *broken: Rule) -> JudgedCase:
    case = Case(
        "granite4_vision", registered(revision), Trace.parse("cap 8: profile 8; forward 1"),
        ArmSpec.parse("h200/drop_all/no_size_asserts"), caller="static_inputs",
    )  # fmt: skip
    judgements = tuple(
        Judgement(rule, Verdict.FAIL if rule in broken else Verdict.PASS)
        for rule in (Rule.OUTPUT, Rule.BOUNDARY, Rule.WORK)
    )
    return JudgedCase(PlannedCase(case, None), Observation("float32", "cpu", 4, 8, "", ()), judgements)


@pytest.mark.parametrize(
    ("broken", "sentence"),
    [
        (
            [Rule.BOUNDARY, Rule.WORK],
            "rules R2 and R10 broken by granite_full@static_inputs, kept by granite_sliced@",
        ),
        (
            [Rule.BOUNDARY],
            "rule R2 broken by granite_full@static_inputs, kept by granite_sliced@static_inputs; R10 not",
        ),
        ([Rule.OUTPUT, Rule.WORK], "rule R10 broken by granite_full@static_inputs, kept by granite_sliced@"),
        ([], "kept by granite_sliced@static_inputs; no rule broken by granite_full@static_inputs here"),
    ],
)
def test_the_last_line_names_the_rules_that_the_table_has(
    broken: list[Rule], sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    cases = [whole_buffer_case("granite_full", *broken), whole_buffer_case("granite_sliced")]
    table = ReproTable(find("40917"), [case.planned for case in cases])
    Output(None, quiet=False).show(all_of([*map(table.add, cases), table.shown(cases)]))
    assert capsys.readouterr().out.splitlines()[-1].startswith(f"shown: {sentence}")


@pytest.mark.slow  # 22 s
def test_faulty_revisions_that_break_different_rules_are_distinguished(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["repro", "43602", "--arm", "eager/stock"]) == ExitCode.HOLDS
    *_, last = capsys.readouterr().out.splitlines()
    assert last.startswith("shown: rule R1 broken by pr40145, pr40932, kept by original, pr43617, ")
    assert last.endswith("; R0 not broken in these cases, as the catalogue has it")


Capture = pytest.CaptureFixture[str]
RELEASES = [Version(text) for text in ("0.33.0", "0.19.1", "0.20.0", "0.33.1", "0.34.0", "0.33.2rc1")]


def test_a_class_is_found_without_its_name(tmp_path: Path) -> None:
    faults = find_faults(str(write_carrier(tmp_path, NONE_UNTIL_THE_FIRST["dict"])), lambda _: None)
    assert [row.model_class for row in faults.faulty] == ["SoundModel"]
    (row,) = faults.judged
    assert (row.rule, row.reach) == (Rule.OUTPUT, "default")
    assert "sound.py:" in row.detail
    assert "SoundDecoder" in row.detail


@pytest.mark.slow  # 3 s
def test_a_right_class_is_judged_and_free(tmp_path: Path) -> None:
    faults = find_faults(str(write_carrier(tmp_path, RIGHT_CARRIERS["list"])), lambda _: None)
    assert (faults.faulty, [row.verdict for row in faults.judged]) == ((), [Verdict.PASS])


@pytest.mark.parametrize(
    ("since", "until", "chosen"),
    [
        ("0.20", "0.33", ["0.20.0", "0.33.0", "0.33.1"]),
        (None, "0.20", ["0.19.1", "0.20.0"]),
        ("0.33.1", None, ["0.33.1", "0.34.0"]),
    ],
)
def test_releases_of_a_range(since: str | None, until: str | None, chosen: list[str]) -> None:
    assert [str(version) for version in choose_releases(RELEASES, since, until)] == chosen


@pytest.mark.slow  # 4 s
def test_since_when_and_until_when(tmp_path: Path) -> None:
    wrong = find_faults(str(write_carrier(tmp_path, NONE_UNTIL_THE_FIRST["list"])), lambda _: None)
    free = SourceFaults("free", (), ())
    versions = [Version(f"0.{minor}") for minor in range(20, 26)]
    seen = list(zip(versions, [free, wrong, wrong, None, wrong, free], strict=True))
    assert ranges_of_classes(seen) == {"SoundModel": ["0.21 to 0.22", "0.24"]}


def test_incidents_of_a_compiled_text_model() -> None:
    assert is_compiled_fault(find("43602"))
    assert not is_compiled_fault(find("41485"))


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--since", "0.20"], "--since and --until choose releases of a package: give --package"),
        (["--package", "vllm", "--family", "qwen3_vl"], "leave --family out"),
        (["--package", "nothing"], "--package 'nothing' is no engine"),
    ],
)
def test_mixtures_are_refused(words: list[str], sentence: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["repro", "43602", *words]) == 2
    assert sentence in capsys.readouterr().err


def test_other_incidents_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["repro", "41485", "--package", "vllm"]) == 2
    assert "is not looked for in all classes" in capsys.readouterr().err


REFUSED = """\
class First:
    def __init__(self):
        self.rows = None

    def forward(self, ids):
        return self.language_model(ids, deepstack_input_embeds=self.rows)
"""


HAS = SourceVerdict("vllm 1, Sound", frozenset({Rule.OUTPUT}), "eager", classes=("Sound",))
FREE = SourceVerdict("vllm 1, Vision", classes=("Vision",))


@pytest.mark.parametrize(
    ("verdicts", "last"),
    [
        ([HAS, FREE], "vllm 1: HAS incident 43602 in Sound"),
        ([FREE, HAS], "vllm 1: HAS incident 43602 in Sound"),
        ([FREE, FREE], "vllm 1: free of incident 43602"),
        (
            [FREE, replace(FREE, unjudged="R1: a hang")],
            "vllm 1: incident 43602 could not be judged: R1: a hang",
        ),
    ],
)
def test_the_last_line_is_the_verdict_on_everything(
    verdicts: list[SourceVerdict], last: str, capsys: Capture
) -> None:
    Output(None, quiet=False).show(show_verdict(find("43602"), "vllm 1", verdicts))
    assert capsys.readouterr().out == f"{last}\n"
    assert one_verdict(verdicts).free is ("free of" in last)


@pytest.mark.parametrize(
    "options", [[], ["--arm", "eager/drop_all"], ["--full"], ["--trace", "cap 16: get 4"]]
)
def test_every_class_is_looked_at_whatever_cases_are_chosen(
    options: list[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: Capture
) -> None:
    """The classes of the source and of the family are stubs here: only the calls are looked at."""

    def verdict(judged: SourceVerdict) -> Document[SourceVerdict]:
        yield from ()
        return judged

    monkeypatch.setattr(repro, "judge_classes", lambda *_: verdict(HAS))
    monkeypatch.setattr(repro, "_play_source", lambda *_: verdict(FREE))
    root = str(Vllm(omni="").tree(tmp_path))
    assert main(["repro", "43602", "--source", root, *options]) == ExitCode.BROKEN
    assert capsys.readouterr().out.endswith(": HAS incident 43602 in Sound\n")
    assert main(["repro", "43602", "--source", root, "--family", "qwen3_vl", *options]) == ExitCode.HOLDS


def test_a_class_that_cannot_be_run_is_listed_with_the_reason(tmp_path: Path) -> None:
    faults = find_faults(str(Vllm(qwen=REFUSED, omni="").tree(tmp_path)), lambda _: None)
    ((name, why),) = faults.unjudged
    assert name == "First"
    assert "First has no" in why


def test_a_release_of_which_nothing_was_judged_is_not_free(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    faults = SourceFaults("vllm 0.11.0", (), (("First", "First has no buffer"),))
    monkeypatch.setattr(repro_releases, "find_faults", lambda *_: faults)
    monkeypatch.setattr(Index, "versions", lambda _: [Version("0.11.0")])
    assert main(["repro", "43602", "--package", "vllm", "--since", "0.11", "--until", "0.11"]) == 3
    printed = capsys.readouterr()
    assert "0.11.0     unknown: no class could be judged  (0 judged, 1 not" in printed.out
    assert printed.err.endswith("nothing was judged in 0.11.0\n")
