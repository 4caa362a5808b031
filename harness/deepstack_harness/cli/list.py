"""`list`: names by kind, with one line each.  A kind imports its tables when it is listed."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Iterable, Mapping
from itertools import chain
from types import MappingProxyType
from typing import TYPE_CHECKING

from msgspec.structs import asdict

from deepstack_harness.document.blocks import BLANK, Column, Document, Heading, TextTable
from deepstack_harness.errors import ExitCode, UsageError, unknown_name

if TYPE_CHECKING:
    from deepstack_harness.contract.names import Entry, Extension

Item = dict[str, object]


def add_arguments(parser: ArgumentParser) -> None:
    """Add KIND, which is optional: without it everything is listed; and words to search incidents by."""
    parser.add_argument("kind", nargs="?", metavar="KIND", help=f"one of {', '.join(KINDS)} (default: all)")
    parser.add_argument(
        "words",
        nargs="*",
        metavar="WORDS",
        help="after 'incidents': list what fits a symptom, an error text, a model, an engine and its version",
    )


def run(args: Namespace) -> Document[ExitCode]:
    """Print one table per kind; `--json` gets one object per item."""
    if args.kind is not None and args.kind not in KINDS:
        if args.words or " " in args.kind:
            text = " ".join([args.kind, *args.words])
            raise UsageError(f"'{args.kind}' is no kind: to search write 'list incidents {text}'")
        raise unknown_name("kind", args.kind, KINDS)
    if args.words:
        from deepstack_harness.catalogue.search import Match, find_or_search
        from deepstack_harness.cli.matches import show_matches

        text = " ".join(args.words)
        if args.kind != "incidents":
            raise UsageError(f"words search only incidents, not {args.kind}: write 'list incidents {text}'")
        entry = find_or_search(text)
        matches = entry if isinstance(entry, list) else [Match(entry, 1.0, (f"name: {text}",))]
        yield from show_matches(text, matches)
        return ExitCode.HOLDS
    for kind in [args.kind] if args.kind else KINDS:
        yield from _show(kind, list(KINDS[kind]()))
    return ExitCode.HOLDS


def _show(kind: str, items: list[Item]) -> Document:
    if not items:  # most environments have no extensions
        yield Heading(f"{kind}: none")
        yield BLANK
        return
    yield Heading(kind)
    rows = [(["", str(item["name"]), str(item["summary"])], "") for item in items]
    yield TextTable([Column(width=2), Column(), Column()], rows, head=False)
    yield from ({"kind": kind, **item} for item in items)
    yield BLANK


def _incidents() -> Iterable[Item]:
    from deepstack_harness.catalogue.incidents import incident_files

    columns = ("id", "system", "references", "rules", "promises", "faulty", "fixed")
    for incident in chain.from_iterable(file.incidents for file in incident_files()):
        name = f"{incident.id} {incident.name}"
        known = f"[{', '.join(incident.promised)}]; {', '.join(incident.references)}"
        item = {column: getattr(incident, column) for column in columns}
        yield {"name": name, "summary": f"{incident.title} {known}", **item}


def _faults() -> Iterable[Item]:
    """Yield the faults of the newest engines, with what became of each."""
    from deepstack_harness.catalogue.known import LIVE_FAULTS

    for fault in LIVE_FAULTS.entries:
        where = f"{fault.package} {fault.in_words}, {fault.seen}"
        yield {**asdict(fault), "name": fault.id, "summary": f"{fault.title} ({where}); {fault.outcome}"}


def _entries(entries: Mapping[str, Entry]) -> Iterable[Item]:
    """Yield the names of one kind; a faulty one is marked as such."""
    for name, entry in entries.items():
        text = entry.summary
        yield {"name": name, "summary": f"fault: {text[:1].lower()}{text[1:]}" if entry.fault else text}


def _families() -> Iterable[Item]:
    """Yield each family and then its variants; those of another package need its import, and are left out."""
    from deepstack_harness.catalogue.registry import FAMILIES
    from deepstack_harness.models.variants import VARIANTS

    for family, entry in FAMILIES.items():
        yield {"name": family, "summary": entry.summary}
        for name, variant in VARIANTS.get(family, {}).items():
            yield {"name": f"{family}:{name}", "summary": variant.summary, "variant_of": family}


def _revisions() -> Iterable[Item]:
    from deepstack_harness.catalogue.buffers import REVISIONS

    return _entries(REVISIONS)


def _mutants() -> Iterable[Item]:
    from deepstack_harness.catalogue.buffers import MUTANTS

    for name, mutant in MUTANTS.items():
        summary = f"breaks {mutant.rule} under {mutant.arm}: {mutant.summary}"
        yield {"name": name, "summary": summary, "rule": mutant.rule, "arm": mutant.arm}


def _regions() -> Iterable[Item]:
    """Yield small compiled regions; `promise` is the one that a wrong one breaks, None of a right one."""
    from deepstack_harness.catalogue.regions import REGIONS

    for name, region in REGIONS.items():
        stands = f"breaks {region.promise} under {', '.join(region.arms)}" if region.promise else "right"
        summary = f"{stands}: {region.summary}"
        yield {"name": name, "summary": summary, "promise": region.promise, "arms": list(region.arms)}


def _callers() -> Iterable[Item]:
    from deepstack_harness.catalogue.registry import CALLERS

    return _entries(CALLERS)


def _arms() -> Iterable[Item]:
    from deepstack_harness.contract.arm import every_arm
    from deepstack_harness.contract.engine_axes import engine_flags

    for arm in every_arm():
        flags = engine_flags(arm)
        shown = f"; vLLM: {flags}" if flags else ""
        yield {"name": arm.name, "summary": arm.summary + shown, "engine_flags": flags}


def _axes() -> Iterable[Item]:
    """Yield the settings of engines that decide how a decoder runs, with their arms or why there are none."""
    from deepstack_harness.contract.engine_axes import AXES

    for axis in AXES:
        settings = [f"vLLM: {axis.vllm}"] + ([f"sglang: {axis.sglang}"] if axis.sglang else [])
        played = [", ".join(axis.arms)] if axis.arms else []
        missing = [f"not covered: {axis.missing}"] if axis.missing else []
        summary = "; ".join([*played, *missing, *settings])
        yield {
            "name": axis.name, "summary": summary, "arms": list(axis.arms), "vllm": axis.vllm,
            "sglang": axis.sglang, "missing": axis.missing,
        }  # fmt: skip


def _variants() -> Iterable[Item]:
    """Yield the variants of the systems other than the buffer, which have no revisions."""
    from deepstack_harness.catalogue.registry import VARIANTS

    for system, variants in VARIANTS.items():
        for name, entry in variants.items():
            summary = f"{entry.summary}; fault: {entry.fault}" if entry.fault else entry.summary
            yield {"name": f"{system} {name}", "summary": summary, "system": system, "fault": entry.fault}


def _rules() -> Iterable[Item]:
    from deepstack_harness.catalogue.registry import ORACLES_BESIDE
    from deepstack_harness.contract.oracles.judge import ORACLES
    from deepstack_harness.contract.rules import Rule

    for rule in Rule:
        judges = [oracle.figure for oracle in ORACLES if oracle.rule is rule]
        judges += [ORACLES_BESIDE[rule].summary] if rule in ORACLES_BESIDE else []
        figure = "; ".join(judges) or "no oracle yet"
        summary = f"{rule.word}: {rule.promise} (figure: {figure})"
        yield {"name": rule, "summary": summary, "figure": figure, "promise": rule.instance_of}


def _engines() -> Iterable[Item]:
    """Yield every engine that carries deepstack; the second value is whether its sources can be judged."""
    from deepstack_harness.engines.known import DECLARED, ENGINES, NOT_JUDGED

    for engine in ENGINES:
        name = engine.package.name
        yield {"name": name, "summary": f"{engine.how}; since {engine.since}", "driven": True}
    for name, entry in DECLARED.items():
        if entry.distribution:
            yield {"name": name, "summary": entry.refused or entry.summary, "driven": not entry.refused}
    for name, why in NOT_JUDGED.items():
        yield {"name": name, "summary": f"not judged: {why}", "driven": False}


def _extensions() -> Iterable[Item]:
    """Yield what other installed packages declare; `refused` is why a name of theirs cannot be used."""
    from deepstack_harness.contract.names import GROUPS, declared

    for extension in chain.from_iterable(map(declared, GROUPS)):
        refused = _refused(extension)
        yield {
            "name": f"{extension.group} {extension.name}",
            "summary": f"broken: {refused}" if refused else extension.summary,
            "group": extension.group,
            "distribution": extension.distribution,
            "refused": refused,
        }


def _refused(extension: Extension) -> str:
    """Return why an extension cannot be used: its file is broken, or its name is wrong or taken; else ""."""
    from deepstack_harness.catalogue.buffers import BUFFERS
    from deepstack_harness.catalogue.incidents import clashes, incident_files
    from deepstack_harness.catalogue.registry import CALLERS, EXTRA_FIGURES, FAMILIES
    from deepstack_harness.contract.oracles.judge import EXTRA_ORACLES, misnamed
    from deepstack_harness.engines.known import DECLARED

    if extension.group == "incidents":
        own = (extension.distribution, extension.name)
        sentences = [file.broken for file in incident_files() if (file.distribution, file.name) == own]
        return "; ".join([*filter(None, sentences), *clashes(extension.distribution)])
    if extension.group == "oracles" and (sentence := misnamed(extension.name, extension.distribution)):
        return sentence
    tables = {
        "families": FAMILIES,
        "revisions": BUFFERS,
        "callers": CALLERS,
        "engines": DECLARED,
        "oracles": EXTRA_ORACLES,
        "figures": EXTRA_FIGURES,
    }
    return tables[extension.group][extension.name].refused


KINDS: Mapping[str, Callable[[], Iterable[Item]]] = MappingProxyType(
    {
        "incidents": _incidents,
        "faults": _faults,
        "families": _families,
        "revisions": _revisions,
        "mutants": _mutants,
        "regions": _regions,
        "variants": _variants,
        "callers": _callers,
        "arms": _arms,
        "axes": _axes,
        "rules": _rules,
        "engines": _engines,
        "extensions": _extensions,
    }
)
