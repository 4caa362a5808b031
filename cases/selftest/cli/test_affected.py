"""`affected`: what is printed and recorded of a release, exit codes, and commands that are taken."""

import json
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from packaging.specifiers import SpecifierSet
from packaging.version import Version

from deepstack_harness.catalogue.affected import Sighting, every_sighting, sightings_of
from deepstack_harness.catalogue.incidents import Incident, catalogue, find
from deepstack_harness.catalogue.known import KNOWN_FAILURES, UNREPORTED, KnownFailure, known_rules_of
from deepstack_harness.cli.affected import command_of
from deepstack_harness.cli.main import build_parser, main
from deepstack_harness.cli.repro import _families_of_sources
from deepstack_harness.engines.known import ENGINES, open_source
from deepstack_harness.errors import ExitCode, UsageError

Capture = pytest.CaptureFixture[str]


def rows(path: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.mark.parametrize(
    ("words", "code", "verdict"),
    [
        (
            ["vllm==0.22.1"],
            ExitCode.BROKEN,
            "vllm 0.22.1: affected by 43602 with default settings; by S6, S8",
        ),
        (
            ["vllm==0.22.1", "--model", "Qwen3-VL"],
            ExitCode.BROKEN,
            "vllm 0.22.1, Qwen3-VL: affected by 43602",
        ),
        (
            ["vllm==0.34.0"],
            ExitCode.HOLDS,
            "vllm 0.34.0: not judged: releases 0.11.0 to 0.33.0 were looked at",
        ),
        (["vllm==0.10.0"], ExitCode.HOLDS, "not judged: releases 0.11.0 to 0.33.0 were looked at"),
        (
            ["mlx-vlm==0.7"],
            ExitCode.HOLDS,
            "mlx-vlm 0.7: not judged: no release of the package was looked at",
        ),
        (["exllamav3==1.0"], ExitCode.HOLDS, "not judged: no release of the package was looked at"),
        (["lmdeploy==0.18.0"], ExitCode.HOLDS, "nothing is known; releases 0.11 to 0.18.0 were looked at"),
        (["sglang==0.6"], ExitCode.HOLDS, "sglang 0.6: not judged: releases"),
        (["sglang==0.5.23"], ExitCode.BROKEN, "affected by captured-without with a setting"),
        (["transformers==5.23.0"], ExitCode.BROKEN, "affected by boolean-index with a setting"),
        (["fastdeploy==2.3"], ExitCode.HOLDS, "not judged"),
    ],
)
def test_a_release_gets_an_exit_code_and_a_verdict(
    words: list[str], code: ExitCode, verdict: str, capsys: Capture
) -> None:
    assert main(["affected", *words]) == code
    said = " ".join(capsys.readouterr().out.split())
    assert verdict in said
    assert "none" not in said.replace("none-while-profiling", "").split()


def test_models_are_looked_up_in_turn_and_one_that_is_affected_is_enough(
    tmp_path: Path, capsys: Capture
) -> None:
    path = tmp_path / "rows.jsonl"
    names = ["Qwen3VLForConditionalGeneration", "CohereCompassForConditionalGeneration"]
    words = ["affected", "vllm==0.11.2", *names, "--model", "Qwen3-VL", "--json", str(path)]
    assert main(words) == ExitCode.BROKEN
    found = [row for row in rows(path) if row["kind"] == "answer"]
    assert [row["model"] for row in found] == [*names, "Qwen3-VL"]
    assert [main(["affected", "vllm==0.11.2", name]) for name in names] == [ExitCode.BROKEN, ExitCode.HOLDS]
    assert "vllm 0.11.2, CohereCompassForConditionalGeneration: nothing is known" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("release", "there"),
    [("0.22.1", set()), ("0.23.0", {"Cosmos3"}), ("0.33.0", {"Cosmos3", "Cohere Compass"})],
)
def test_a_release_has_no_fault_of_a_class_that_came_later(
    release: str, there: set[str], tmp_path: Path
) -> None:
    path = tmp_path / "rows.jsonl"
    main(["affected", f"vllm=={release}", "--json", str(path), "--quiet"])
    found = rows(path)
    models = {str(name) for row in found if row["kind"] == "affected" for name in row["models"]}  # type: ignore[attr-defined]
    classes = {str(row["model_class"]) for row in found if row["kind"] == "class"}
    later = {"Cosmos3", "Cohere Compass"}
    assert models & later == there
    assert {name for name in later if f"{name.replace(' ', '')}ForConditionalGeneration" in classes} == there


