"""Which torch, triton and Python this harness was run with, and what was seen: `fixtures/versions.toml`.

What is supported follows from it: the minor versions of torch that have an entry, and the minor versions of
Python with which one of them was run. `doctor` and the checks of a missing GPU read it.

`TORCH_CHANGES` has changes of torch with which other revisions break a rule: incidents name them.
"""

import importlib.metadata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType

import msgspec
from packaging.specifiers import SpecifierSet
from packaging.version import Version

from deepstack_harness.files import DataFile


class Suite(StrEnum):
    """Cases that were run together, from all of them down to those about torch itself."""

    ALL = "all"
    """`pytest`, without what is marked `slow`: what the environments `tests` of tox run."""
    PRODUCT = "product"
    """`pytest cases --ignore cases/selftest`, without the cases marked `slow` and `gpu`."""
    PYTHON = "python"
    """The harness's own tests that depend on Python: workers, sources, engines, cli, pytest_plugin."""
    FACTS = "facts"
    """`pytest cases/torch_facts`."""

    @property
    def cases(self) -> str:
        """The suite in words, such as `product cases`."""
        return _CASES[self]


_CASES = {
    Suite.ALL: "all tests",
    Suite.PRODUCT: "product cases",
    Suite.PYTHON: "tests that depend on Python",
    Suite.FACTS: "facts of torch",
}


class SuiteRun(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Result of one suite with one torch on one Python.

    `torch` and `python` are whole versions, as in `torch.__version__` and `platform.python_version`.
    `expected` is the number of cases that failed as they should (xfail). `finished` is false where some
    cases did not run to their end, or were not reached, for want of time. `red` has the reason of each
    case that fails; empty where none does. `processor_s` is processor time in seconds, of all processes.
    """

    suite: Suite
    torch: str
    python: str
    passed: int
    skipped: int = 0
    expected: int = 0
    finished: bool = True
    red: tuple[str, ...] = ()
    processor_s: int | None = None

    def __post_init__(self) -> None:
        """Refuse a run in which nothing passed or failed: it measured nothing."""
        if self.passed + len(self.red) <= 0:
            raise ValueError("a run without a case that passed or is red")

    @property
    def answer(self) -> str:
        """What was seen in words, such as `500 passed, 1 red`."""
        counts = {"passed": self.passed, "red": len(self.red)}
        words = [f"{count} {word}" for word, count in counts.items() if count]
        return ", ".join(words if self.finished else [*words, "not finished"])

    @property
    def python_minor(self) -> str:
        """`3.11` for Python 3.11.7."""
        return minor(self.python)


class TorchVersion(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A minor version of torch, the minor version of triton that it is released with, and its runs."""

    torch: str
    triton: str
    runs: tuple[SuiteRun, ...] = ()

    def __post_init__(self) -> None:
        """Refuse the run of another torch, and two runs of one suite on one Python."""
        for run in self.runs:
            if minor(run.torch) != self.torch:
                raise ValueError(f"a run with torch {run.torch} under torch {self.torch}")
        ran = [(run.suite, run.python_minor) for run in self.runs]
        if twice := next((pair for pair in ran if ran.count(pair) > 1), None):
            raise ValueError(f"two runs of {twice[0]} on Python {twice[1]}")

    def run_on(self, python: str) -> SuiteRun | None:
        """Return the run of the largest suite on a version of Python; None where it was not run."""
        order = list(Suite)
        runs = (run for run in self.runs if run.python_minor == minor(python))
        return min(runs, key=lambda run: order.index(run.suite), default=None)


VERSIONS = DataFile("fixtures/versions.toml", "a file of versions that were run", "torch", TorchVersion)


def installed_version(package: str) -> str | None:
    """Return the version of a package by its metadata; None where it is not installed."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def minor(version: str) -> str:
    """Return `2.13` of `2.13.0+cpu`."""
    return ".".join(version.split(".")[:2])


def torch_entry(version: str, entries: Sequence[TorchVersion] | None = None) -> TorchVersion | None:
    """Return the entry of a version of torch; None for a torch that was never run."""
    known = VERSIONS.entries if entries is None else entries
    return next((entry for entry in known if entry.torch == minor(version)), None)


def pythons() -> list[str]:
    """Return the minor versions of Python with which a torch was run, oldest first."""
    return sorted({run.python_minor for entry in VERSIONS.entries for run in entry.runs}, key=Version)


@dataclass(frozen=True)
class TorchChange:
    """A change of torch: `since` is the first minor version that has it, `reason` what it changed."""

    since: str
    reason: str

    def is_in(self, torch: str) -> bool:
        """Return True for a version with it, such as `2.13.0+cpu`; a pre-release counts as its release."""
        return Version(Version(torch).base_version) >= Version(self.since)


TORCH_CHANGES: Mapping[str, TorchChange] = MappingProxyType(
    {
        "graph_inputs": TorchChange(
            "2.12",
            "inputs of a graph come in the order in which they are first used; before, in that of the "
            "arguments.  A size that two inputs share is read from the first: a buffer that is used first "
            "runs all its rows",
        ),
    }
)
"""Name -> change. `cases/torch_facts/test_moved.py` shows each by a call of the installed torch."""


def torch_change(name: str) -> TorchChange:
    """Return a change by name; raises `ValueError` for an unknown one."""
    if name not in TORCH_CHANGES:
        raise ValueError(f"unknown change of torch '{name}'; known are {', '.join(TORCH_CHANGES)}")
    return TORCH_CHANGES[name]


@dataclass(frozen=True)
class TorchReleases:
    """Releases of torch: `since NAME` or `before NAME` of a change, else a specifier such as `>=2.12`."""

    text: str

    def __post_init__(self) -> None:
        """Raise `ValueError` for an unknown change and for a specifier that cannot be parsed."""
        self.has("2.0")

    def has(self, torch: str) -> bool:
        """Return True for a version among them, such as `2.13.0+cpu`."""
        word, _, name = self.text.partition(" ")
        if word in _SIDES:
            return torch_change(name).is_in(torch) is (word == "since")
        return SpecifierSet(self.text).contains(torch, prereleases=True)

    def __str__(self) -> str:
        """Return the releases for people: `2.12 and later`, `before 2.12`, or the specifier."""
        word, _, name = self.text.partition(" ")
        return _SIDES[word].format(torch_change(name).since) if word in _SIDES else self.text


_SIDES = {"since": "{} and later", "before": "before {}"}
