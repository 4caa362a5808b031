"""The catalogue of incidents: what is refused when a file is read, and which cases show an incident first."""

from dataclasses import replace
from pathlib import Path

import msgspec
import pytest
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name
from packaging.version import Version

from deepstack_harness.catalogue import plans
from deepstack_harness.catalogue.incidents import (
    CONTRACT_RUNS,
    DEEPSTACK,
    INCIDENTS,
    Incident,
    Run,
    Script,
    catalogue,
    decisive,
    decisive_of_source,
    find,
)
from deepstack_harness.catalogue.known import KNOWN_FAILURES, LIVE_FAULTS, KnownFailure
from deepstack_harness.catalogue.orders import covers
from deepstack_harness.catalogue.plans import Where, plan_incident, plan_source
from deepstack_harness.contract.arm import ArmSpec, Backend
from deepstack_harness.contract.case import PlannedCase, source_buffer
from deepstack_harness.contract.rules import Rule
from deepstack_harness.contract.trace import Trace
from deepstack_harness.errors import UsageError

FILE = """
schema_version = 1

[[incident]]
id = "1"
name = "a-name"
title = "a title"
references = ["vllm 1"]
families = ["qwen3_vl"]
rules = ["R1"]
faulty = ["pr40932", "pr40145"]
fixed = ["reference"]
symptom = "a symptom"
cause = "a cause"

[incident.script]
subject = "pr40932"
arm = "eager/drop_all"

[[incident.run]]
trace = "cap 16: profile 16; get 4"
arms = ["eager", "eager/drop_all"]
broken = { pr40932 = ["R1"], pr40145 = ["R1"] }

[[incident.run]]
trace = "cap 16: get 4"
arms = ["eager/stock"]
broken = { pr40145 = ["R1"] }
"""


def read(folder: Path, text: str) -> Incident:
    file = folder / "incidents.toml"
    file.write_text(text)
    (incident,) = INCIDENTS.read(file)
    return incident


def test_an_entry_is_read_whole(tmp_path: Path) -> None:
    incident = read(tmp_path, FILE)
    assert incident.script == Script("pr40932", "eager/drop_all")
    assert incident.script.needs == "torch >= 2.10"
    assert incident.run[0] == Run(
        "cap 16: profile 16; get 4",
        ("eager", "eager/drop_all"),
        {"pr40932": (Rule.STRUCTURE,), "pr40145": (Rule.STRUCTURE,)},
    )


def test_a_run_of_callers_is_about_no_source(tmp_path: Path) -> None:
    assert read(tmp_path, FILE).about_sources
    right = 'trace = "cap 16: get 4"\narms = ["eager"]\nbroken = {}\n'
    start = FILE.partition("[incident.script]")[0].replace('"pr40932", "pr40145"', '"reference@never_clears"')
    subjects = '\nrevisions = ["reference@never_clears", "reference"]\n'
    assert read(tmp_path, f"{start}[[incident.run]]\n{right}").about_sources
    assert not read(tmp_path, f"{start}[[incident.run]]\n{right}{subjects}").about_sources


def test_a_script_is_optional(tmp_path: Path) -> None:
    text = FILE.replace('[incident.script]\nsubject = "pr40932"\narm = "eager/drop_all"\n', "")
    assert read(tmp_path, text).script is None


@pytest.mark.parametrize(
    ("old", "new", "sentence"),
    [
        (
            'subject = "pr40932"', 'subject = "reference"',
            "the script of incident 1 shows 'reference', which is not one of its faulty pr40932, pr40145",
        ),
        (
            'subject = "pr40932"', 'subject = "pr4093"',
            "the script of incident 1 shows 'pr4093', which is not one of its faulty pr40932, pr40145",
        ),
        (
            'arm = "eager/drop_all"', 'arm = "eager/stock"',
            "the script of incident 1 runs pr40932 under the arm 'eager/stock', but no run",
        ),
        ('arm = "eager/drop_all"', "", "runs pr40932 under the arm '', but no run"),
        (
            'arm = "eager/drop_all"', 'arm = "eager/drop_all"\nreload = true',
            "Object contains unknown field `reload` - at `$.incident[0].script`",
        ),
        ('arms = ["eager/stock"]', 'arms = ["eager/stock"]\nfamily = "x"', "at `$.incident[0].run[1]`"),
        ('arms = ["eager/stock"]', 'arms = ["eager/stok"]', "unknown"),
        ('trace = "cap 16: get 4"', 'trace = "cap 16: gte 4"', "gte"),
        (
            'families = ["qwen3_vl"]\n', "",
            "incident 1 of system 'deepstack': only 'deepstack' has runs and families",
        ),
        (
            'cause = "a cause"', 'cause = "a cause"\nsystem = "kernels"',
            "incident 1 of system 'kernels': only 'deepstack' has runs and families",
        ),
    ],
)  # fmt: skip
def test_an_entry_that_contradicts_itself_is_refused(
    tmp_path: Path, old: str, new: str, sentence: str
) -> None:
    assert FILE.count(old) >= 1
    with pytest.raises(UsageError) as raised:
        read(tmp_path, FILE.replace(old, new, 1))
    assert sentence in str(raised.value)
    assert "$.incident" in str(raised.value)  # its place


