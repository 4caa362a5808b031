"""`affected RELEASE`: what is known of a release, from the catalogue; nothing is fetched or played."""

from __future__ import annotations

import re
from argparse import ArgumentParser, Namespace
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

from packaging.utils import canonicalize_name
from packaging.version import Version

from deepstack_harness.catalogue.affected import (
    ReleaseAnswer,
    Sighting,
    audit_command,
    broken_classes,
    every_sighting,
    known_class,
    known_of,
    models_named,
    models_of,
    names_model,
    packages,
)
from deepstack_harness.catalogue.known import KnownFailure, Seen
from deepstack_harness.catalogue.registry import SYSTEMS_OF_SOURCES
from deepstack_harness.contract.rules import Rule, names_of
from deepstack_harness.document.blocks import BLANK, Document, Heading, Line, all_of, outcome
from deepstack_harness.engines.known import NOT_JUDGED, all_engines, locate_source
from deepstack_harness.errors import ExitCode, UsageError, unknown_name
from deepstack_harness.sources.request import ReleaseRequest, parse_source
from deepstack_harness.text import plural


def add_arguments(parser: ArgumentParser) -> None:
    """Add the release and the model."""
    parser.add_argument(
        "release",
        metavar="RELEASE",
        help="PACKAGE==VERSION, such as vllm==0.22.1, installed:PACKAGE, or the path of a wheel, an sdist or "
        "a source tree",
    )
    parser.add_argument(
        "models",
        nargs="*",
        metavar="MODEL",
        help="print only what is known of this model, such as Qwen3-VL, a name on the hub, or a class of the "
        "release; several are looked up in turn",
    )
    parser.add_argument("--model", metavar="M", help="the same, as an option")


def run(args: Namespace) -> Document[ExitCode]:
    """Exit 1: settings lead to a known fault, or nobody knows what does; 0: nothing is known, or judged."""
    package, version = _release(args.release)
    models = [*args.models, *([args.model] if args.model is not None else [])]
    known = models_of(every_sighting())
    for model in models:  # one that nothing is known of is refused: silence would look like a result
        if (
            not known_class(model)
            and not models_named(model)
            and not any(names_model(name, model) for name in known)
        ):
            raise unknown_name("model", model, known)
    return max((yield from all_of(_look_up(package, version, model) for model in models or [None])))


def _look_up(package: str, version: Version, model: str | None) -> Document[ExitCode]:
    answer = known_of(package, version, model)
    name = f"{package} {version}" + (f", {model}" if model else "")
    for key, heading in _HEADINGS.items():
        yield from _show_group(key, heading, getattr(answer, key), package, version)
    broken = broken_classes(package, version, model)
    yield from _show_classes(broken, package, version)
    is_class = model is not None and known_class(model)
    affected = bool(answer.affected or (is_class and broken))
    state = "affected" if affected else "nothing known" if answer.judged else "not judged"
    first, last = (None if end is None else str(end) for end in (answer.first, answer.last))
    yield {
        "kind": "answer",
        "package": package,
        "version": str(version),
        "model": model,
        "state": state,
        "first_looked_at": first,
        "last_looked_at": last,
    }
    yield outcome(f"{name}: {_verdict(answer, broken)}", good=state == "nothing known")
    return ExitCode.BROKEN if affected else ExitCode.HOLDS


def _release(text: str) -> tuple[str, Version]:
    """Return package and version of what a user names; raises `UsageError` for what is no known release."""
    known = tuple(
        dict.fromkeys((*(engine.package.name for engine in all_engines()), *packages(), *NOT_JUDGED))
    )
    if canonicalize_name(text) in known and not Path(text).exists():
        raise UsageError(f"'{text}' names no release: write {text}==VERSION or installed:{text}")
    request = parse_source(text)
    if isinstance(request, ReleaseRequest):
        if request.package not in known:
            raise unknown_name("package", request.package, known)
        return request.package, request.version
    source = locate_source(text)
    if source.version is None:
        raise UsageError(f"{source.label} has no version: write {source.package}==VERSION")
    return source.package, source.version


_HEADINGS: Mapping[str, str] = MappingProxyType(
    {
        "affected": "known faults of this release",
        "latent": "known faults that no order of calls of the engine leads to (latent)",
        "possible": "reported of this package; whether this release has it is not known",
        "suspected": "read in its code, without a verdict",
        "earlier": "in the newest release that was looked at, which is older",
    }
)
"""Groups of a result, and the line over each."""


