"""Releases that have a fault: which ones an incident has, and what is known of one release.

Nothing is played. `fixtures/incidents.toml` and `live_faults.toml` state which releases have a fault, as
range, reach and evidence; `known_failures.toml` and `known_carriers.toml` which releases were looked at.
"""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name
from packaging.version import Version

from deepstack_harness.catalogue.incidents import Incident, readable_incidents
from deepstack_harness.catalogue.known import (
    KNOWN_CARRIERS,
    KNOWN_FAILURES,
    LIVE_FAULTS,
    REACHES,
    FaultyReleases,
    KnownFailure,
    LiveFault,
    Seen,
)
from deepstack_harness.catalogue.orders import LATENT, covers
from deepstack_harness.contract.verdicts import Effect


@dataclass(frozen=True)
class Sighting:
    """Releases with a fault: those of an incident, of a live fault, or of a live fault of an incident."""

    releases: FaultyReleases
    incident: Incident | None = None

    @property
    def fault(self) -> LiveFault | None:
        """The live fault, where the releases are those of one."""
        return self.releases if isinstance(self.releases, LiveFault) else None

    @property
    def title(self) -> str:
        """One line: that of the live fault, which is about this package, else that of the incident."""
        if self.fault is not None:
            return self.fault.title
        assert self.incident is not None
        return self.incident.title

    @property
    def effects(self) -> tuple[Effect, ...]:
        """What users notice, as the program of the incident shows it; empty where nothing measured it."""
        return self.incident.effects if self.incident else ()

    @property
    def fixed_in(self) -> str:
        """The first release without the fault; empty where none is known."""
        return self._end("<")

    @property
    def newest_looked_at(self) -> str:
        """The newest release that was looked at and has the fault; empty where a later one is without it."""
        return self._end("<=", "==")

    def _end(self, *operators: str) -> str:
        bounds = SpecifierSet(self.releases.versions)
        return next((bound.version for bound in bounds if bound.operator in operators), "")


def sightings_of(incident: Incident) -> tuple[Sighting, ...]:
    """Return the releases that have an incident: its own, then those of the live faults that name it."""
    own = [Sighting(releases, incident) for releases in incident.affected]
    live = [Sighting(fault, incident) for fault in LIVE_FAULTS.entries if fault.incident == incident.id]
    return (*own, *live)


def every_sighting() -> tuple[Sighting, ...]:
    """Return the sightings of all incidents, then those of live faults that are no incident."""
    known = [sighting for incident in readable_incidents() for sighting in sightings_of(incident)]
    return (*known, *(Sighting(fault) for fault in LIVE_FAULTS.entries if not fault.incident))


def audit_command(package: str, release: str) -> str:
    """Return the words of an `audit` of a release; `package` is a normalised name.

    A plugin of another engine gets the base with which one of its faults was reproduced.
    """
    commands = [
        command
        for fault in LIVE_FAULTS.entries
        for command in fault.commands
        if canonicalize_name(fault.package) == package and command.startswith("audit ")
    ]
    bases = (command.partition(" --base ")[2] for command in commands)
    base = next(filter(None, bases), "")
    return f"audit --source {package}=={release}" + (f" --base {base}" if base else "")


def models_of(sightings: Iterable[Sighting]) -> tuple[str, ...]:
    """Return the models that sightings are about, each once."""
    return tuple(dict.fromkeys(model for sighting in sightings for model in sighting.releases.models))


def packages() -> tuple[str, ...]:
    """Return the normalised names of all packages that something is known of, each once."""
    names = [sighting.releases.package for sighting in every_sighting()]
    names += [failure.package for failure in KNOWN_FAILURES.entries]
    names += [carrier.package for carrier in KNOWN_CARRIERS.entries]
    return tuple(dict.fromkeys(map(canonicalize_name, names)))


_RUN = re.compile(r"[a-z]+|\d+")
_ACTIVE = re.compile(r"\ba\d+b\b")
"""The active parameters of a mixture of experts, as in `Qwen3-VL-30B-A3B`."""


def names_model(text: str, model: str) -> bool:
    """Return whether a text names a model, in any case and with any separators.

    `Qwen/qwen3_vl-8b` names `Qwen3-VL`, and `Qwen3-VL-30B-A3B` names `Qwen3-VL-MoE` too.
    """
    text = text.lower()
    runs = _RUN.findall(model.lower())
    if runs[-1] == "moe" and _ACTIVE.search(text):
        runs = runs[:-1]
    end = r"(?!\d)" if runs[-1].isdigit() else r"(?![a-z])"
    return re.search(rf"(?<![a-z0-9]){'[-_. ]?'.join(runs)}{end}", text) is not None


def models_named(text: str) -> tuple[str, ...]:
    """Return the models of the catalogue that a text names."""
    return tuple(model for model in models_of(every_sighting()) if names_model(text, model))


_HUMP = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")
"""Between two words of a class name, as in `Qwen3VLMoe` and `CohereCompass`."""


