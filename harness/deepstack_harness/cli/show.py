"""`show`: one incident in full, as text of the terminal's width, or those that fit a user's words."""

from argparse import ArgumentParser, Namespace
from collections.abc import Iterator, Sequence

from msgspec import to_builtins

from deepstack_harness.catalogue.incidents import STEPS, Incident, RegionRun, Run, catalogue
from deepstack_harness.catalogue.known import (
    KNOWN_FAILURES,
    LIVE_FAULTS,
    FaultyReleases,
    KnownFailure,
    LiveFault,
    link_of,
    names_since,
    state_of,
)
from deepstack_harness.catalogue.registry import HISTORIES
from deepstack_harness.catalogue.search import find_or_search
from deepstack_harness.catalogue.versions import TorchReleases
from deepstack_harness.cli.matches import show_matches
from deepstack_harness.contract.rules import Rule
from deepstack_harness.document.blocks import BLANK, Document, Heading, Line
from deepstack_harness.errors import ExitCode


def add_arguments(parser: ArgumentParser) -> None:
    """Add the incident."""
    parser.add_argument(
        "incident",
        nargs="+",
        metavar="INCIDENT",
        help="its number, name, or any of its references: 43602, 'vllm 43617'; a rule: R5; or words: what is "
        "seen, an error text, a model, an engine with its version",
    )


def run(args: Namespace) -> Document[ExitCode]:
    """Print the incident; `--json` gets its entry of the catalogue, with links and known failures.

    Of words, print what fits them.
    """
    text = " ".join(args.incident)
    if text.upper() in set(Rule):
        yield from _show_rule(Rule(text.upper()))
        return ExitCode.HOLDS
    incident = find_or_search(text)
    if isinstance(incident, list):
        yield from show_matches(text, incident)
        return ExitCode.HOLDS
    failures = [failure for failure in KNOWN_FAILURES.entries if failure.reference in incident.references]
    faults = [fault for fault in LIVE_FAULTS.entries if fault.incident == incident.id]
    yield {
        **to_builtins(incident),
        "links": {reference: link_of(reference) for reference in incident.references},
        "known_failures": [to_builtins(entry) for entry in failures],
        "live_faults": [to_builtins(entry) for entry in faults],
    }
    yield from show_page(incident, failures, faults)
    return ExitCode.HOLDS


def _show_rule(rule: Rule) -> Document:
    """Print a rule: its promise, the incidents that break it, and the released classes that do."""
    incidents = [incident for incident in catalogue() if rule in incident.rules]
    failures = [failure for failure in KNOWN_FAILURES.entries if rule in failure.rules]
    yield {
        "rule": rule, "word": rule.word, "promise": rule.promise,
        "incidents": [incident.id for incident in incidents],
        "known_failures": [to_builtins(entry) for entry in failures],
    }  # fmt: skip
    yield Heading(f"rule {rule} {rule.word}")
    yield Line(rule.promise)
    yield BLANK
    yield Line(f"every {rule.chance}", lead="tested by ".ljust(_LABEL))
    if rule.instance_of is not None:
        yield Line(
            f"{rule.instance_of} {rule.instance_of.word}: {rule.instance_of.promise}", lead="promise   "
        )
    yield from _list(
        "incidents", [f"{incident.id} ({incident.name}): {incident.title}" for incident in incidents]
    )
    yield from _list("releases", [_release_in_words(failure) for failure in failures])
    yield BLANK
    for incident in incidents[:1]:
        yield Line(command=f"deepstack-harness show {incident.id}")
    yield Line(command="deepstack-harness list rules")


_LABEL = 10
"""Columns of a label, and of the indentation of its text."""