def _show_group(
    state: str, heading: str, sightings: Sequence[Sighting], package: str, version: Version
) -> Document:
    if not sightings:
        return
    yield Heading(heading)
    for sighting in sightings:
        command, judges = command_of(sighting, package, version)
        releases, incident, fault = sighting.releases, sighting.incident, sighting.fault
        yield {
            "kind": "affected",
            "state": state,
            "package": package,
            "version": str(version),
            "incident": incident.id if incident else None,
            "fault": fault.id if fault else None,
            "title": sighting.title,
            "models": releases.models_of(version),
            "releases": releases.versions,
            "commits": releases.commits,
            "reach": releases.reach,
            "evidence": releases.seen,
            "effects": sighting.effects,
            "fixed_in": sighting.fixed_in or None,
            "newest_looked_at": sighting.newest_looked_at or None,
            "command": command or None,
            "judges_this_release": judges,
        }
        name = f"{incident.id} ({incident.name})" if incident else f"fault {fault.id if fault else ''}"
        yield Line(f"{name}: {sighting.title}", lead="  ")
        for line in _facts(sighting, version):
            yield Line(line, lead="      ")
        if command:
            yield Line(f"      {'check' if judges else 'mechanism'}:", command=f"deepstack-harness {command}")
    yield BLANK


def _facts(sighting: Sighting, version: Version) -> Iterator[str]:
    releases = sighting.releases
    if models := releases.models_of(version):
        yield f"models: {', '.join(models)}"
    effects = ", ".join(sighting.effects) or "not measured"
    yield f"reach: {releases.reach}; evidence: {releases.seen}; effect: {effects}"
    fixed = f"; fixed in {sighting.fixed_in}" if sighting.fixed_in else ""
    known = releases.versions or releases.commits
    yield f"releases: {releases.in_words}{fixed}" if known else "releases: not known"
    if sighting.incident is None and sighting.fault is not None:
        yield f"{sighting.fault.state}: {sighting.fault.why}"


def command_of(sighting: Sighting, package: str, version: Version) -> tuple[str, bool]:
    """Return the command to run, and True if it judges this release, and not only our own decoders.

    What is only reported, or read, no command of ours has shown in a release.
    """
    engine = next(
        (known for known in all_engines() if known.package.name == package and not known.by_path), None
    )
    fault, incident = sighting.fault, sighting.incident
    release = f"{package}=={version}"
    if fault is not None and fault.commands:
        command = re.sub(rf"(?<= --source ){re.escape(package)}==\S+", release, fault.commands[0])
        return command, engine is not None and release in command
    if incident is None:
        return "", False
    if engine is not None and sighting.releases.seen in (Seen.ENGINE, Seen.EMULATED, Seen.RUN):
        families = {family.partition(":")[0] for family in incident.families}
        by_methods = incident.about_sources and bool(families & set(engine.by_methods))
        if engine.overlay is None and (by_methods or any(run.package == package for run in incident.engine)):
            return f"repro {incident.id} --source {release}", True
        by_forward = incident.about_sources and bool(families & set(engine.by_forward))
        if engine.overlay is not None or by_forward or incident.system in SYSTEMS_OF_SOURCES:
            return audit_command(package, str(version)), True
    return f"repro {incident.id}", False


def _show_classes(broken: Mapping[str, Sequence[KnownFailure]], package: str, version: Version) -> Document:
    """Print the classes of the release that break rules when they are called: what `audit` knows of them."""
    if not broken:
        return
    yield Line("these classes break a rule when every call of the contract is made:")
    for name, failures in broken.items():
        worst = "default" if any(failure.worst_reach == "default" for failure in failures) else "flag"
        yield {
            "kind": "class",
            "package": package,
            "version": str(version),
            "model_class": name,
            "rules": {rule: failure.reference for failure in failures for rule in failure.rules},
            "worst_reach": worst,
        }
        by_reference: dict[str, set[Rule]] = {}
        for failure in failures:
            by_reference.setdefault(failure.reference, set()).update(failure.rules)
        known = "; ".join(f"{names_of(rules)} ({reference})" for reference, rules in by_reference.items())
        yield Line(f"{'every class' if name == '*' else name}: {known}", lead="  ")
    yield Line("  ", command=f"deepstack-harness {audit_command(package, str(version))}")
    yield BLANK


def _verdict(answer: ReleaseAnswer, broken: Mapping[str, Sequence[KnownFailure]]) -> str:
    if answer.affected:
        kinds = {
            "default": "with default settings",
            "flag": "with a setting",
            "unknown": "in a way not known",
        }
        parts = [
            f"{', '.join(names)} {words}"
            for kind, words in kinds.items()
            if (
                names := dict.fromkeys(
                    sighting.incident.id
                    for sighting in answer.affected
                    if sighting.incident and sighting.releases.reach_kind == kind
                )
            )
        ]
        return f"affected by {'; by '.join(parts)}{_classes_in_words(broken)}"
    if answer.judged:
        latent = f", but for {plural(len(answer.latent), 'latent fault')}" if answer.latent else ""
        looked_at = f"releases {answer.first} to {answer.last} were looked at"
        known = "no incident is known" if broken else "nothing is known"
        return f"{known}{latent}; {looked_at}{_classes_in_words(broken)}"
    if answer.first is None:
        return "not judged: no release of the package was looked at"
    earlier = f"; {answer.last} has {plural(len(answer.earlier), 'known fault')}" if answer.earlier else ""
    return f"not judged: releases {answer.first} to {answer.last} were looked at{earlier}"


def _classes_in_words(broken: Mapping[str, Sequence[KnownFailure]]) -> str:
    return f"; {plural(len(broken), 'class')} broken in its audit" if broken else ""
