"""Known failures, upstream reports and live faults: what entries speak of, and files that are refused."""

import re
import shlex
from pathlib import Path

import pytest
from packaging.version import Version

from deepstack_harness.catalogue.incidents import catalogue, find
from deepstack_harness.catalogue.known import (
    KNOWN_FAILURES,
    LIVE_FAULTS,
    UPSTREAM,
    FaultState,
    FaultyReleases,
    KnownFailure,
    LiveFault,
    Report,
    Seen,
    known_rules_of,
    link_of,
    seen_input,
    state_of,
)
from deepstack_harness.catalogue.orders import covers
from deepstack_harness.cli.main import build_parser
from deepstack_harness.contract.case import Regime
from deepstack_harness.contract.rules import Rule
from deepstack_harness.contract.trace import Trace
from deepstack_harness.contract.verdicts import Effect, Evidence, FaultKind
from deepstack_harness.errors import UsageError

KNOWN = KnownFailure("vllm", ">=0.20,<0.23", ("*",), (Rule.STRUCTURE,), "vllm 43602")
THERE = {Rule.STRUCTURE: "vllm 43602"}


@pytest.mark.parametrize(
    ("releases", "version", "covered"),
    [
        (">=0.20,<0.23", "0.22.1", True),
        (">=0.20,<0.23", "0.20", True),
        (">=0.20,<0.23", "0.23.0", False),
        (">=0.20,<0.23", "0.22.1+cu129", True),
        (">=0.20,<0.23", "0.22.0rc1", True),
        (">=0.20,<0.23", "0.22.2.dev5+g1a2b3c4", True),
        # Towards the release that changed it: not what was before, and not yet what comes.
        (">=0.20,<0.23", "0.23.0rc1", False),
        (">=0.23", "0.23.0rc1", False),
        (">=0.20,<0.23", "0.23.0.dev7+g1a2b3c4", False),
        # Later than the newest release that was measured.
        ("<=0.33.0", "0.33.0.post1", False),
        ("<=0.33.0", "0.33.1.dev1+g1a2b3c4", False),
        ("<=0.33.0", "0.33.0.dev9", True),
        ("<=0.22.1", "0.22.2.dev5+g1a2b3c4", False),
    ],
)
def test_a_range_covers_versions_in_packagings_order(releases: str, version: str, covered: bool) -> None:
    assert covers(releases, Version(version)) == covered


def test_of_an_unknown_version_a_fault_of_any_release_is_known_by_its_trace() -> None:
    assert not covers(">=0", None)
    first, second = {Rule.STRUCTURE: ("cap 4: get 4",)}, {Rule.STRUCTURE: ("cap 4: get 1",)}
    old = KnownFailure(
        "vllm", "<0.1", ("*",), (Rule.STRUCTURE,), "vllm 1", shapes=(FaultKind.NONE,), traces=first
    )
    new = KnownFailure(
        "vllm", ">=9", ("*",), (Rule.STRUCTURE,), "vllm 9", (Regime.LIVE,), (FaultKind.NONE,), traces=second
    )
    rules = known_rules_of("vllm", None, "AnyModel", [old, new])
    assert rules.reference_of(Rule.STRUCTURE, Regime.CAPTURED, FaultKind.NONE, "cap 4: get 4") == "vllm 1"
    assert rules.reference_of(Rule.STRUCTURE, Regime.LIVE, FaultKind.NONE, "cap 4: get 1") == "vllm 9"
    others = [
        (Regime.CAPTURED, FaultKind.NONE, "cap 4: get 1"),
        (Regime.LIVE, FaultKind.MOVED, "cap 4: get 1"),
        (Regime.LIVE, FaultKind.NONE, "cap 4: set 1; get 1"),
        (Regime.LIVE, FaultKind.NONE, ""),
    ]
    assert not any(rules.covers(Rule.STRUCTURE, *other) for other in others)
    assert "no version" in rules.matched_by
    assert known_rules_of("sglang", None, "AnyModel", [old]) == {}