def broken_classes(package: str, version: Version, model: str | None = None) -> dict[str, list[KnownFailure]]:
    """Return the classes of a release that break rules in an `audit`, each with what is known of it.

    `model` is a class, or a name that users give a model; the folder in front of a class may be left out.
    """
    found: dict[str, list[KnownFailure]] = {}
    for failure in KNOWN_FAILURES.entries:
        for name in failure.classes:
            if failure.is_about(canonicalize_name(package), version, name) and (
                model is None or _is_class(name, model) or _same_model(model, in_words(name))
            ):
                found.setdefault(name, []).append(failure)
    return found


def known_class(name: str) -> bool:
    """Return whether something is known of a class of any release, by its name."""
    return any(_is_class(known, name) for failure in KNOWN_FAILURES.entries for known in failure.classes)


def _is_class(name: str, wanted: str) -> bool:
    return wanted in (name, name.rpartition(".")[2])


def in_words(model_class: str) -> str:
    """Return the name of a class in words, by which it names a model: `Qwen3 VL Moe`."""
    return _HUMP.sub(" ", model_class)


@dataclass(frozen=True)
class ReleaseAnswer:
    """What is known of one release.

    `affected` have a fault that settings lead to, or whose reach is not known. `latent` have one that no
    call order of the engine leads to. `possible` are incidents whose releases nobody wrote down, or that have
    no known fix while the release is newer than all that were looked at. `earlier` are faults of older
    releases, where this one is newer than all that were looked at. `suspected` are live faults without a
    verdict. `first` and `last` are the releases between which the package was looked at, None where it never
    was.
    """

    affected: tuple[Sighting, ...]
    latent: tuple[Sighting, ...]
    possible: tuple[Sighting, ...]
    earlier: tuple[Sighting, ...]
    suspected: tuple[Sighting, ...]
    first: Version | None
    last: Version | None
    judged: bool


def known_of(package: str, version: Version, model: str | None = None) -> ReleaseAnswer:
    """Return what is known of a release, or of one model of it: a class, or a name that users give it."""
    if model is not None and known_class(model):
        model = in_words(model)
    about = [
        sighting
        for sighting in every_sighting()
        if canonicalize_name(sighting.releases.package) == package
        if model is None
        or not sighting.releases.models
        or any(_same_model(model, name) for name in sighting.releases.models_of(version))
    ]
    having = [sighting for sighting in about if covers_release(sighting.releases, version)]
    known = [sighting for sighting in having if sighting.incident is not None]
    by_urgency = sorted(known, key=lambda each: REACHES.index(each.releases.reach_kind))
    first, last = looked_at(package)
    is_newer = last is not None and version > last
    open_ended = [
        sighting for sighting in known if is_newer and not (sighting.fixed_in or sighting.newest_looked_at)
    ]
    certain = [sighting for sighting in by_urgency if sighting not in open_ended]
    return ReleaseAnswer(
        affected=tuple(sighting for sighting in certain if sighting.releases.reach_kind != LATENT),
        latent=tuple(sighting for sighting in certain if sighting.releases.reach_kind == LATENT),
        possible=tuple(
            sighting
            for sighting in about
            if sighting in open_ended or (sighting.incident is not None and not sighting.releases.versions)
        ),
        earlier=tuple(
            sighting
            for sighting in about
            if is_newer and sighting.newest_looked_at and Version(sighting.newest_looked_at) < version
        ),
        suspected=tuple(
            sighting
            for sighting in about
            if sighting.incident is None
            and (not sighting.releases.versions or covers_release(sighting.releases, version))
        ),
        first=first,
        last=last,
        judged=first is not None and last is not None and first <= version <= last,
    )


def covers_release(releases: FaultyReleases, version: Version) -> bool:
    """Return whether a version is among the releases; see `orders.covers`."""
    return bool(releases.versions) and covers(releases.versions, version)


def _same_model(wanted: str, known: str) -> bool:
    """Return whether either name contains the other: `Qwen3-VL` includes its variants."""
    return names_model(wanted, known) or names_model(known, wanted)


def looked_at(package: str) -> tuple[Version | None, Version | None]:
    """Return the first and the last release of a package that was looked at, None where none was."""
    ends = sorted(Version(end) for end in _ends(package))
    return (ends[0], ends[-1]) if ends else (None, None)


def _ends(package: str) -> Iterator[str]:
    """Yield the bounds of ranges; each bound is a release that somebody looked at."""
    ranges = [(failure.package, failure.releases) for failure in KNOWN_FAILURES.entries]
    ranges += [(carrier.package, carrier.releases) for carrier in KNOWN_CARRIERS.entries]
    for name, releases in ranges:
        if canonicalize_name(name) == package:
            # The `0.34` of a carrier's `<0.34` was not released when it was written.
            yield from (bound.version for bound in SpecifierSet(releases) if bound.operator != "<")
    for sighting in every_sighting():
        read = sighting.releases
        if canonicalize_name(read.package) == package and read.seen is not Seen.REPORTED:
            yield from (bound.version for bound in SpecifierSet(read.versions))
