"""The catalogue of faults of the real world: `fixtures/incidents.toml`, and files of other packages.

Another package adds a file of the same form with an entry point in `deepstack_harness.incidents`, whose
value is PACKAGE:FILE (`acme_buffers:incidents.toml`). The file is found and read without importing the
package.

The decisive cases of an incident are the few that show it first. Traces of the whole contract, and the
rules that each revision breaks in them, are in `fixtures/contract.toml`.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from itertools import combinations, groupby
from pathlib import Path

import msgspec

from deepstack_harness.catalogue.known import UPSTREAM, FaultyReleases
from deepstack_harness.catalogue.versions import TorchReleases, torch_change
from deepstack_harness.contract.arm import ArmSpec, Backend
from deepstack_harness.contract.case import PlannedCase
from deepstack_harness.contract.facts import System
from deepstack_harness.contract.names import OURS, Extension, declared
from deepstack_harness.contract.rules import Promise, Rule
from deepstack_harness.contract.trace import Trace
from deepstack_harness.contract.verdicts import Effect
from deepstack_harness.errors import UsageError, is_close, nearest
from deepstack_harness.files import DataFile
from deepstack_harness.text import shortened

DEEPSTACK = System.DEEPSTACK.value
"""The system whose incidents are traces on a buffer."""
STEPS = System.STEPS.value
"""The system whose incidents are compiled regions over a list of calls."""


class Run(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A trace, the arms to play it under, and which rules each revision must break in it.

    `revisions` and `families` narrow the run to some of the incident's; empty means all. `dtype` is played
    instead of float32, where the fault is one of rounding. `gpu`: played only on a CUDA device, because a CPU
    has no such graphs, or shows no more than another run does. `torch` are the releases on which `broken`
    holds, as `versions.TorchReleases` reads them; empty means all.
    """

    trace: str
    arms: tuple[str, ...]
    broken: Mapping[str, tuple[Rule, ...]]
    note: str = ""
    revisions: tuple[str, ...] = ()
    families: tuple[str, ...] = ()
    dtype: str = ""
    gpu: bool = False
    torch: str = ""

    @property
    def about_sources(self) -> bool:
        """True if a class of an engine can be played in place of the revisions: no caller is at fault."""
        return not any("@" in subject for subject in (*self.broken, *self.revisions))

    def __post_init__(self) -> None:
        """Refuse a trace or an arm that cannot be parsed; msgspec adds its place in the file."""
        try:
            Trace.parse(self.trace)
            for arm in self.arms:
                ArmSpec.parse(arm)
            TorchReleases(self.torch)
        except UsageError as error:
            raise ValueError(str(error)) from None


