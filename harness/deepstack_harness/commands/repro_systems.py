"""`repro` of an incident that plays no trace: its system judges our variants, or what a vLLM has of it."""

from argparse import Namespace

from deepstack_harness.catalogue.incidents import Incident
from deepstack_harness.commands.repro_files import write_files
from deepstack_harness.engines.known import engine_of, open_source
from deepstack_harness.errors import ExitCode, UsageError
from deepstack_harness.reporting.terminal.output import Output

_OF_TRACES = {
    "trace": None,
    "arm": None,
    "workload": None,
    "family": None,
    "dtype": "float32",
    "device": "cpu",
}
"""Options of a decoder that plays a trace, and what they are where nobody gave them."""


def reproduce(incident: Incident, args: Namespace, output: Output) -> ExitCode:
    """Exit 0: every faulty variant shows it and no other (or the vLLM is free of it); 1: not so."""
    _refuse(incident, args)
    if args.script or args.pytest or args.upstream_test:
        return write_files(incident, "", args, output)
    holds = _theirs(incident, args.source, output) if args.source else _ours(incident, output)
    return ExitCode.HOLDS if holds else ExitCode.BROKEN


def _refuse(incident: Incident, args: Namespace) -> None:
    given = [f"--{name}" for name, usual in _OF_TRACES.items() if getattr(args, name) != usual]
    if given:
        raise UsageError(
            f"incident {incident.id} plays no trace over a decoder (system {incident.system}): "
            f"leave {', '.join(given)} out"
        )
    if args.source and (args.script or args.pytest or args.upstream_test):
        raise UsageError("--script, --pytest and --upstream-test show a variant of ours: leave --source out")


def _ours(incident: Incident, output: Output) -> bool:
    import torch

    from deepstack_harness.auditing.systems import system_of
    from deepstack_harness.reporting.terminal.system_table import SystemTable

    torch.set_num_threads(1)
    table, found = SystemTable(output, incident, max(map(len, incident.revisions))), []
    for judged in system_of(incident).ours(incident):
        table.add(judged)
        found.append(judged)
    table.close(found)
    return all(one.as_expected for one in found)


def _theirs(incident: Incident, text: str, output: Output) -> bool:
    from deepstack_harness.auditing.source_worker import SourceWorker
    from deepstack_harness.auditing.systems import system_of
    from deepstack_harness.reporting.terminal.system_table import SystemTable

    source = open_source(text)
    if not engine_of(source).systems:
        raise UsageError(
            f"{source.label} has nothing of incident {incident.id}: no engine but vLLM is judged by it"
        )
    with SourceWorker(text) as worker:
        found = list(system_of(incident).theirs(incident, worker))
    table = SystemTable(output, incident, max(len(one.subject) for one in found))
    for judged in found:
        table.add(judged)
    table.close_source(worker.source.label, engine_of(worker.source).package.module, found)
    return not any(one.broken or one.unjudged for one in found)