def test_a_script_of_another_system_has_no_arm(tmp_path: Path) -> None:
    text = FILE.partition("[[incident.run]]")[0].replace('families = ["qwen3_vl"]', 'system = "dual_stream"')
    with pytest.raises(UsageError, match="arm 'eager/drop_all', but incidents of system 'dual_stream' play"):
        read(tmp_path, text)
    assert read(tmp_path, text.replace('arm = "eager/drop_all"', "")).script == Script("pr40932")


def test_a_file_of_another_version_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="has schema_version 2, this harness reads 1"):
        read(tmp_path, FILE.replace("schema_version = 1", "schema_version = 2"))


def test_contract_runs_are_checked_as_those_of_incidents(tmp_path: Path) -> None:
    file = tmp_path / "contract.toml"
    run = '[[run]]\ntrace = "cap 16: get 4"\narms = ["eagre"]\nbroken = {}\n'
    file.write_text(f"schema_version = 1\n{run}")
    with pytest.raises(UsageError, match=r"not a file of contract runs: unknown arm 'eagre'.*\$\.run\[0\]"):
        CONTRACT_RUNS.read(file)
    file.write_text(f"schema_version = 1\n{run.replace('eagre', 'eager')}")
    assert [run.arms for run in CONTRACT_RUNS.read(file)] == [("eager",)]


WITH_TRACES = [incident for incident in catalogue() if incident.system == DEEPSTACK]


def chosen(incident: Incident, family: str) -> list[PlannedCase]:
    return decisive(incident, plan_incident(incident, Where(family)))


@pytest.mark.parametrize("incident", WITH_TRACES, ids=lambda item: item.id)
def test_every_rule_is_broken_by_a_faulty_case_and_has_a_correct_one(incident: Incident) -> None:
    for family in incident.families:
        plan = plan_incident(incident, Where(family))
        cases = decisive(incident, plan)
        assert cases == [case for case in plan if case in cases] or len(cases) == len(set(cases))
        faulty, fixed = cases[::2], cases[1::2]
        reachable = {rule for case in plan for rule in case.must_break or ()} & set(incident.rules)
        assert {rule for case in faulty for rule in case.must_break or ()} >= reachable
        assert not any(case.must_break for case in fixed)
        assert [(item.case.trace, item.case.arm) for item in faulty] == [
            (item.case.trace, item.case.arm) for item in fixed
        ]


@pytest.mark.parametrize("incident", WITH_TRACES, ids=lambda item: item.id)
def test_they_are_few_and_inductor_comes_last_in_one_pair(incident: Incident) -> None:
    cases = chosen(incident, incident.families[0])
    dear = [case.case.arm.backend is Backend.INDUCTOR for case in cases]
    assert len(cases) <= 6
    assert dear == sorted(dear)
    assert sum(dear) <= 2


def test_the_fix_that_a_reference_names_is_next_to_the_fault() -> None:
    assert [(case.case.subject, case.case.arm.name) for case in chosen(find("43602"), "qwen3_vl")] == [
        ("pr40932", "eager"), ("pr43617", "eager"),
        ("pr40932", "eager/drop_all"), ("pr43617", "eager/drop_all"),
        ("pr40932", "inductor/drop_all"), ("pr43617", "inductor/drop_all"),
    ]  # fmt: skip


def test_a_trace_that_only_inductor_plays_is_retained() -> None:
    buffer = source_buffer("vllm", "0.22.1", "vllm 0.22.1", "Qwen3VLForConditionalGeneration")
    (first, *_) = plan_source(find("43602"), Where("qwen3_vl"), buffer)[2:]
    arms = [ArmSpec.parse(name) for name in ("inductor/drop_all", "inductor/stock")]
    traces = [Trace.parse(f"cap 16: profile 16; set {n}; forward 16") for n in (16, 9)]
    plan = [replace(first, case=replace(first.case, trace=t, arm=arm)) for t in traces for arm in arms]
    assert {case.case.trace for case in decisive_of_source(plan)} == set(traces)
    assert len(decisive_of_source(plan)) < len(plan)


