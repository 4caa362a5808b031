"""`repro --bisect`: the cheapest cases of a step, the search over releases, and what both print."""

import json
import math
from argparse import Namespace
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from packaging.version import Version

from cases.selftest.engines.synthetic_vllm import ModelFile, Vllm
from deepstack_harness.catalogue.incidents import (
    DEEPSTACK,
    Incident,
    Run,
    catalogue,
    cheapest_of_source,
    decisive_of_source,
    find,
)
from deepstack_harness.catalogue.plans import Where, plan_source
from deepstack_harness.cli import repro
from deepstack_harness.cli.main import main
from deepstack_harness.cli.output import Output
from deepstack_harness.cli.repro_bisect import bisect_releases
from deepstack_harness.cli.repro_releases import SourceVerdict
from deepstack_harness.cli.versions import VersionLoop, most_steps
from deepstack_harness.contract.case import BufferRef, PlannedCase, source_buffer
from deepstack_harness.contract.rules import Rule
from deepstack_harness.document.blocks import BLANK, Document
from deepstack_harness.errors import ExitCode, MachineError, UsageError
from deepstack_harness.sources.index import Index

Capture = pytest.CaptureFixture[str]
BUFFER: BufferRef = source_buffer("vllm", "0.22.1", "vllm 0.22.1", "Qwen3VLForConditionalGeneration")


def cheapest(incident: Incident, family: str = "qwen3_vl") -> list[PlannedCase]:
    return cheapest_of_source(incident, family, plan_source(incident, Where(family), BUFFER))


def arms(plan: list[PlannedCase]) -> list[str]:
    return [planned.case.arm.name for planned in plan]


def test_a_step_plays_the_cheapest_arm_of_each_rule_and_no_inductor() -> None:
    plan = cheapest(find("43602"))
    assert arms(plan) == ["eager", "eager/drop_all", "eager/drop_all"]
    assert [str(planned.case.trace) for planned in plan[:2]] == ["cap 16: profile 16; set 16; forward 16"] * 2


PROFILED = "cap 16: profile 16; set 16; forward 16"


@pytest.mark.parametrize(
    ("runs", "played"),
    [
        # Nothing but Inductor shows it.
        ([(["inductor/drop_all"], ["R0"])], ["inductor/drop_all"]),
        # The eager arm is played in the catalogue, and shows nothing there.
        ([(["eager"], []), (["inductor/drop_all"], ["R0"])], ["inductor/drop_all"]),
        # One rule shows without Inductor, the other one does not.
        ([(["eager"], ["R1"]), (["inductor/drop_all"], ["R0", "R1"])], ["eager", "inductor/drop_all"]),
        # The order of the file is that of the arms' cost turned round.
        ([(["inductor/drop_all", "aot_eager/drop_all", "eager/drop_all"], ["R0"])], ["eager/drop_all"]),
        # A rule that the incident is not about is no reason to play an arm.
        ([(["eager"], ["R1"]), (["eager/stock"], ["R1", "R11"])], ["eager"]),
    ],
)
def test_inductor_is_played_where_nothing_else_shows_the_fault(
    runs: list[tuple[list[str], list[str]]], played: list[str]
) -> None:
    written = tuple(
        Run(PROFILED, tuple(names), {"pr40932": tuple(map(Rule, rules))}) for names, rules in runs
    )
    incident = Incident(
        id="1", name="made", title="", references=("sequence made",), rules=(Rule.OUTPUT, Rule.STRUCTURE),
        faulty=("pr40932",), fixed=("reference",), symptom="", cause="", families=("qwen3_vl",), run=written,
    )  # fmt: skip
    assert arms(cheapest(incident)) == played


def test_each_trace_of_an_incident_has_the_rules_that_it_shows_and_its_cheapest_arm() -> None:
    """What a trace shows in the catalogue is put to the test, by the first backend that shows it."""
    looked_at = 0
    for incident in catalogue():
        if incident.system != DEEPSTACK or not incident.about_sources:
            continue
        for family in incident.families:
            every = plan_source(incident, Where(family), BUFFER)
            plan = cheapest_of_source(incident, family, every)
            assert plan, incident.id
            assert len(plan) <= len([planned for planned in every if not planned.is_control])
            for planned in every:
                shown = incident.shown_by(family, planned.case.trace, planned.case.arm)
                of_trace = [other for other in plan if other.case.trace == planned.case.trace]
                covered = {
                    rule
                    for other in of_trace
                    for rule in incident.shown_by(family, other.case.trace, other.case.arm)
                }
                assert shown <= covered, (incident.id, str(planned.case.trace), planned.case.arm.name)
                looked_at += 1
    assert looked_at > 50


def test_a_step_is_a_part_of_what_is_played_without_bisect() -> None:
    every = plan_source(find("43602"), Where("qwen3_vl"), BUFFER)
    assert set(cheapest(find("43602"))) < set(decisive_of_source(every))


# The search: releases by number, True has the fault, None cannot be judged.