def test_a_program_gets_a_row_for_each_fault_and_the_result(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    assert main(["affected", "vllm==0.22.1", "--json", str(path), "--quiet"]) == ExitCode.BROKEN
    *found, answer = rows(path)
    faults = [row for row in found if row["kind"] == "affected"]
    first = faults[0]
    assert (first["incident"], first["reach"], first["evidence"]) == ("43602", "default", "engine")
    assert first["effects"] == ["output"]
    assert (first["fixed_in"], first["newest_looked_at"]) == ("0.23.0", None)
    assert first["command"] == "repro 43602 --source vllm==0.22.1"
    assert first["judges_this_release"] is True
    assert {fault["state"] for fault in faults} == {"affected", "latent", "possible", "suspected"}
    assert (answer["kind"], answer["state"]) == ("answer", "affected")


@pytest.mark.parametrize("columns", [80, 100, 200])
def test_lines_fit_and_commands_stay_whole(
    columns: int, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    main(["affected", "vllm==0.33.0"])
    lines = capsys.readouterr().out.splitlines()
    assert all(len(line) <= columns for line in lines if "deepstack-harness " not in line)
    assert "      check: deepstack-harness repro 43602 --source vllm==0.33.0" in lines


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["vlm==1"], "unknown package 'vlm'; nearest are vllm, "),
        (["vllm"], "'vllm' names no release: write vllm==VERSION or installed:vllm"),
        (["vllm>=0.22"], "'vllm>=0.22' does not name one release"),
        (["0.22.1"], "'0.22.1' names no package"),
        (["./nowhere"], "'./nowhere' cannot be opened"),
        (["vllm==0.22.1", "--model", "llama"], "unknown model 'llama'; nearest are "),
        (["vllm==0.22.1", "--model", ""], "model is empty"),
        (["vllm==0.22.1", "Qwen3-VL", "llama"], "unknown model 'llama'; nearest are "),
    ],
)
def test_what_is_no_release_is_refused(words: list[str], sentence: str, capsys: Capture) -> None:
    assert main(["affected", *words]) == ExitCode.USAGE
    assert sentence in capsys.readouterr().err


def releases_of(sighting: Sighting) -> Version | None:
    bounds = [bound.version for bound in SpecifierSet(sighting.releases.versions) if bound.operator != "<"]
    return Version(bounds[0]) if bounds else None


@pytest.mark.parametrize(
    "sighting",
    every_sighting(),
    ids=lambda each: f"{each.releases.package}-{each.incident.id if each.incident else each.fault.id}",
)
def test_a_command_is_one_that_judges_the_release(sighting: Sighting) -> None:
    version = releases_of(sighting) or Version("1.0")
    command, judges = command_of(sighting, sighting.releases.package, version)
    words = shlex.split(command)
    if words:
        args = build_parser(words).parse_args(words)
        if judges and words[0] == "repro" and find(words[1]).engine == ():
            # Raises where the classes of that engine have not the fault's methods; nothing is fetched.
            assert _families_of_sources(find(words[1]), find(words[1]).families, open_source(args.source))
    assert judges <= (sighting.releases.package in {engine.package.name for engine in ENGINES})


RELEASES = ("vllm==0.19.1", "vllm==0.22.1", "vllm==0.33.0", "vllm-omni==0.20.0", "sglang==0.5.23")


@pytest.mark.parametrize("release", RELEASES)
def test_affected_show_and_audit_have_the_same_facts(release: str, tmp_path: Path, capsys: Capture) -> None:
    """Every class and rule that `audit` takes as known is one of `affected` and of `show`, and no others."""
    package, _, number = release.partition("==")
    version, path = Version(number), tmp_path / "rows.jsonl"
    main(["affected", release, "--json", str(path), "--quiet"])
    listed = {str(row["model_class"]): row["rules"] for row in rows(path) if row["kind"] == "class"}
    names = {name for entry in KNOWN_FAILURES.entries if entry.package == package for name in entry.classes}
    audited = {name: known_rules_of(package, version, name) for name in names}
    assert listed == {name: rules for name, rules in audited.items() if rules}
    for name, rules in audited.items():
        code = main(["affected", release, "--model", name, "--json", str(path), "--quiet"])
        assert not rules or code == ExitCode.BROKEN, name
        capsys.readouterr()
        for rule in rules:
            assert main(["show", rule]) == ExitCode.HOLDS
            assert name in capsys.readouterr().out
    for reference in {rule for rules in audited.values() for rule in rules.values()} - {UNREPORTED}:
        assert main(["show", reference]) == ExitCode.HOLDS
        shown = capsys.readouterr().out
        assert all(name in shown for name, rules in audited.items() if reference in rules.values())


@pytest.mark.parametrize("incident", catalogue(), ids=lambda each: each.id)
def test_an_incident_of_a_release_is_not_without_releases(incident: Incident, capsys: Capture) -> None:
    main(["show", incident.id])
    none = "no release is known to have it" in capsys.readouterr().out
    assert none is not bool(sightings_of(incident) or failures_of(incident))


def failures_of(incident: Incident) -> list[KnownFailure]:
    return [entry for entry in KNOWN_FAILURES.entries if entry.reference in incident.references]


def test_no_known_failure_is_of_a_class_before_its_first_release() -> None:
    """Cosmos3 came with 0.23.0: an earlier release has no such class."""
    (old,) = (entry for entry in KNOWN_FAILURES.entries if entry.reference == "vllm 41485")
    assert "Cosmos3ForConditionalGeneration" not in old.classes


def test_nothing_that_is_heavy_is_imported() -> None:
    program = """
import sys
from deepstack_harness.cli.main import main
main(["affected", "vllm==0.22.1", "--quiet"])
main(["list", "incidents", "answers", "ignore", "the", "image", "--quiet"])
print([name for name in ("torch", "numpy", "requests", "unearth") if name in sys.modules])
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_an_installed_package_that_is_missing_is_reported(capsys: Capture) -> None:
    assert main(["affected", "installed:lmdeploy"]) == ExitCode.USAGE
    assert "is not installed" in capsys.readouterr().err
    with pytest.raises(UsageError):
        open_source("installed:lmdeploy")