@pytest.mark.parametrize(
    "incident", [item for item in WITH_TRACES if item.about_sources], ids=lambda item: item.id
)
def test_a_source_is_played_on_every_trace(incident: Incident) -> None:
    buffer = source_buffer("vllm", "0.22.1", "vllm 0.22.1", "Qwen3VLForConditionalGeneration")
    for family in incident.families:
        plan = plan_source(incident, Where(family), buffer)
        kept = decisive_of_source(plan)
        assert {case.case.trace for case in kept} == {case.case.trace for case in plan}
        traces = [case.case.trace for case in kept if case.case.arm.backend is Backend.INDUCTOR]
        assert len(traces) <= max(1, len(set(traces)))


@pytest.mark.parametrize("incident", INCIDENTS.entries, ids=lambda incident: incident.id)
def test_an_incident_is_described_in_the_words_of_users(incident: Incident) -> None:
    assert len(set(incident.symptoms)) >= 2
    ours = {"deepstack payload", "payload", "side input", "arm", "trace", "regime", "ledger", "revision"}
    for text in incident.symptoms:
        assert not ours & set(text.split()), f"'{text}' has a word of ours"


def test_no_releases_are_listed_twice() -> None:
    # A live fault has the releases of its incident: of a package they are in one of the two files.
    for fault in LIVE_FAULTS.entries:
        for affected in find(fault.incident).affected if fault.incident else ():
            same = canonicalize_name(affected.package) == canonicalize_name(fault.package)
            assert not same or not set(affected.models) & set(fault.models), (fault.id, fault.incident)


@pytest.mark.parametrize(
    "failure",
    [entry for entry in KNOWN_FAILURES.entries if entry.reference != "unreported"],
    ids=lambda failure: f"{failure.package} {failure.releases} {failure.reference}",
)
def test_releases_that_break_a_rule_of_an_incident_are_among_its_affected(failure: KnownFailure) -> None:
    incidents = [entry for entry in INCIDENTS.entries if failure.reference in entry.references]
    ranges = [
        entry
        for entry in (*(part for incident in incidents for part in incident.affected), *LIVE_FAULTS.entries)
        if entry.package == failure.package and entry.versions
    ]
    ends = [Version(bound.version) for bound in SpecifierSet(failure.releases) if bound.operator != "<"]
    assert incidents
    assert all(any(covers(entry.versions, end) for entry in ranges) for end in ends)


@pytest.mark.parametrize(
    ("torch", "broken"),
    [
        ("2.11.0", {Rule.BOUNDARY}),
        ("2.12.0+cpu", {Rule.BOUNDARY, Rule.WORK}),
        ("2.16.0.dev1", {Rule.BOUNDARY, Rule.WORK}),
    ],
)
def test_a_run_is_planned_for_the_torch_that_shows_it(
    monkeypatch: pytest.MonkeyPatch, torch: str, broken: set[Rule]
) -> None:
    monkeypatch.setattr(plans, "version", lambda _: torch)
    where = Where("granite4_vision:payload_first+opaque", "float32", "cpu")
    arm = ArmSpec.parse("inductor/drop_all/no_size_asserts")
    cases = [case for case in plan_incident(find("40917"), where) if case.case.arm == arm]
    faulty = [case for case in cases if case.case.buffer.name == "granite_full"]
    assert [set(case.must_break or ()) for case in faulty] == [broken]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("about 2", "about 2"),
        ("since graph_outputs", "unknown change of torch 'graph_outputs'; known are graph_inputs"),
        ("before ", "unknown change of torch ''"),
    ],
)
def test_a_run_of_no_torch_is_refused(text: str, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        Run(trace="cap 16: get 16", arms=("eager",), broken={}, torch=text)


@pytest.mark.parametrize(
    ("torch", "faulty"), [("2.11.0", False), ("2.12.0+cpu", True), ("2.12.0.dev1", True)]
)
def test_a_variant_is_faulty_since_a_change_of_torch(torch: str, faulty: bool) -> None:
    incident = find("granite-rows")
    assert incident.is_faulty("granite_full", torch) is faulty
    assert incident.is_faulty("granite_rows", torch)
    assert not incident.is_faulty("granite_sliced", torch)


def test_who_is_faulty_since_a_change_is_among_the_faulty() -> None:
    incident = find("granite-rows")
    with pytest.raises(ValueError, match="'granite_sliced' of 'faulty_since' is none of its faulty ones"):
        msgspec.structs.replace(incident, faulty_since={"granite_sliced": "graph_inputs"})
    with pytest.raises(ValueError, match="unknown change of torch 'anything'"):
        msgspec.structs.replace(incident, faulty_since={"granite_full": "anything"})