def show_page(incident: Incident, failures: Sequence[KnownFailure], faults: Sequence[LiveFault]) -> Document:
    """Print an incident, the released classes and live faults that are known of it, and how to see it."""
    yield Heading(f"incident {incident.id} ({incident.name})")
    yield Line(incident.title)
    yield BLANK
    yield Line(incident.symptom, lead="symptom   ")
    yield from _list("users say", incident.symptoms)
    yield from _list("errors", incident.errors)
    yield Line(incident.cause, lead="cause     ")
    yield from _list("rules", [f"{rule} {rule.word}: {rule.promise}" for rule in incident.rules])
    yield from _list(
        "promises", [f"{promise} {promise.word}: {promise.promise}" for promise in incident.promises]
    )
    yield Line(", ".join(incident.effects) or "not measured", lead="effect    ")
    yield from _list("reports", [_report_in_words(reference) for reference in incident.references])
    yield from _list("affected", [_affected_in_words(releases) for releases in incident.affected])
    yield from _list(
        "releases",
        [_release_in_words(failure) for failure in failures]
        or ([] if incident.affected or faults else ["no release is known to have it"]),
    )
    yield from _list(
        "live",
        [
            f"{fault.id}, {fault.package} {fault.in_words} ({fault.seen}): {fault.title}; reach {fault.reach}"
            for fault in faults
        ],
    )
    yield from _list("faulty", _subjects_in_words(incident, incident.faulty))
    yield from _list("right", _subjects_in_words(incident, incident.fixed))
    if incident.families:
        yield Line(", ".join(incident.families), lead="families  ")
    for number, run in enumerate(incident.run, 1):
        yield BLANK
        yield Heading(f"trace {number} of {len(incident.run)}: {run.trace}")
        for label, text in _run_in_words(run):
            yield Line(text, lead=label.ljust(_LABEL))
    for number, region in enumerate(incident.region, 1):
        yield BLANK
        yield Heading(f"run {number} of {len(incident.region)}")
        for label, text in _run_in_words(region):
            yield Line(text, lead=label.ljust(_LABEL))
    yield BLANK
    yield Line(command=f"deepstack-harness repro {incident.id}")
    if incident.script is not None:
        yield Line(command=f"deepstack-harness repro {incident.id} --script FILE")
    if incident.about_sources:
        yield Line(command=f"deepstack-harness repro {incident.id} --source vllm==VERSION")


def _run_in_words(run: Run | RegionRun) -> Iterator[tuple[str, str]]:
    """Iterate over the labels and texts of what a run has."""
    subjects = run.programs if isinstance(run, RegionRun) else run.revisions
    facts = {"note": run.note, "arms": ", ".join(run.arms), "only for": ", ".join(subjects)}
    if isinstance(run, Run):
        torch = str(TorchReleases(run.torch)) if run.torch else ""
        facts |= {"families": ", ".join(run.families), "dtype": run.dtype, "torch": torch}
    broken = "; ".join(f"{name} {' '.join(rules)}" for name, rules in run.broken.items())
    facts["breaks"] = broken or "nothing"
    if isinstance(run, RegionRun):
        facts["names"] = run.input
    yield from ((label, text) for label, text in facts.items() if text)


def _subjects_in_words(incident: Incident, names: Sequence[str]) -> list[str]:
    """Return revisions or variants on one line, and each program of steps with its summary."""
    if incident.system != STEPS:
        return [", ".join(names)]
    entries = [(name, HISTORIES[name]) for name in names]
    return [
        f"{name}: {entry.summary[:1].lower()}{entry.summary[1:].rstrip('.')}"
        + (f"; fault: {entry.fault}" if entry.fault else "")
        for name, entry in entries
    ]


def _report_in_words(reference: str) -> str:
    link, state = link_of(reference), state_of(reference)
    return (f"{reference}: {link}" if link else reference) + (f" ({state})" if state else "")


def _affected_in_words(releases: FaultyReleases) -> str:
    models = f", {names_since(releases.models, releases.since)}" if releases.models else ""
    return f"{releases.package} {releases.in_words}{models}; reach {releases.reach}; evidence {releases.seen}"


def _release_in_words(failure: KnownFailure) -> str:
    classes = "all classes" if "*" in failure.classes else names_since(failure.classes, failure.since)
    return f"{failure.package} {failure.releases} breaks {' '.join(failure.rules)}: {classes}"


def _list(label: str, items: Sequence[str]) -> Document:
    for number, item in enumerate(items):
        yield Line(item, lead=("" if number else label).ljust(_LABEL))
