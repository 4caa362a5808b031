"""The catalogue of faults of the real world: `fixtures/incidents.toml`, and files of other packages.

Another package adds a file of the same form with an entry point in `deepstack_harness.incidents`, whose
value is PACKAGE:FILE (`acme_buffers:incidents.toml`).  The file is found and read without importing the
package.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from itertools import combinations
from pathlib import Path

from deepstack_harness.catalogue.data_files import data
from deepstack_harness.catalogue.extensions import OURS, Extension, declared
from deepstack_harness.catalogue.upstream import reports
from deepstack_harness.catalogue.versioned import load_toml
from deepstack_harness.contract.arm_spec import ArmSpec
from deepstack_harness.contract.facts.systems import System
from deepstack_harness.contract.rules import Rule
from deepstack_harness.contract.trace import Trace
from deepstack_harness.errors import UsageError, unknown_name

SCHEMA_VERSION = 1

DEEPSTACK = System.DEEPSTACK.value
"""The system whose incidents are traces on a buffer."""


@dataclass(frozen=True)
class Run:
    """A trace, the arms to play it under, and which rules each revision must break in it.

    `revisions` and `families` narrow the run to some of the incident's; empty means all.
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
        """True if a class of an engine can be played in place of the revisions: no caller is at fault."""
        return not any("@" in subject for subject in (*self.broken, *self.revisions))

    def __post_init__(self) -> None:
        """Refuse a trace or an arm that cannot be parsed; msgspec adds where in the file it stands."""
        try:
            Trace.parse(self.trace)
            for arm in self.arms:
                ArmSpec.parse(arm)
        except UsageError as error:
            raise ValueError(str(error)) from None


@dataclass(frozen=True)
class EngineRun:
    """Traces, and the rules that they break, in sources of an engine whose payload is an argument.

    They are played under its own graphs: no answer has an address there, and no decoder of ours runs.
    """

    package: str
    traces: tuple[str, ...]
    rules: tuple[Rule, ...]

    def __post_init__(self) -> None:
        """Refuse a trace that cannot be parsed, as `Run` does."""
        for trace in self.traces:
            Run(trace, arms=(), broken={})


@dataclass(frozen=True)
class Script:
    """The standalone program of an incident.

    The program inlines the semantics of `subject`, one of the incident's faulty revisions, and runs
    them under `arm`.  An incident that plays no trace has a variant as its subject, and no arm.
    `needs` is what the program needs to run.  `grows` allows steps of up to twice the capacity,
    `reloads` allows steps that save and load compiled code.
    """

    subject: str
    arm: str = ""
    needs: str = "torch >= 2.10"
    grows: bool = False
    reloads: bool = False


@dataclass(frozen=True)
class Incident:
    """A fault: where it was reported, what shows it, who has it and who does not.

    `references` are `project number`; `rules` are those that name the fault; `faulty` and `fixed` are
    revisions or mutants, with `@CALLER` after the name where the fault, or its absence, is the
    caller's.  Incidents of another `system` (`deepstack_harness.catalogue.registry.SYSTEMS`) name
    variants of that system, and have neither families nor runs.  Of a `nightly` one CI plays daily
    what is not compiled, and runs the program alone.
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
    script: Script | None = None
    nightly: bool = False
    engine: tuple[EngineRun, ...] = ()

    def __post_init__(self) -> None:
        """Refuse a buffer's incident without runs, runs of another system, and a script without a fault."""
        if (self.system == DEEPSTACK) != bool(self.run and self.families):
            raise ValueError(
                f"incident {self.id} of system '{self.system}': only '{DEEPSTACK}' has runs and families"
            )
        if self.script is not None:
            self._check_script(self.script)

    def _check_script(self, script: Script) -> None:
        if script.subject not in self.faulty:
            raise ValueError(
                f"the script of incident {self.id} shows '{script.subject}', which is not one of its faulty "
                f"{', '.join(self.faulty)}"
            )
        if self.system != DEEPSTACK:
            if script.arm:
                raise ValueError(
                    f"the script of incident {self.id} has the arm '{script.arm}', "
                    f"but incidents of system '{self.system}' play no arm"
                )
        elif not any(script.arm in run.arms and run.broken.get(script.subject) for run in self.run):
            raise ValueError(
                f"the script of incident {self.id} runs {script.subject} under the arm '{script.arm}', "
                f"but no run of the incident says that {script.subject} breaks a rule there"
            )

    @property
    def reported(self) -> bool:
        """True if a real issue or pull request is referenced, and not only sequences of ours."""
        return not all(reference.startswith("sequence ") for reference in self.references)

    @property
    def revisions(self) -> tuple[str, ...]:
        """Faulty revisions, then fixed ones."""
        return self.faulty + self.fixed

    def runs_of(self, family: str) -> tuple[Run, ...]:
        """Return the runs of a family, or of a variant of one."""
        return tuple(run for run in self.run if not run.families or _is_among(family, run.families))

    def has_family(self, family: str) -> bool:
        """Return whether the incident has a family, or the one that `family` is a variant of."""
        return _is_among(family, self.families)

    @property
    def about_sources(self) -> bool:
        """True if a class of an engine can have the fault: in some run no caller is at fault."""
        return any(run.about_sources for run in self.run)


