"""`repro --script` and `--pytest`: what one attaches to an upstream issue, or merges there."""

from argparse import Namespace

from deepstack_harness.catalogue.incidents import Incident
from deepstack_harness.errors import ExitCode
from deepstack_harness.reporting.json_lines import write_text
from deepstack_harness.reporting.terminal.output import Output


def write_files(incident: Incident, family: str, args: Namespace, output: Output) -> ExitCode:
    """Write the files that were asked for, and say so; `family` is empty where the incident has none."""
    from deepstack_harness.scripts.standalone import render_pytest, render_script, render_upstream_test

    texts = [(path, render(incident, family)) for path, render in (
        (args.script, render_script), (args.pytest, render_pytest),
    ) if path]  # fmt: skip
    if args.upstream_test:
        texts.append((args.upstream_test, render_upstream_test(incident)))
    for path, text in texts:  # all can be written before one is
        write_text(path, text)
        output.line(f"wrote {path}")
    return ExitCode.HOLDS
