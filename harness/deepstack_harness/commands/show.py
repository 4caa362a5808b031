"""`show`: one incident in full."""

from argparse import ArgumentParser, Namespace
from dataclasses import asdict

from deepstack_harness.catalogue.incidents import find
from deepstack_harness.catalogue.known_failures import known_failures
from deepstack_harness.catalogue.live_faults import live_faults
from deepstack_harness.catalogue.upstream import link_of
from deepstack_harness.errors import ExitCode
from deepstack_harness.reporting.terminal.incident_page import show_page
from deepstack_harness.reporting.terminal.output import Output

SUMMARY = "show one incident in full: symptom, cause, reports, releases, and what is played"


def add_arguments(parser: ArgumentParser) -> None:
    """Add the incident."""
    parser.add_argument(
        "incident", metavar="INCIDENT", help="its number, name, or any of its references: 43602, 'vllm 43617'"
    )


def run(args: Namespace, output: Output) -> ExitCode:
    """Print the incident; `--json` gets its entry of the catalogue, with links and known failures."""
    incident = find(args.incident)
    failures = [one for one in known_failures() if one.reference in incident.references]
    faults = [one for one in live_faults() if one.incident == incident.id]
    output.record(
        {
            **asdict(incident),
            "links": {reference: link_of(reference) for reference in incident.references},
            "known_failures": [asdict(one) for one in failures],
            "live_faults": [asdict(one) for one in faults],
        }
    )
    show_page(output, incident, failures, faults)
    return ExitCode.HOLDS
