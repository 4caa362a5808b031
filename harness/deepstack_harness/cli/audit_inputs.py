"""`audit --inputs`: the inputs of what a source compiles, those at risk driven; table, rows and exit code."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from time import process_time

from deepstack_harness.audit.driven_inputs import Driven, DriveResult, drive_inputs
from deepstack_harness.audit.inputs import AuditedInputs, InputStanding, Standing, audit_inputs, count
from deepstack_harness.cli.output import Column, Output
from deepstack_harness.contract.verdicts import SCHEMA_VERSION
from deepstack_harness.engines.known import open_source
from deepstack_harness.errors import ExitCode, MachineError
from deepstack_harness.sources.source import Source
from deepstack_harness.text import plural

_COLUMNS = [Column(12), Column(48), Column(0)]
_STYLES = {Driven.BROKEN: "bold red", Driven.KEPT: "green", Driven.UNKNOWN: "yellow"}


def show_inputs(sources: Sequence[str], output: Output) -> ExitCode:
    """Print the inputs of compiled classes, what is at risk first, with what driving it showed.

    1 where an input breaks a promise, or is at risk and could not be driven; 3 where no source compiles
    a class.
    """
    results: list[DriveResult] = []
    compiled = 0
    for text in sources:
        source = open_source(text)
        before = process_time()
        audited = audit_inputs(source)
        seconds = process_time() - before
        compiled += len(audited.regions)
        results += _show_source(text, source, audited, output)
        _show_counts(source, audited, seconds, output)
    if not compiled:
        raise MachineError("no class of this source is compiled by a decorator, so no input of one was read")
    broken, unknown = (
        sum(result.driven is driven for result in results) for driven in (Driven.BROKEN, Driven.UNKNOWN)
    )
    output.verdict(_answer(broken, unknown, len(results)), good=not (broken or unknown))
    return ExitCode.BROKEN if broken or unknown else ExitCode.HOLDS


def _show_source(text: str, source: Source, audited: AuditedInputs, output: Output) -> list[DriveResult]:
    """Print the rows of one source, each input at risk as soon as it was driven."""
    results = []
    at_risk = [row for row in audited.standings if row.standing is Standing.AT_RISK]
    with output.progress("driving inputs at risk") as say:
        for row, result in drive_inputs(text, at_risk):
            say(f"{row.model_class}.{row.input}")
            _show_row(source, row, output, result)
            style = _STYLES.get(result.driven, "")
            promise = f"{result.promise} {result.arm}".strip() if result.promise else ""
            place = f" ({result.where})" if result.where and result.where not in result.detail else ""
            output.row(_COLUMNS, [f"  {result.driven}", f"  {promise}", f"{result.detail}{place}"], style)
            results.append(result)
    for row in audited.standings:
        if row.standing is not Standing.AT_RISK:
            _show_row(source, row, output)
    return results


def _show_row(source: Source, row: InputStanding, output: Output, result: DriveResult | None = None) -> None:
    output.record(
        {"schema_version": SCHEMA_VERSION, "system": "inputs", "source": source.label,
         "model_class": row.model_class, "input": row.input, "rule": None,
         "promise": result.promise if result and result.promise else row.promise,
         "standing": row.standing, "detail": row.why, "where": row.where, "kind": row.kind,
         "member": row.member, "line": row.line, "warm_up": row.warm_up, "steps": row.steps,
         "change": row.change, "writers": [str(place) for place in row.writers],
         "read_by": row.read_by, "driven": result}
    )  # fmt: skip
    if row.standing is not Standing.SAME:
        style = "red" if row.standing is Standing.AT_RISK else ""
        output.row(
            _COLUMNS, [row.standing, f"{row.model_class}.{row.input}", f"{row.why} ({row.where})"], style
        )


def _show_counts(source: Source, audited: AuditedInputs, seconds: float, output: Output) -> None:
    inputs = _counted(len(audited.standings), "input", count(audited.standings))
    classes = _counted(len(audited.regions), "compiled class", audited.regions_of())
    output.line(f"{source.label}: {inputs}")
    output.line(f"{source.label}: {classes}; {seconds:.0f} processor seconds")


def _counted(number: int, noun: str, counts: Mapping[Standing, int]) -> str:
    """Return how many there are of a noun, and how many of them have each standing."""
    return f"{plural(number, noun)}: {', '.join(f'{each} {standing}' for standing, each in counts.items())}"


def _answer(broken: int, unknown: int, driven: int) -> str:
    if not driven:
        return "none at risk"
    parts = [
        *([f"{plural(broken, 'input')} of {driven} at risk break a promise"] if broken else []),
        *([f"{plural(unknown, 'input')} at risk could not be driven"] if unknown else []),
    ]
    return "; ".join(parts) or f"{plural(driven, 'input')} at risk, driven: no promise is broken"