def test_a_trace_counts_only_for_an_unknown_version() -> None:
    versioned = known_rules_of("vllm", Version("0.22.1"), "AnyModel", [KNOWN])
    assert versioned.covers(Rule.STRUCTURE, Regime.LIVE, FaultKind.NONE, "cap 4: any")
    assert versioned.matched_by == ""
    assert not known_rules_of("vllm", None, "AnyModel", [KNOWN]).covers(
        Rule.STRUCTURE, Regime.LIVE, FaultKind.NONE
    )


def test_traces_and_effects_of_another_rule_are_refused() -> None:
    with pytest.raises(ValueError, match="traces of R2, which is none of its rules"):
        KnownFailure(
            "vllm", "<1", ("*",), (Rule.STRUCTURE,), "vllm 1", traces={Rule.BOUNDARY: ("cap 4: get 4",)}
        )
    with pytest.raises(ValueError, match="effects of R2, which is none of its rules"):
        KnownFailure(
            "vllm", "<1", ("*",), (Rule.STRUCTURE,), "vllm 1", effects={Rule.BOUNDARY: (Effect.OUTPUT,)}
        )


@pytest.mark.parametrize(
    "trace",
    sorted({trace for entry in KNOWN_FAILURES.entries for of in entry.traces.values() for trace in of}),
)
def test_each_trace_of_a_known_failure_is_one_that_an_audit_plays(trace: str) -> None:
    assert str(Trace.parse(trace)) == trace


def test_an_entry_is_only_about_its_package_and_its_classes() -> None:
    version = Version("0.22.1")
    assert known_rules_of("vllm", version, "AnyModel", [KNOWN]) == THERE
    assert known_rules_of("sglang", version, "AnyModel", [KNOWN]) == {}
    this = KnownFailure("vllm", ">=0.20", ("This",), (Rule.STRUCTURE,), "vllm 43602")
    assert known_rules_of("vllm", version, "This", [this]) == THERE
    assert known_rules_of("vllm", version, "That", [this]) == {}


def test_another_regime_or_shape_of_a_known_rule_is_new() -> None:
    entry = KnownFailure(
        "vllm",
        ">=0.20",
        ("*",),
        (Rule.CLEAR,),
        "unreported",
        regimes=(Regime.LIVE,),
        shapes=(FaultKind.CLEARED,),
    )
    rules = known_rules_of("vllm", Version("0.22.1"), "AnyModel", [entry])
    assert rules.covers(Rule.CLEAR, Regime.LIVE, FaultKind.CLEARED)
    assert not rules.covers(Rule.CLEAR, Regime.CAPTURED, FaultKind.CLEARED)
    assert not rules.covers(Rule.CLEAR, Regime.LIVE, FaultKind.LIVE)
    any_shape = known_rules_of("vllm", Version("0.22.1"), "AnyModel", [KNOWN])
    assert any_shape.covers(Rule.STRUCTURE, Regime.CAPTURED, FaultKind.NONE)


def test_every_entry_that_comes_along_names_its_package() -> None:
    packages = {"vllm", "vllm-omni", "sglang", "tpu-inference", "vllm-ascend"}
    assert {entry.package for entry in KNOWN_FAILURES.entries} == packages


ENTRY = """\
schema_version = 4
[[failure]]
{package}
releases = "{releases}"
classes = ["*"]
rules = ["{rule}"]
reference = "x"
"""
VLLM = 'package = "vllm"'


@pytest.mark.parametrize(
    ("text", "quoted"),
    [
        ("schema_version = 1\nfailure = []\n", "schema_version 1, this harness reads 4"),
        (ENTRY.format(package=VLLM, releases="newish", rule="R1"), "newish"),
        (ENTRY.format(package=VLLM, releases=">=1", rule="R99"), "R99"),
        (ENTRY.format(package="", releases=">=1", rule="R1"), "required field `package`"),
        (ENTRY.format(package=VLLM, releases=">=1", rule="R1") + 'shapes = ["rows"]\n', "rows"),
        ("not toml at all", "is not a file of known failures"),
    ],
)
def test_a_bad_file_is_refused_with_the_entry(tmp_path: Path, text: str, quoted: str) -> None:
    path = tmp_path / "known.toml"
    path.write_text(text)
    with pytest.raises(UsageError, match=quoted):
        KNOWN_FAILURES.read(path)


