"""Known failures: which entry speaks of which version, and files that cannot be used."""

from pathlib import Path

import pytest
from packaging.version import Version

from deepstack_harness.catalogue.known_failures import KnownFailure, known_failures, known_of, load
from deepstack_harness.catalogue.releases import covers
from deepstack_harness.contract.case import Regime
from deepstack_harness.contract.rules import Rule
from deepstack_harness.errors import UsageError

KNOWN = KnownFailure("vllm", ">=0.20,<0.23", ("*",), (Rule.R1,), "vllm 43602")
THERE = {Rule.R1: "vllm 43602"}


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


def test_of_an_unknown_version_nothing_is_known() -> None:
    assert not covers(">=0", None)
    assert known_of("vllm", None, "AnyModel", [KNOWN]) == {}


def test_an_entry_speaks_of_its_package_and_its_classes_alone() -> None:
    version = Version("0.22.1")
    assert known_of("vllm", version, "AnyModel", [KNOWN]) == THERE
    assert known_of("sglang", version, "AnyModel", [KNOWN]) == {}
    this = KnownFailure("vllm", ">=0.20", ("This",), (Rule.R1,), "vllm 43602")
    assert known_of("vllm", version, "This", [this]) == THERE
    assert known_of("vllm", version, "That", [this]) == {}


def test_another_regime_or_shape_of_a_known_rule_is_new() -> None:
    entry = KnownFailure(
        "vllm", ">=0.20", ("*",), (Rule.R5,), "unreported", regimes=(Regime.LIVE,), shape=("rows",)
    )
    known = known_of("vllm", Version("0.22.1"), "AnyModel", [entry])
    assert known.covers(Rule.R5, Regime.LIVE, "rows")
    assert not known.covers(Rule.R5, Regime.CAPTURED, "rows")
    assert not known.covers(Rule.R5, Regime.LIVE, "calls")
    assert known_of("vllm", Version("0.22.1"), "AnyModel", [KNOWN]).covers(Rule.R1, Regime.CAPTURED, "rows")


def test_every_entry_that_comes_along_names_its_package() -> None:
    packages = {"vllm", "vllm-omni", "sglang", "tpu-inference", "vllm-ascend"}
    assert {entry.package for entry in known_failures()} == packages


ENTRY = """\
schema_version = 3
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
        ("schema_version = 1\nfailure = []\n", "schema_version 1, this harness reads 3"),
        (ENTRY.format(package=VLLM, releases="newish", rule="R1"), "newish"),
        (ENTRY.format(package=VLLM, releases=">=1", rule="R99"), "R99"),
        (ENTRY.format(package="", releases=">=1", rule="R1"), "required field `package`"),
        ("not toml at all", "is not a file of known failures"),
    ],
)
def test_a_bad_file_is_refused_with_the_entry(tmp_path: Path, text: str, quoted: str) -> None:
    path = tmp_path / "known.toml"
    path.write_text(text)
    with pytest.raises(UsageError, match=quoted):
        load(path)
