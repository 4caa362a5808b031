"""The two neighbours as users meet them: `repro` and `audit`, what they print, write and exit with."""

import json
from pathlib import Path

import msgspec
import pytest

from cases.selftest.engines.synthetic_vllm import (
    HANDS_ON,
    RANGE_FILE,
    RANGES,
    STREAM_FILE,
    STREAMS,
    ModelFile,
    Vllm,
    line_of,
    write_systems,
)
from deepstack_harness.audit import ranges
from deepstack_harness.catalogue.incidents import catalogue, find
from deepstack_harness.catalogue.registry import (
    ORACLES_BESIDE,
    PLACEHOLDER_RANGES,
    SYSTEMS,
    SYSTEMS_OF_SOURCES,
    VARIANTS,
)
from deepstack_harness.cli.main import main
from deepstack_harness.contract.names import Names, imported
from deepstack_harness.contract.oracles.judge import ORACLES
from deepstack_harness.contract.rules import Rule
from deepstack_harness.errors import ExitCode

pytestmark = pytest.mark.xdist_group("aot_eager")

Capture = pytest.CaptureFixture[str]

SHOWN = {"40143": "placeholder_ranges", "36795": "dual_stream"}
WRAPS = RANGE_FILE.replace(
    "self._before(end_idx)",
    "end_idx if self.embeds_cumsum is None else self.embeds_cumsum[end_idx - 1]",
)
OUTSIDE = STREAM_FILE.replace("        event1.record()\n    first", "    event1.record()\n    first")


@pytest.mark.parametrize("number", SHOWN)
def test_the_catalogue_names_every_variant_with_its_fault(number: str) -> None:
    system, incident = SHOWN[number], find(number)
    variants = VARIANTS[system]
    assert (incident.system, incident.families, incident.run) == (system, (), ())
    assert sorted(incident.faulty) == sorted(name for name, variant in variants.items() if variant.fault)
    assert sorted(incident.fixed) == sorted(name for name, variant in variants.items() if not variant.fault)


@pytest.mark.parametrize("number", SHOWN)
def test_every_variant_is_shown_and_judged_as_the_catalogue_has_it(
    number: str, tmp_path: Path, capsys: Capture
) -> None:
    path, incident = tmp_path / "rows.jsonl", find(number)
    assert main(["repro", number, "--json", str(path)]) == ExitCode.HOLDS
    *_, last = out = capsys.readouterr().out.splitlines()
    assert last.startswith(f"shown: rule {incident.rules[0]} broken by {incident.faulty[0]}, ")
    rows = {row["revision"]: row for row in map(json.loads, path.read_text().splitlines())}
    assert {name for name, row in rows.items() if row["verdict"] == "FAIL"} == set(incident.faulty)
    assert {name for name, row in rows.items() if row["verdict"] == "PASS"} == set(incident.fixed)
    for name, row in rows.items():
        assert (row["system"], row["rule"], row["incident"]) == (SHOWN[number], incident.rules[0], number)
        assert row["family"] == row["trace"] == row["arm"] == row["dtype"] == ""
        assert [line for line in out if line.startswith(f"{name} ")] != []
    if number == "40143":
        assert "kept as tensor" in rows["tensor"]["detail"]
        assert "kept as list" in rows["list"]["detail"]
        assert rows["list_empty"]["detail"].endswith(
            "IndexError: list index out of range, 0 is right; kept as list"
        )
    else:
        assert "layers -> distinct subgraphs 1 -> 1, 4 -> 4, 16 -> 16 (cold" in rows["named_op"]["detail"]
        assert "layers -> distinct subgraphs 1 -> 1, 4 -> 1, 16 -> 1 (cold" in rows["fixed_op"]["detail"]
        unordered = (
            "nothing orders 'layer 1: projection B' on aux and 'layer 1: use of the results: add' on main"
        )
        assert unordered in rows["done_recorded_outside"]["detail"]


