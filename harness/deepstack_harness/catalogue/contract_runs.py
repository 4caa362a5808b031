"""Traces of the whole contract, and the rules that each revision breaks in them: `fixtures/contract.toml`."""

from dataclasses import dataclass
from functools import cache
from pathlib import Path

from deepstack_harness.catalogue.data_files import data
from deepstack_harness.catalogue.incidents import Run
from deepstack_harness.catalogue.versioned import load_toml

SCHEMA_VERSION = 1


@dataclass(frozen=True)
class ContractRuns:
    """A file of contract runs."""

    schema_version: int
    run: tuple[Run, ...]


def load(path: Path) -> ContractRuns:
    """Read a file of contract runs; raises what `load_toml` raises."""
    return load_toml(path, ContractRuns, "a file of contract runs", SCHEMA_VERSION)


@cache
def contract_runs() -> tuple[Run, ...]:
    """Return the contract runs that come with the harness."""
    return load(data("fixtures/contract.toml")).run