def _is_among(family: str, families: tuple[str, ...]) -> bool:
    return family in families or family.partition(":")[0] in families


@dataclass(frozen=True)
class Catalogue:
    """A file of incidents."""

    schema_version: int
    incident: tuple[Incident, ...]


@dataclass(frozen=True)
class IncidentFile:
    """Incidents of one distribution; `broken` says why the file could not be read.

    `name` is that of the entry point, empty for our own file.
    """

    distribution: str
    name: str = ""
    incidents: tuple[Incident, ...] = ()
    broken: str = ""

    def declares(self, extension: Extension) -> bool:
        """Return whether the file is that of an entry point."""
        return (self.distribution, self.name) == (extension.distribution, extension.name)


def load(path: Path) -> Catalogue:
    """Read a file of incidents; raises what `load_toml` raises."""
    return load_toml(path, Catalogue, "a catalogue of incidents", SCHEMA_VERSION)


@cache
def incident_files() -> tuple[IncidentFile, ...]:
    """Read the harness's own file, then those of other packages, of which any may be broken."""
    own = IncidentFile(OURS, incidents=load(data("fixtures/incidents.toml")).incident)
    return (own, *map(_read, declared("incidents")))


def _read(extension: Extension) -> IncidentFile:
    try:
        incidents = load(_path(extension)).incident
    except UsageError as error:
        return IncidentFile(
            extension.distribution,
            extension.name,
            broken=f"incidents '{extension.name}' of {extension.distribution} cannot be read: {error}",
        )
    return IncidentFile(extension.distribution, extension.name, incidents)


def _path(extension: Extension) -> Path:
    """Return the path of PACKAGE:FILE without importing the package."""
    if extension.broken:
        raise UsageError(extension.broken)
    package, _, name = extension.target.partition(":")
    top, *inner = package.split(".")
    spec = find_spec(top)
    places = (spec.submodule_search_locations if spec else None) or []
    paths = [Path(place, *inner, name) for place in places]
    for path in paths:
        if path.is_file():
            return path
    raise UsageError(f"package '{package}' has no file '{name}'")


@cache
def catalogue() -> tuple[Incident, ...]:
    """Return the incidents of the harness, then those of other installed packages.

    Raises `UsageError` for a file that cannot be read, and for an id or a short name that two packages
    have: a run over the whole catalogue must not leave out incidents silently.
    """
    for file in incident_files():
        if file.broken:
            raise UsageError(file.broken)
    for clash in clashes():
        raise UsageError(clash)
    return tuple(incident for file in incident_files() for incident in file.incidents)


def clashes(distribution: str | None = None) -> Iterator[str]:
    """Yield a sentence for each id or short name that two files have, or `distribution`'s and another."""
    for one, other in combinations(incident_files(), 2):
        if distribution not in (None, one.distribution, other.distribution):
            continue
        taken = {name for incident in one.incidents for name in (incident.id, incident.name)}
        for incident in other.incidents:
            for name in {incident.id, incident.name} & taken:
                yield (
                    f"incident '{name}' is declared by {one.distribution} and by {other.distribution}: "
                    "rename one of them, or uninstall one of the packages"
                )


def find(text: str) -> Incident:
    """Return an incident by id, short name or any reference (`43617`, `vllm 43617`, `vllm#43617`).

    Raises `UsageError` for an unknown or ambiguous one, and for a name that two packages have.
    """
    wanted = re.sub(r"[#\s]+", " ", text.strip())
    for clash in clashes():
        if clash.startswith(f"incident '{wanted}' "):
            raise UsageError(clash)
    known = [incident for file in incident_files() for incident in file.incidents]
    found = [incident for incident in known if wanted in _names(incident)]
    if len(found) == 1:
        return found[0]
    if found:
        full = [
            reference
            for incident in found
            for reference in incident.references
            if reference.endswith(f" {wanted}")
        ]
        raise UsageError(f"incident '{text}' is ambiguous: write one of {', '.join(full)}")
    if report := next((one for one in reports().values() if one.reason and one.reference == wanted), None):
        raise UsageError(f"'{text}' is no incident: {report.reason}")
    unread = "".join(f"; {file.broken}" for file in incident_files() if file.broken)
    listed = ", ".join(f"{incident.id} ({incident.name})" for incident in known)
    names = sorted({name for incident in known for name in _names(incident)})
    raise unknown_name("incident", wanted, names, f"{listed}, and all their references{unread}")


def _names(incident: Incident) -> set[str]:
    numbers = {reference.split()[-1] for reference in incident.references}
    return {incident.id, incident.name, *incident.references, *numbers}
