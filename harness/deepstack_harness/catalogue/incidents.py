"""The catalogue of faults of the real world, read from `fixtures/incidents.toml`."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from deepstack_harness.catalogue.data_files import data
from deepstack_harness.catalogue.versioned import load_toml
from deepstack_harness.contract.arm_spec import ArmSpec
from deepstack_harness.contract.facts.systems import System
from deepstack_harness.contract.rules import Rule
from deepstack_harness.contract.trace import Trace
from deepstack_harness.errors import UsageError

SCHEMA_VERSION = 1

DEEPSTACK = System.DEEPSTACK.value
"""The system whose incidents are traces on a buffer."""


@dataclass(frozen=True)
class Run:
    """A trace, the arms to play it under, and which rules each revision must break there.

    `revisions` and `families` narrow it to some of the incident's; empty means all.
    `dtype` is played instead of float32, where the fault is one of rounding.
    """

    trace: str
    arms: tuple[str, ...]
    broken: Mapping[str, tuple[Rule, ...]]
    note: str = ""
    revisions: tuple[str, ...] = ()
    families: tuple[str, ...] = ()
    dtype: str = ""

    @property
    def about_sources(self) -> bool:
        """Whether a vLLM class can be played in place of the revisions: no caller of ours is at fault."""
        return not any("@" in subject for subject in self.broken)

    def __post_init__(self) -> None:
        """Refuse a trace or an arm that does not read; msgspec then says where it stands."""
        try:
            Trace.parse(self.trace)
            [ArmSpec.parse(arm) for arm in self.arms]
        except UsageError as error:
            raise ValueError(str(error)) from None


@dataclass(frozen=True)
class Incident:
    """One fault: where it was reported, what shows it, who has it and who does not.

    `references` are `project number`; `rules` are those that name the fault;
    `faulty` and `fixed` are revisions (or mutants), each with `@CALLER` behind it
    where the fault, or its absence, is the caller's.  Incidents of another `system`
    (`deepstack_harness.catalogue.registry.SYSTEMS`) name its variants, and have neither families nor runs.
    """

    id: str
    name: str
    title: str
    references: tuple[str, ...]
    rules: tuple[Rule, ...]
    faulty: tuple[str, ...]
    fixed: tuple[str, ...]
    symptom: str
    cause: str
    families: tuple[str, ...] = ()
    run: tuple[Run, ...] = ()
    system: str = DEEPSTACK

    def __post_init__(self) -> None:
        """Refuse a buffer's incident that plays nothing, and runs where nothing is played."""
        if (self.system == DEEPSTACK) != bool(self.run and self.families):
            raise ValueError(
                f"incident {self.id} of system '{self.system}': only '{DEEPSTACK}' has runs and families"
            )

    @property
    def reported(self) -> bool:
        """Whether someone met it; references of the others are sequences that showed it here."""
        return not all(reference.startswith("sequence ") for reference in self.references)

    @property
    def revisions(self) -> tuple[str, ...]:
        """Known-bad first."""
        return self.faulty + self.fixed

    def runs_of(self, family: str) -> tuple[Run, ...]:
        """The runs that a family, or a variant of one, takes part in."""
        return tuple(run for run in self.run if not run.families or _is_among(family, run.families))

    def has_family(self, family: str) -> bool:
        """Whether a family, or the one that it is a variant of, is the incident's."""
        return _is_among(family, self.families)

    @property
    def about_sources(self) -> bool:
        """Whether a vLLM class can have it: not where a caller of ours is at fault."""
        return any(run.about_sources for run in self.run)


def _is_among(family: str, families: tuple[str, ...]) -> bool:
    return family in families or family.partition(":")[0] in families


@dataclass(frozen=True)
class Catalogue:
    """The whole file."""

    schema_version: int
    incident: tuple[Incident, ...]


def load(path: Path) -> Catalogue:
    """Read a catalogue of incidents; raises what `load_toml` raises."""
    return load_toml(path, Catalogue, "a catalogue of incidents", SCHEMA_VERSION)


@cache
def catalogue() -> tuple[Incident, ...]:
    """The incidents that come with the harness."""
    return load(data("fixtures/incidents.toml")).incident


def find(text: str) -> Incident:
    """An incident by id, short name or any reference (`43617`, `vllm 43617`, `vllm#43617`).

    Raises `UsageError` for an unknown or ambiguous one.
    """
    wanted = re.sub(r"[#\s]+", " ", text.strip())
    found = [incident for incident in catalogue() if wanted in _names(incident)]
    if len(found) == 1:
        return found[0]
    if found:
        full = [
            reference for one in found for reference in one.references if reference.endswith(f" {wanted}")
        ]
        raise UsageError(f"incident '{text}' is ambiguous: say one of {', '.join(full)}")
    known = ", ".join(f"{incident.id} ({incident.name})" for incident in catalogue())
    raise UsageError(f"unknown incident '{text}'; known are {known}, and every reference of theirs")


def _names(incident: Incident) -> set[str]:
    numbers = {reference.split()[-1] for reference in incident.references}
    return {incident.id, incident.name, *incident.references, *numbers}