ROOT = Path(__file__).parents[3]
FILE = """
schema_version = 2

[[fault]]
id = "F1"
package = "acme"
versions = "==1.0"
title = "a title"
state = "reproduced"
seen = "run"
reach = "unknown"
incident = "43602"
commands = ["repro 43602"]
"""
each_fault = pytest.mark.parametrize("fault", LIVE_FAULTS.entries, ids=lambda fault: fault.id)


def read(folder: Path, text: str) -> LiveFault:
    path = folder / "live_faults.toml"
    path.write_text(text)
    (fault,) = LIVE_FAULTS.read(path)
    return fault


def test_every_fault_that_was_read_has_a_verdict() -> None:
    names = [fault.id for fault in LIVE_FAULTS.entries]
    assert len(set(names)) == len(names)
    read = {f"F{number}" for number in (*range(1, 12), 13, 14)}
    reported = {fault.id for fault in LIVE_FAULTS.entries if fault.state is FaultState.NOT_COVERED}
    assert {name.partition("-")[0] for name in names} == read | reported
    assert reported == {"H1", "H2", "H3"}


@each_fault
def test_a_reproduced_fault_names_an_incident_and_commands_that_are_taken(fault: LiveFault) -> None:
    played = set()
    for command in fault.commands:
        words = shlex.split(command)
        build_parser(words).parse_args(words)
        assert words[0] == "repro" or words[:2] == ["audit", "--source"]
        played |= {find(words[1]).id} if words[0] == "repro" else set()
    assert (fault.incident in played) == (fault.state is FaultState.REPRODUCED)


@pytest.mark.parametrize(
    ("versions", "commits", "words"),
    [
        (">=0.22.0,<=0.30.0", (), "0.22.0 .. 0.30.0"),
        (">=0.20.0,<0.23.0", (), "0.20.0 .. before 0.23.0"),
        ("<0.14.0", (), "before 0.14.0"),
        (">=0.25.1", (), "0.25.1 .."),
        ("==0.5.23", ("0003e60b",), "0.5.23, 0003e60b"),
        ("", ("0003e60b",), "0003e60b"),
        ("", (), "releases not known"),
    ],
)
def test_a_range_is_written_in_words(versions: str, commits: tuple[str, ...], words: str) -> None:
    releases = FaultyReleases(
        package="vllm", versions=versions, commits=commits, reach="default", seen=Seen.RUN
    )
    assert releases.in_words == words


@each_fault
def test_an_incident_that_a_reason_names_is_there(fault: LiveFault) -> None:
    for number in re.findall(r"incident (\S+)", fault.why):
        assert find(number).id == number


@pytest.mark.skipif(not (ROOT / "tox.ini").exists(), reason="needs a checkout")
def test_each_text_for_upstream_is_there_and_names_the_program_of_its_incident() -> None:
    texts = {fault.upstream: fault.incident for fault in reversed(LIVE_FAULTS.entries) if fault.upstream}
    assert len(texts) == 4
    for path, incident in texts.items():
        text = (ROOT / path).read_text()
        assert f"repro {incident} --script" in text
        assert "Not sent yet." in text
        assert "## What was run" in text


def test_an_entry_is_read_whole(tmp_path: Path) -> None:
    fault = read(tmp_path, FILE)
    assert fault.outcome == "reproduced: deepstack-harness repro 43602"
    unknown = FILE.replace('state = "reproduced"', 'state = "unknown"\nwhy = "it takes a GPU"')
    unknown = unknown.replace('commands = ["repro 43602"]\n', "")
    assert read(tmp_path, unknown).outcome == "unknown: it takes a GPU"


