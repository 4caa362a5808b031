"""The versions that were run: the result of an entry for a torch and a Python, and files that are refused."""

from pathlib import Path

import pytest

from deepstack_harness.catalogue.versions import (
    TORCH_CHANGES,
    VERSIONS,
    Suite,
    SuiteRun,
    TorchReleases,
    TorchVersion,
    minor,
    pythons,
    torch_entry,
)
from deepstack_harness.errors import UsageError

FACTS = SuiteRun(Suite.FACTS, "2.14.1", "3.11.7", 200)
PRODUCT = SuiteRun(Suite.PRODUCT, "2.14.1", "3.11.9", 500, red=("test_x: torch crashes",))
ENTRY = TorchVersion("2.14", "3.8", runs=(FACTS, PRODUCT))


@pytest.mark.parametrize(
    ("version", "expected"),
    [("2.13.0+cpu", "2.13"), ("2.15.0a0+git1", "2.15"), ("2.10", "2.10"), ("3.13.0rc2", "3.13")],
)
def test_the_minor_version_has_two_numbers(version: str, expected: str) -> None:
    assert minor(version) == expected


def test_the_run_of_the_largest_suite_on_a_python_is_reported() -> None:
    assert ENTRY.run_on("3.11.0") is PRODUCT
    assert ENTRY.run_on("3.1.11") is None


def test_a_torch_is_known_by_its_minor_version() -> None:
    assert torch_entry("2.14.9+cpu", [ENTRY]) is ENTRY
    assert torch_entry("2.1.4", [ENTRY]) is None
    assert torch_entry("3.14", [ENTRY]) is None


@pytest.mark.parametrize(
    ("run", "expected"),
    [
        (FACTS, "200 passed"),
        (PRODUCT, "500 passed, 1 red"),
        (SuiteRun(Suite.FACTS, "2.14.1", "3.11.7", 3, skipped=9, finished=False), "3 passed, not finished"),
        (SuiteRun(Suite.FACTS, "2.14.1", "3.11.7", 0, red=("a: b", "c: d")), "2 red"),
    ],
)
def test_what_is_red_or_did_not_finish_is_reported_with_what_passed(run: SuiteRun, expected: str) -> None:
    assert run.answer == expected


def test_entries_are_in_order_of_their_release() -> None:
    numbers = [int(entry.torch.removeprefix("2.")) for entry in VERSIONS.entries]
    assert numbers == sorted(set(numbers))
    assert pythons()[0] == "3.11"


RUN = '{suite = "facts", torch = "2.14.1", python = "3.11.7", passed = 3}'
FILE = f'schema_version = 1\n[[torch]]\ntorch = "2.14"\ntriton = "3.8"\nruns = [{RUN}]\n'


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("passed = 3", "passed = 0", "a run without a case that passed or is red"),
        ('torch = "2.14.1"', 'torch = "2.15.0"', "a run with torch 2.15.0 under torch 2.14"),
        (RUN, f"{RUN}, {RUN}", "two runs of facts on Python 3.11"),
        ('"facts"', '"most"', "Invalid enum value 'most'"),
        ("passed = 3", "passed = 3, took = 1", "unknown field `took`"),
        ("triton", "tritn", "unknown field `tritn`"),
    ],
)
def test_a_wrong_file_is_refused_with_the_entry(tmp_path: Path, old: str, new: str, said: str) -> None:
    path = tmp_path / "versions.toml"
    path.write_text(FILE)
    assert VERSIONS.read(path)[0].runs[0].passed == 3
    assert old in FILE
    path.write_text(FILE.replace(old, new))
    with pytest.raises(UsageError, match=r"versions\.toml is not a file of versions that were run") as error:
        VERSIONS.read(path)
    assert said in str(error.value)


@pytest.mark.parametrize(
    ("text", "torch", "among", "words"),
    [
        ("since graph_inputs", "2.12.0+cpu", True, "2.12 and later"),
        ("since graph_inputs", "2.11.2", False, "2.12 and later"),
        ("before graph_inputs", "2.11.2", True, "before 2.12"),
        # A nightly build towards the release has the change.
        ("before graph_inputs", "2.12.0.dev20260101", False, "before 2.12"),
        ("since graph_inputs", "2.12.0a0+git1", True, "2.12 and later"),
        (">=2.13", "2.13.0+cpu", True, ">=2.13"),
        (">=2.13", "2.12.1", False, ">=2.13"),
        ("", "2.12.1", True, ""),
    ],
)
def test_releases_of_torch_are_those_of_a_change_or_a_specifier(
    text: str, torch: str, among: bool, words: str
) -> None:
    releases = TorchReleases(text)
    assert (releases.has(torch), str(releases)) == (among, words)


def test_a_change_of_torch_is_of_a_release_that_was_run() -> None:
    assert {change.since for change in TORCH_CHANGES.values()} <= {entry.torch for entry in VERSIONS.entries}