def test_a_variant_that_is_not_as_the_catalogue_has_it_exits_with_1(
    monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    broken, mended = PLACEHOLDER_RANGES["list_wraps"], PLACEHOLDER_RANGES["list"]
    swapped = {**PLACEHOLDER_RANGES, "list": broken, "list_empty": mended}
    monkeypatch.setattr(ranges, "PLACEHOLDER_RANGES", Names("placeholder range", swapped))
    assert main(["repro", "40143"]) == ExitCode.BROKEN
    out = capsys.readouterr().out
    assert "not as expected: list broke R12, expected none\n" in out
    assert "not as expected: list_empty broke none, expected R12\n" in out
    assert out.endswith("not as the catalogue expects: 2 subjects\n")


def test_a_source_is_free_of_both(tmp_path: Path, capsys: Capture) -> None:
    root = str(write_systems(tmp_path, ranges=RANGE_FILE, streams=STREAM_FILE))
    assert main(["repro", "40143", "--vllm", root]) == ExitCode.HOLDS
    out = capsys.readouterr().out
    assert "kept as list" in out
    assert out.endswith("PlaceholderRange: free of incident 40143\n")
    assert main(["repro", "36795", "--vllm", root]) == ExitCode.HOLDS
    assert capsys.readouterr().out.endswith("maybe_execute_in_parallel: free of incident 36795\n")


@pytest.mark.slow  # 2 s
def test_a_source_has_both_and_the_place_is_reported(tmp_path: Path, capsys: Capture) -> None:
    root = write_systems(tmp_path, ranges=WRAPS, streams=OUTSIDE)
    assert main(["repro", "40143", "--vllm", str(root)]) == ExitCode.BROKEN
    out = capsys.readouterr().out
    assert "kept as list" in out
    assert f"where: {RANGES}:{line_of(WRAPS, '@dataclass') + 1}\n" in out
    assert out.endswith("PlaceholderRange: HAS incident 40143, breaks R12\n")
    assert main(["repro", "36795", "--vllm", str(root)]) == ExitCode.BROKEN
    out = capsys.readouterr().out
    assert f"where: {STREAMS}:{line_of(OUTSIDE, 'def maybe')}\n" in out
    assert out.endswith("maybe_execute_in_parallel: HAS incident 36795, breaks R13\n")


@pytest.mark.parametrize(("number", "since"), [("40143", "0.16.0"), ("36795", "0.19.0")])
def test_a_source_without_it_is_no_judgement(
    number: str, since: str, tmp_path: Path, capsys: Capture
) -> None:
    assert main(["repro", number, "--vllm", str(write_systems(tmp_path))]) == ExitCode.USAGE
    assert f"it is there from vllm {since} on" in capsys.readouterr().err


@pytest.mark.parametrize("number", SHOWN)
def test_a_script_and_a_pytest_file_are_written(number: str, tmp_path: Path) -> None:
    script, test = tmp_path / "show.py", tmp_path / "test_show.py"
    words = ["--script", str(script), "--pytest", str(test), "--quiet"]
    assert main(["repro", number, *words]) == ExitCode.HOLDS
    assert len(script.read_text().splitlines()) < 120
    assert "def test_" in test.read_text()


QWEN = str(ModelFile(more=HANDS_ON))
"""A class with a deepstack buffer, without which there is nothing to audit."""


def audited(root: Path, path: Path) -> dict[str, dict[str, object]]:
    """The rows that are not of deepstack classes, by their subject."""
    assert main(["audit", "--vllm", str(root), "--json", str(path)]) == ExitCode.BROKEN
    rows = map(json.loads, path.read_text().splitlines())
    return {row["model_class"]: row for row in rows if row["system"] not in ("account", "deepstack")}


@pytest.mark.slow  # 2 s
def test_an_audit_has_both(tmp_path: Path, capsys: Capture) -> None:
    root = Vllm("0.19.1", QWEN).tree(write_systems(tmp_path / "vllm", ranges=WRAPS, streams=STREAM_FILE))
    rows = audited(root, tmp_path / "rows.jsonl")
    assert {name: (row["rule"], row["verdict"], row["incident"]) for name, row in rows.items()} == {
        "PlaceholderRange": ("R12", "XFAIL", None),
        "maybe_execute_in_parallel": ("R13", "PASS", None),
    }
    out = capsys.readouterr().out
    assert "\nother systems\nvllm at " in out
    assert "kept as list" in out
    assert out.splitlines()[-2].endswith("R12")
    last = "reached by default: R1, unknown for 1 class. Not known before: R1. Effect: not measured."
    assert out.splitlines()[-1].startswith(last)


@pytest.mark.slow  # 5 s
def test_an_audit_names_what_a_source_has_not(tmp_path: Path, capsys: Capture) -> None:
    assert audited(Vllm("0.15.0", QWEN).tree(tmp_path / "vllm"), tmp_path / "rows.jsonl") == {}
    out = capsys.readouterr().out
    assert f"has no {RANGES}; it is there from vllm 0.16.0 on\n" in out
    assert f"has no {STREAMS}; it is there from vllm 0.19.0 on\n" in out


RELEASES = {
    "0.19.1": ("XFAIL", "tensor", ["maybe_execute_in_parallel"]),
    "0.20.0": ("PASS", "list", ["maybe_execute_in_parallel"]),
    "0.33.0": ("PASS", "list", ["maybe_execute_in_parallel", "execute_in_parallel"]),
}


@pytest.mark.network
@pytest.mark.slow  # 10 s each; trees of our own are audited every day
@pytest.mark.parametrize("release", RELEASES)
def test_releases_are_audited(release: str, tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    main(["audit", "--vllm", release, "--json", str(path), "--quiet"])
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    ranges, *helpers = [row for row in rows if row["system"] not in ("deepstack", "account")]
    verdict, kept_as, names = RELEASES[release]
    assert (ranges["rule"], ranges["verdict"], ranges["source"]) == ("R12", verdict, f"vllm {release}")
    assert f"kept as {kept_as}" in ranges["detail"]
    assert [(row["model_class"], row["rule"], row["verdict"]) for row in helpers] == [
        (name, "R13", "PASS") for name in names
    ]


def test_lists_are_true(tmp_path: Path, capsys: Capture) -> None:
    path = tmp_path / "items.jsonl"
    assert main(["list", "--json", str(path)]) == ExitCode.HOLDS
    assert "no oracle yet" not in capsys.readouterr().out
    items = [json.loads(line) for line in path.read_text().splitlines()]
    variants = {item["name"]: item["fault"] for item in items if item["kind"] == "variants"}
    for system, known in VARIANTS.items():
        assert {name: variants[f"{system} {name}"] for name in known} == {
            name: variant.fault for name, variant in known.items()
        }
    assert len(variants) == sum(map(len, VARIANTS.values()))
    systems = {item["id"]: item["system"] for item in items if item["kind"] == "incidents"}
    assert systems == {incident.id: incident.system for incident in catalogue()}


def test_every_rule_has_an_oracle() -> None:
    assert {oracle.rule for oracle in ORACLES} | set(ORACLES_BESIDE) == set(Rule)
    assert all(callable(imported(entry.target)) for entry in ORACLES_BESIDE.values())


def test_what_an_audit_judges_is_a_system() -> None:
    assert set(SYSTEMS_OF_SOURCES) <= set(SYSTEMS)


@pytest.mark.parametrize(("number", "system"), [("43602", "dual_stream"), ("40143", "deepstack")])
def test_runs_and_families_belong_to_a_buffer(number: str, system: str) -> None:
    with pytest.raises(ValueError, match=f"{number} of system '{system}': only 'deepstack' has runs"):
        msgspec.structs.replace(find(number), system=system)