def searched(releases: str) -> tuple[Sequence[int], list[int]]:
    """Search `releases`, a letter each: F free, H has it, `?` cannot be judged."""
    asked: list[int] = []

    def judge(number: int) -> Document[bool]:
        yield BLANK
        assert number not in asked
        asked.append(number)
        if releases[number] == "?":
            raise UsageError("cannot be judged")
        return releases[number] == "H"

    loop = VersionLoop[int, bool](range(len(releases)))
    for number in loop.bisected(bool):
        Output(None, quiet=True).show(loop.judge(number, judge(number)))
    return loop.change, asked


@pytest.mark.parametrize(
    ("releases", "before", "after"),
    [
        ("FH", 0, 1),
        ("FFFFFFFH", 6, 7),
        ("FHHHHHHH", 0, 1),
        ("FFFFHHHH", 3, 4),
        ("HHHHHFFF", 4, 5),
        ("?FFF?HH?", 3, 5),
        ("FF???H", 1, 5),
        ("F??????H", 0, 7),
        ("??FH", 2, 3),
        ("FH??", 0, 1),
    ],
)
def test_the_change_lies_between_its_neighbours(releases: str, before: int, after: int) -> None:
    change, asked = searched(releases)
    assert list(change) == list(range(before, after + 1))
    # Nothing between the two was left out.
    assert set(change[1:-1]) <= {number for number in asked if releases[number] == "?"}


@pytest.mark.parametrize("releases", ["FFFF", "HHHH", "H", "F", "FHHF", "?F?", "F?F"])
def test_ends_that_are_alike_have_no_change_to_search_for(releases: str) -> None:
    change, asked = searched(releases)
    assert not change
    assert len([number for number in asked if releases[number] != "?"]) <= 2


def test_releases_that_cannot_be_judged_give_no_result() -> None:
    assert searched("????") == ((), [0, 1, 2, 3])
    assert searched("") == ((), [])


@pytest.mark.parametrize(
    ("count", "first"), [(count, first) for count in (2, 3, 6, 7, 33) for first in range(1, count)]
)
def test_steps_are_no_more_than_announced(count: int, first: int) -> None:
    change, asked = searched("F" * first + "H" * (count - first))
    assert list(change) == [first - 1, first]
    assert len(asked) <= most_steps(count) == 2 + math.ceil(math.log2(count - 1))


RELEASES = [Version(f"0.{minor}.0") for minor in range(10, 17)]
ASKED = Namespace(package="vllm", since=None, until=None)


@pytest.fixture
def index(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Index, "versions", lambda _: RELEASES)
    monkeypatch.setattr(Index, "yanked", lambda _: {RELEASES[3]})


def judging(first: str, *, absent: str = "") -> Callable[[str], Document[SourceVerdict]]:
    """Judge by the version: the fault is there from `first` on; of `absent` the class is not there."""

    def judge(text: str) -> Document[SourceVerdict]:
        yield BLANK
        version = text.partition("==")[2]
        if version == absent:
            raise UsageError(f"vllm {version} has no class with a deepstack buffer")
        has = Version(version) >= Version(first)
        return SourceVerdict(
            f"vllm {version}", frozenset({Rule.STRUCTURE} if has else ()), "eager" if has else ""
        )

    return judge


@pytest.mark.usefixtures("index")
def test_a_yanked_release_and_one_without_the_class_are_reported_and_skipped(capsys: Capture) -> None:
    output = Output(None, quiet=False)
    code = output.show(bisect_releases(find("43602"), ASKED, judging("0.15.0", absent="0.10.0")))
    assert code is ExitCode.BROKEN
    said = " ".join(capsys.readouterr().out.split())
    assert "0.10.0: not judged: vllm 0.10.0 has no class with a deepstack buffer" in said
    assert "0.13.0: not judged: yanked" in said
    assert "vllm 0.15.0 is the first release that has incident 43602, 0.14.0 the last one that" in said
    assert "step 1 of about 5: vllm 0.10.0" in said
    assert "eager broke R1" in said


@pytest.mark.usefixtures("index")
def test_what_lies_between_and_was_not_judged_is_named(capsys: Capture) -> None:
    output = Output(None, quiet=False)
    output.show(bisect_releases(find("43602"), ASKED, judging("0.14.0")))
    said = " ".join(capsys.readouterr().out.split())
    assert "vllm 0.14.0 is the first release that has incident 43602, 0.12.0 the last one that" in said
    assert "between them not judged: 0.13.0 (yanked)" in said


@pytest.mark.usefixtures("index")
@pytest.mark.parametrize(("first", "code", "word"), [("0.10.0", 1, "has"), ("9", 0, "is free of")])
def test_equal_ends_are_reported_and_nothing_is_claimed_between_them(
    first: str, code: int, word: str, capsys: Capture
) -> None:
    assert Output(None, quiet=False).show(bisect_releases(find("43602"), ASKED, judging(first))) == code
    said = " ".join(capsys.readouterr().out.split())
    assert f"each {word} incident 43602" in said
    assert "releases between them were not looked at: leave --bisect out to judge each" in said


