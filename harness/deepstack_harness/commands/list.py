"""`list`: what there is, by kind."""

from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType

from deepstack_harness.catalogue.engine_flags import engine_flags
from deepstack_harness.catalogue.incidents import catalogue
from deepstack_harness.catalogue.registry import (
    CALLERS,
    FAMILIES,
    MUTANT_ARMS,
    MUTANTS,
    ORACLES,
    ORACLES_BESIDE,
    REVISIONS,
    Entry,
)
from deepstack_harness.catalogue.variants import VARIANTS
from deepstack_harness.contract.arm_spec import every_arm
from deepstack_harness.contract.rules import Rule
from deepstack_harness.errors import ExitCode, UsageError
from deepstack_harness.mutants import summary_of
from deepstack_harness.reporting.terminal.output import Column, Output

SUMMARY = "incidents, families, revisions, mutants, variants, callers, arms and rules, with one line each"
Item = dict[str, object]


def add_arguments(parser: ArgumentParser) -> None:
    """KIND is optional: without it everything is listed."""
    parser.add_argument("kind", nargs="?", metavar="KIND", help=f"one of {', '.join(KINDS)}; all without it")


def run(args: Namespace, output: Output) -> ExitCode:
    """Print one table per kind; `--json` gets one object per item."""
    if args.kind is not None and args.kind not in KINDS:
        raise UsageError(f"unknown kind '{args.kind}'; known are {', '.join(KINDS)}")
    for kind in [args.kind] if args.kind else KINDS:
        _show(kind, list(KINDS[kind]()), output)
    return ExitCode.HOLDS


def _show(kind: str, items: list[Item], output: Output) -> None:
    output.line(kind, "bold")
    width = max(len(str(item["name"])) for item in items)
    for item in items:
        output.row([Column(2), Column(width), Column(0)], ["", str(item["name"]), str(item["summary"])])
        output.record({"kind": kind, **item})
    output.line()


def _incidents() -> Iterable[Item]:
    for one in catalogue():
        yield {
            "name": f"{one.id} {one.name}",
            "summary": f"{one.title} [{', '.join(one.rules)}]; {', '.join(one.references)}",
            "id": one.id,
            "system": one.system,
            "references": one.references,
            "rules": one.rules,
            "faulty": one.faulty,
            "fixed": one.fixed,
        }


def _entries(entries: Mapping[str, Entry]) -> Iterable[Item]:
    return ({"name": name, "summary": entry.summary} for name, entry in entries.items())


def _mutants() -> Iterable[Item]:
    for name, entry in MUTANTS.items():
        arm = MUTANT_ARMS.get(name, "eager")
        said = f"breaks {entry.summary} under {arm}: {summary_of(name)}"
        yield {"name": name, "summary": said, "rule": entry.summary, "arm": arm}


def _arms() -> Iterable[Item]:
    for arm in every_arm():
        flags = engine_flags(arm)
        shown = f"; vLLM: {flags}" if flags else ""
        yield {"name": arm.name, "summary": arm.summary + shown, "engine_flags": flags}


def _variants() -> Iterable[Item]:
    """Of the systems beside the buffer, which have no revisions."""
    for system, variants in VARIANTS.items():
        for name, one in variants.items():
            fault = f"; fault: {one.fault}" if one.fault else ""
            summary = f"{one.summary}{fault}"
            yield {"name": f"{system} {name}", "summary": summary, "system": system, "fault": one.fault}


def _rules() -> Iterable[Item]:
    for rule in Rule:
        judges = [oracles[rule].summary for oracles in (ORACLES, ORACLES_BESIDE) if rule in oracles]
        figure = "; ".join(judges) or "no oracle yet"
        yield {"name": rule, "summary": f"{rule.word}: {rule.promise} (figure: {figure})", "figure": figure}


KINDS: Mapping[str, Callable[[], Iterable[Item]]] = MappingProxyType(
    {
        "incidents": _incidents,
        "families": lambda: _entries(FAMILIES),
        "revisions": lambda: _entries(REVISIONS),
        "mutants": _mutants,
        "variants": _variants,
        "callers": lambda: _entries(CALLERS),
        "arms": _arms,
        "rules": _rules,
    }
)