@pytest.mark.parametrize(
    ("old", "new", "sentence"),
    [
        ('commands = ["repro 43602"]', "", "fault F1 is reproduced: say in 'commands' and 'incident'"),
        ('incident = "43602"', "", "fault F1 is reproduced: say in 'commands' and 'incident'"),
        ('state = "reproduced"', 'state = "unknown"', "fault F1 is unknown: say why"),
        ('state = "reproduced"', 'state = "refuted"\nwhy = "seen"', "leave 'commands' out"),
        ('state = "reproduced"', 'state = "fixed"', "Invalid enum value 'fixed'"),
        ('seen = "run"', 'seen = "heard"', "Invalid enum value 'heard'"),
        ('versions = "==1.0"', 'versions = "1.0"', "Invalid specifier: '1.0'"),
        ('reach = "unknown"', 'reach = "often"', "'often' is no reach: begin with default"),
    ],
)
def test_an_entry_that_contradicts_itself_is_refused(
    tmp_path: Path, old: str, new: str, sentence: str
) -> None:
    assert old in FILE
    with pytest.raises(UsageError, match=re.escape(sentence)):
        read(tmp_path, FILE.replace(old, new, 1))


REFERENCES = {reference for incident in catalogue() for reference in incident.references}
REFERENCES |= {failure.reference for failure in KNOWN_FAILURES.entries}


@pytest.mark.parametrize("reference", sorted(REFERENCES))
def test_every_upstream_reference_has_a_link(reference: str) -> None:
    project, _, number = reference.partition(" ")
    if project in ("sequence", "unreported"):
        assert link_of(reference) is None
    else:
        assert str(link_of(reference)).endswith(f"/issues/{number}")


@pytest.mark.parametrize("report", UPSTREAM.entries, ids=lambda report: report.reference)
def test_a_report_belongs_to_an_incident_or_has_a_reason_why_not(report: Report) -> None:
    assert link_of(report.reference)
    assert re.fullmatch(r"20\d\d-(0[1-9]|1[0-2])", report.seen)
    assert report.kind == "pull request" or report.state != "merged"
    known = {reference for incident in catalogue() for reference in incident.references}
    assert (report.reference in known) == (not report.reason)


def test_the_state_of_a_reference() -> None:
    assert state_of("sglang 33726") == "pull request, open in 2026-08"
    assert state_of("vllm 43602") is None


def test_a_report_of_no_incident_is_shown_with_the_reason() -> None:
    with pytest.raises(UsageError, match="'LightLLM#1155' is no incident: a right design"):
        find("LightLLM#1155")


@pytest.mark.parametrize(
    ("alias", "incident"),
    [
        ("vllm-ascend 6261", "18098"),
        ("tpu-inference 3164", "2266"),
        ("mlx-vlm 581", "2296"),
        ("mlx-engine 237", "1635"),
        ("onnxruntime-genai 1989", "1635"),
        ("MNN 4499", "44384"),
        ("sonar 1664", "41485"),
        ("sglang 13055", "33726"),
        ("mbridge 47", "129"),
        ("ms-swift 6477", "6514"),
    ],
)
def test_a_report_of_the_same_fault_finds_its_incident(alias: str, incident: str) -> None:
    assert find(alias).id == incident


def test_an_input_that_a_running_engine_showed_has_that_evidence_in_its_releases_only() -> None:
    wanted = "MossQwen3Model", "deepstack_input_embeds"
    seen = seen_input("vllm", Version("0.32.0+cpu"), *wanted)
    assert seen is not None
    assert seen.evidence is Evidence.ENGINE
    assert "0.32.0 on a CPU, V1 runner" in seen.seen
    assert seen_input("vllm", Version("0.31.0"), *wanted) is None
    assert seen_input("vllm", None, *wanted) is None
    assert seen_input("vllm", Version("0.32.0"), "MossQwen3Model", "positions") is None