@pytest.mark.usefixtures("index")
def test_nothing_judged_is_no_verdict() -> None:
    def refuse(_text: str) -> Document[SourceVerdict]:
        yield BLANK
        raise MachineError("the index cannot be reached")

    with pytest.raises(MachineError, match=r"nothing was judged in 0\.10\.0, 0\.11\.0"):
        Output(None, quiet=True).show(bisect_releases(find("43602"), ASKED, refuse))


@pytest.mark.usefixtures("index")
def test_a_release_that_is_not_on_the_index_is_reported(capsys: Capture) -> None:
    asked = Namespace(package="vllm", since="0.10.5", until="0.15.0")
    Output(None, quiet=False).show(bisect_releases(find("43602"), asked, judging("0.14.0")))
    assert "0.10.5 is not on the index: beginning with 0.11.0" in capsys.readouterr().out
    asked = Namespace(package="vllm", since="0.10", until="0.15.5")
    Output(None, quiet=False).show(bisect_releases(find("43602"), asked, judging("0.14.0")))
    assert "0.15.5 is not on the index: ending with 0.15.0" in capsys.readouterr().out


@pytest.mark.usefixtures("index")
def test_the_result_is_a_row_for_programs(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    output = Output(str(path), quiet=True)
    output.show(bisect_releases(find("43602"), ASKED, judging("0.14.0")))
    output.close()
    (row,) = map(json.loads, path.read_text().splitlines())
    assert {name: row[name] for name in ("system", "incident", "engine", "after", "before", "has")} == {
        "system": "bisect", "incident": "43602", "engine": "vllm", "after": "0.14.0", "before": "0.12.0",
        "has": True,
    }  # fmt: skip
    assert row["not_judged"] == {"0.13.0": "yanked"}


@pytest.mark.usefixtures("index")
@pytest.mark.parametrize(("options", "lines"), [({"progress": True}, True), ({"progress": False}, False)])
def test_progress_lines_go_to_stderr_also_under_quiet(
    options: dict[str, bool], lines: bool, capsys: Capture
) -> None:
    Output(None, quiet=True, **options).show(bisect_releases(find("43602"), ASKED, judging("0.14.0")))
    seen = capsys.readouterr()
    assert seen.out == ""
    assert ("step 2 of about 5: vllm 0.16.0 has it: eager broke R1" in seen.err) is lines


# Whole commands on trees.

FREE = ModelFile(get=ModelFile().get.replace("    if self.filled == 0:\n        return None\n", ""))


def test_a_step_on_a_tree_ends_with_the_arm_that_shows_it(tmp_path: Path, capsys: Capture) -> None:
    root = str(Vllm().tree(tmp_path))
    assert main(["repro", "43602", "--source", root, "--bisect"]) == ExitCode.BROKEN
    said = capsys.readouterr().out
    assert "eager shows R1; eager/drop_all shows R0 R1" in " ".join(said.split())
    assert "HAS incident 43602, breaks R1" in " ".join(said.split())
    assert "torch.compile" not in said
    assert "every class of" not in said


@pytest.mark.slow  # 8 s: the arm that needs Dynamo is played, and nothing breaks
def test_a_step_on_a_tree_without_the_fault_ends_without_inductor(tmp_path: Path, capsys: Capture) -> None:
    root = str(Vllm(qwen=str(FREE)).tree(tmp_path))
    assert main(["repro", "43602", "--source", root, "--bisect", "--progress"]) == ExitCode.HOLDS
    seen = capsys.readouterr()
    assert "backend eager" in seen.out
    assert "inductor" not in seen.out
    assert "free of incident 43602" in seen.out
    assert "under eager/drop_all (2 of 3" in seen.err


def test_a_tree_without_the_class_is_skipped(tmp_path: Path, capsys: Capture) -> None:
    root = str(Vllm(qwen="class Other:\n    pass\n").tree(tmp_path))
    assert main(["repro", "43602", "--source", root, "--bisect"]) == ExitCode.BISECT_SKIP
    assert "Qwen3VLForConditionalGeneration" in capsys.readouterr().err


@pytest.mark.usefixtures("index")
def test_each_release_is_judged_as_a_source_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def judge(
        _incident: object, _families: object, _source: object, args: Namespace
    ) -> Document[SourceVerdict]:
        yield BLANK
        asked.append(args.source)
        return SourceVerdict(args.source)

    monkeypatch.setattr(repro, "reproduce_in_engine", judge)
    words = ["--package", "sglang", "--since", "0.15", "--until", "0.16", "--bisect", "--quiet"]
    assert main(["repro", "33726", *words]) == ExitCode.HOLDS
    assert asked == ["sglang==0.15.0", "sglang==0.16.0"]


@pytest.mark.network
@pytest.mark.slow
@pytest.mark.parametrize(
    ("incident", "words", "said"),
    [
        ("43602", "vllm --since 0.21.0 --until 0.24.0", "vllm 0.23.0 is the first release that is free of"),
        ("33726", "sglang --since 0.5.9 --until 0.5.12", "sglang 0.5.11 is the first release that has"),
    ],
)
def test_released_engines(incident: str, words: str, said: str, capsys: Capture) -> None:
    assert main(["repro", incident, "--package", *words.split(), "--bisect"]) == ExitCode.BROKEN
    assert said in capsys.readouterr().out