class EngineRun(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Traces, and the rules that they break, in sources of an engine whose payload is an argument.

    They are played under the engine's own graphs: payloads have no address there, no decoder of ours runs.
    """

    package: str
    traces: tuple[str, ...]
    rules: tuple[Rule, ...]

    def __post_init__(self) -> None:
        """Refuse a trace that cannot be parsed, as `Run` does."""
        for trace in self.traces:
            Run(trace, arms=(), broken={})


class RegionRun(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Arms to run the programs of an incident under, and which promises each of them must break there.

    `programs` narrows the run to some of the incident's; empty means all. Every program that `broken`
    leaves out must keep its promises. `input` is the side input that a finding has to name.
    """

    arms: tuple[str, ...]
    broken: Mapping[str, tuple[Promise, ...]]
    note: str = ""
    programs: tuple[str, ...] = ()
    input: str = ""

    def __post_init__(self) -> None:
        """Refuse an arm that cannot be parsed, as `Run` does."""
        try:
            for arm in self.arms:
                ArmSpec.parse(arm)
        except UsageError as error:
            raise ValueError(str(error)) from None


class Script(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The standalone program of an incident.

    The program inlines the semantics of `subject`, one of the incident's faulty revisions, and runs
    them under `arm`. An incident of steps has one of its programs as its subject; any other that plays no
    trace has a variant, and no arm.
    `program` is MODULE:NAME of a right program, `fix` one line of it, and `fault` the statement that the
    script has in its place; the subject of an incident of steps is such a program itself.
    `needs` is what the program needs to run. `grows` allows steps of up to twice the capacity,
    `reloads` allows steps that save and load compiled code.
    """

    subject: str
    arm: str = ""
    program: str = ""
    fault: str = ""
    fix: str = ""
    needs: str = "torch >= 2.10"
    grows: bool = False
    reloads: bool = False


class Incident(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A fault: where it was reported, what shows it, who has it and who does not.

    `references` are `project number`; `rules` are those that name the fault, or `promises` where it is one
    of a compiled region; `faulty` and `fixed` are revisions or mutants, with `@CALLER` after the name where
    the fault, or its absence, is the caller's.
    `symptoms` are what users report, `errors` the texts that they see, `affected` the releases that have the
    fault, in addition to those of `known.LIVE_FAULTS`. `faulty_since` has the change of torch
    (`versions.TORCH_CHANGES`) without which a variant is right. `effects` are what users notice of its
    broken rules or promises, measured on the subject of `script` under its arm; empty where no fact shows it.
    Incidents of another `system` (`deepstack_harness.catalogue.registry.SYSTEMS`) name variants of that
    system, and have neither families nor runs; those of `STEPS` name programs of `registry.HISTORIES`, and
    have a `region` run. Of a `nightly` one, CI plays daily only what is not compiled, and the program.
    """

    id: str
    name: str
    title: str
    references: tuple[str, ...]
    faulty: tuple[str, ...]
    fixed: tuple[str, ...]
    symptom: str
    cause: str
    rules: tuple[Rule, ...] = ()
    promises: tuple[Promise, ...] = ()
    symptoms: tuple[str, ...] = ()
    errors: tuple[str, ...] = ()
    faulty_since: Mapping[str, str] = {}
    effects: tuple[Effect, ...] = ()
    affected: tuple[FaultyReleases, ...] = ()
    families: tuple[str, ...] = ()
    run: tuple[Run, ...] = ()
    system: str = DEEPSTACK
    script: Script | None = None
    nightly: bool = False
    engine: tuple[EngineRun, ...] = ()
    region: tuple[RegionRun, ...] = ()

    def __post_init__(self) -> None:
        """Refuse a buffer's incident without runs, runs of another system, and a script without a fault."""
        if (self.system == DEEPSTACK) != bool(self.run and self.families):
            raise ValueError(
                f"incident {self.id} of system '{self.system}': only '{DEEPSTACK}' has runs and families"
            )
        of_steps = self.system == STEPS
        if of_steps != bool(self.promises and self.region) or of_steps == bool(self.rules):
            raise ValueError(
                f"incident {self.id} of system '{self.system}': '{STEPS}' has promises and region runs, "
                "and any other has rules"
            )
        for name, change in self.faulty_since.items():
            torch_change(change)
            if name not in self.faulty:
                raise ValueError(f"incident {self.id}: '{name}' of 'faulty_since' is none of its faulty ones")
        if self.script is not None:
            self._check_script(self.script)

    def _check_script(self, script: Script) -> None:
        if script.subject not in self.faulty:
            raise ValueError(
                f"the script of incident {self.id} shows '{script.subject}', which is not one of its faulty "
                f"{', '.join(self.faulty)}"
            )
        runs: tuple[Run | RegionRun, ...] = (*self.region, *self.run)
        if self.system not in (STEPS, DEEPSTACK):
            if script.arm:
                raise ValueError(
                    f"the script of incident {self.id} has the arm '{script.arm}', "
                    f"but incidents of system '{self.system}' play no arm"
                )
        elif not any(script.arm in run.arms and run.broken.get(script.subject) for run in runs):
            what = "promise" if self.system == STEPS else "rule"
            raise ValueError(
                f"the script of incident {self.id} runs {script.subject} under the arm '{script.arm}', "
                f"but no run of the incident says that {script.subject} breaks a {what} there"
            )

    @property
    def reported(self) -> bool:
        """True if a real issue or pull request is referenced, and not only sequences of ours."""
        return not all(reference.startswith("sequence ") for reference in self.references)

    @property
    def promised(self) -> tuple[Rule, ...] | tuple[Promise, ...]:
        """The rules, or of a compiled region the promises."""
        return self.rules or self.promises

    def is_faulty(self, name: str, torch: str) -> bool:
        """Return True for a variant or revision that has the fault on a version of torch."""
        change = self.faulty_since.get(name)
        return name in self.faulty and (change is None or torch_change(change).is_in(torch))

    @property
    def revisions(self) -> tuple[str, ...]:
        """Faulty revisions, then fixed ones."""
        return self.faulty + self.fixed

    def runs_of(self, family: str) -> tuple[Run, ...]:
        """Return the runs of a family, or of a variant of one."""
        return tuple(run for run in self.run if not run.families or _is_among(family, run.families))

    def shown_by(self, family: str, trace: Trace, arm: ArmSpec) -> frozenset[Rule]:
        """Return those of its rules that some faulty revision breaks on a trace under an arm, as recorded."""
        runs = (run for run in self.runs_of(family) if run.about_sources and Trace.parse(run.trace) == trace)
        broken = (run.broken.values() for run in runs if arm in map(ArmSpec.parse, run.arms))
        return frozenset(rule for of_run in broken for rules in of_run for rule in rules) & set(self.rules)

    def has_family(self, family: str) -> bool:
        """Return whether the incident has a family, or the one that `family` is a variant of."""
        return _is_among(family, self.families)

    @property
    def about_sources(self) -> bool:
        """True if a class of an engine can have the fault: in some run no caller is at fault."""
        return any(run.about_sources for run in self.run)


def _is_among(family: str, families: tuple[str, ...]) -> bool:
    return family in families or family.partition(":")[0] in families


INCIDENTS = DataFile("fixtures/incidents.toml", "a catalogue of incidents", "incident", Incident)


@dataclass(frozen=True)
class IncidentFile:
    """Incidents of one distribution; `broken` is the reason why the file could not be read.

    `name` is that of the entry point, empty for our own file.
    """

    distribution: str
    name: str = ""
    incidents: tuple[Incident, ...] = ()
    broken: str = ""


@cache
def incident_files() -> tuple[IncidentFile, ...]:
    """Read the harness's own file, then those of other packages, of which any may be broken."""
    own = IncidentFile(OURS, incidents=INCIDENTS.entries)
    return (own, *map(_read_extension, declared("incidents")))


def _read_extension(extension: Extension) -> IncidentFile:
    try:
        incidents = INCIDENTS.read(_extension_file(extension))
    except UsageError as error:
        return IncidentFile(
            extension.distribution,
            extension.name,
            broken=f"incidents '{extension.name}' of {extension.distribution} cannot be read: {error}",
        )
    return IncidentFile(extension.distribution, extension.name, incidents)


def _extension_file(extension: Extension) -> Path:
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
    return readable_incidents()


def readable_incidents() -> tuple[Incident, ...]:
    """Return the incidents of every file that can be read: a list does not need the others."""
    return tuple(incident for file in incident_files() for incident in file.incidents)


def clashes(distribution: str | None = None) -> Iterator[str]:
    """Yield a sentence for each id or short name that two files have, or `distribution`'s and another."""
    for first, second in combinations(incident_files(), 2):
        if distribution not in (None, first.distribution, second.distribution):
            continue
        taken = {name for incident in first.incidents for name in (incident.id, incident.name)}
        for incident in second.incidents:
            for name in {incident.id, incident.name} & taken:
                yield (
                    f"incident '{name}' is declared by {first.distribution} and by {second.distribution}: "
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
    incidents = readable_incidents()
    matches = [incident for incident in incidents if wanted in _names_of(incident)]
    if len(matches) == 1:
        return matches[0]
    if matches:
        full = [
            reference
            for incident in matches
            for reference in incident.references
            if reference.endswith(f" {wanted}")
        ]
        raise UsageError(f"incident '{text}' is ambiguous: write one of {', '.join(full)}")
    reports = (report for report in UPSTREAM.entries if report.reason and report.reference == wanted)
    if report := next(reports, None):
        raise UsageError(f"'{text}' is no incident: {report.reason}")
    raise UnknownIncident(wanted, incidents)


class UnknownIncident(UsageError):
    """No incident has the name; `is_near` is True where an existing name is spelled much like it."""

    def __init__(self, name: str, incidents: Sequence[Incident]) -> None:
        """Name the three nearest incidents in one line."""
        owners = {alias: incident for incident in incidents for alias in sorted(_names_of(incident))}
        near = nearest(name, list(owners))
        three = list(dict.fromkeys(f"{owners[alias].id} ({owners[alias].name})" for alias in near))[:3]
        unread = "".join(f"; {file.broken}" for file in incident_files() if file.broken)
        super().__init__(
            f"unknown incident '{shortened(name, 200)}'; nearest are {', '.join(three)}; "
            f"'list incidents' has all{unread}"
        )
        self.is_near = bool(near) and is_close(name, near[0])


def _names_of(incident: Incident) -> set[str]:
    numbers = {reference.split()[-1] for reference in incident.references}
    return {incident.id, incident.name, *incident.references, *numbers}


_STAGES = ({Backend.NONE}, {Backend.EAGER, Backend.AOT_EAGER}, {Backend.INDUCTOR, Backend.H200})
"""Uncompiled; Dynamo without code generation; Inductor, whose first compile in a process costs 6 to 20 s."""

Pair = tuple[PlannedCase, PlannedCase]
"""A faulty case, and a correct one on the same trace under the same arm."""


def decisive(incident: Incident, plan: Iterable[PlannedCase]) -> list[PlannedCase]:
    """Return the cheapest cases of an incident's plan that show it, in the order of the plan.

    These are one pair per stage (uncompiled, only Dynamo, Inductor) as far as the incident breaks its rules
    there, and one more for each of its rules that these pairs do not break. The plan is that of
    `plan_incident`: cheap backends first.
    """
    pairs = list(_pairs(incident, plan))
    of_stages = ([pair for pair in pairs if pair[0].case.arm.backend in stage] for stage in _STAGES)
    chosen = [
        max(of_stage, key=lambda pair: len(_rules_shown(incident, pair[0])))
        for of_stage in of_stages
        if of_stage
    ]
    for rule in incident.rules:
        if not any(rule in _rules_shown(incident, pair[0]) for pair in chosen):
            chosen += [pair for pair in pairs if rule in _rules_shown(incident, pair[0])][:1]
    # A pair may have been chosen for two reasons.
    wanted = {planned for pair in chosen for planned in pair}
    return [planned for pair in pairs for planned in pair if planned in wanted]


def decisive_of_source(plan: Sequence[PlannedCase]) -> list[PlannedCase]:
    """Return the cases of a source's plan that need no Inductor, which takes half of the processor time.

    Every trace is played: a class may have the fault on any of them. A trace that only Inductor arms play is
    played under the first of them.
    """
    without_inductor = [
        planned
        for planned in plan
        if planned.case.arm.backend is not Backend.INDUCTOR and not planned.is_control
    ]
    with_inductor = [planned for planned in plan if planned.case.arm.backend is Backend.INDUCTOR]
    played = {planned.case.trace for planned in without_inductor}
    first_of = {planned.case.trace: planned for planned in reversed(with_inductor)}
    only_inductor = [planned for trace, planned in first_of.items() if trace not in played]
    return [*without_inductor, *only_inductor]


def cheapest_of_source(incident: Incident, family: str, plan: Sequence[PlannedCase]) -> list[PlannedCase]:
    """Return the fewest cases of a source's plan that put each rule of the incident to the test, cheap first.

    A trace is played under the first arm that shows a rule by the catalogue's record of the faulty revisions.
    Inductor is used only where no other arm shows the rule on that trace. The plan is that of `plan_source`;
    where no case of it shows the fault by that record, these are the cases of `decisive_of_source`.
    """
    shown: dict[Trace, frozenset[Rule]] = {}
    chosen = []
    for planned in plan:
        trace = planned.case.trace
        rules = incident.shown_by(family, trace, planned.case.arm)
        if not planned.is_control and not rules <= shown.get(trace, frozenset()):
            shown[trace] = shown.get(trace, frozenset()) | rules
            chosen.append(planned)
    return chosen or decisive_of_source(plan)


def _pairs(incident: Incident, plan: Iterable[PlannedCase]) -> Iterator[Pair]:
    """Yield for each trace and arm the faulty case that breaks most rules there, and a correct one."""

    def place(planned: PlannedCase) -> tuple[Trace, ArmSpec, str]:
        return planned.case.trace, planned.case.arm, planned.case.dtype

    def rules_shown(planned: PlannedCase) -> int:
        return len(_rules_shown(incident, planned))

    # The subject that the incident's program shows comes first.
    subjects = [*([incident.script.subject] if incident.script else []), *incident.faulty]
    for _, group in groupby((planned for planned in plan if not planned.is_control), key=place):
        of_subject = {planned.case.subject: planned for planned in group}
        faulty = [of_subject[name] for name in subjects if name in of_subject]
        # The fix that a reference names comes first, then the others, the last one first.
        numbers = {reference.split()[-1] for reference in incident.references}
        named = [
            subject for subject in incident.fixed if subject.partition("@")[0].removeprefix("pr") in numbers
        ]
        fixed = next(
            (of_subject[name] for name in [*named, *reversed(incident.fixed)] if name in of_subject), None
        )
        if fixed is not None and any(map(rules_shown, faulty)):
            yield max(faulty, key=rules_shown), fixed


def _rules_shown(incident: Incident, faulty: PlannedCase) -> frozenset[Rule]:
    return (faulty.must_break or frozenset()) & frozenset(incident.rules)


CONTRACT_RUNS = DataFile("fixtures/contract.toml", "a file of contract runs", "run", Run)
"""Traces of the whole contract, and the rules that each revision breaks in them."""
