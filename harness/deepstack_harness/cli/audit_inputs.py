"""`audit --inputs`: inputs of what a source compiles or captures, those at risk called; table, exit code."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from time import process_time
from typing import TypeAlias

import msgspec

from deepstack_harness.audit.driven_inputs import drive_inputs, input_row
from deepstack_harness.audit.inputs import AuditedInputs, InputStanding, Standing, audit_inputs, count
from deepstack_harness.catalogue.known import seen_input
from deepstack_harness.cli.output import progress
from deepstack_harness.contract.rules import Promise
from deepstack_harness.contract.verdicts import Row, Verdict
from deepstack_harness.document.blocks import Document, Line, outcome
from deepstack_harness.engines.known import open_source
from deepstack_harness.errors import MachineError
from deepstack_harness.sources.source import Source
from deepstack_harness.text import cell, plural

_LABEL = 14
"""Columns of a label."""
_WORDS = {
    Verdict.FAIL: ("broken", "bold red"), Verdict.PASS: ("kept", "green"), Verdict.SKIP: ("not read", ""),
    Verdict.ERROR: ("unknown", "yellow"),
}  # fmt: skip
"""Words and styles of the verdicts on inputs at risk."""


AtRisk: TypeAlias = Sequence[tuple[InputStanding, Row[Promise]]]
"""The inputs of one source that are at risk, each with the result of the calls."""


def show_inputs(sources: Sequence[str]) -> Document[tuple[str, list[tuple[str, AtRisk]], bool]]:
    """Print the inputs of compiled classes, what is at risk first, with what calling its code showed.

    Returns the last sentence, the text of each source with its inputs at risk, and False where an input
    breaks a promise, or is at risk and could not be judged.  Raises `MachineError` where no source compiles
    or captures a class.
    """
    compiled, at_risk = 0, list[tuple[str, AtRisk]]()
    for text in sources:
        source = open_source(text)
        before = process_time()
        audited = audit_inputs(source)
        seconds = process_time() - before
        compiled += len(audited.regions)
        at_risk.append((text, (yield from _show_source(text, source, audited))))
        inputs = _counted(len(audited.standings), "input", count(audited.standings))
        noun = "captured class" if audited.captured else "compiled class"
        classes = _counted(len(audited.regions), noun, audited.regions_of())
        yield from _labelled(source.label, inputs)
        yield from _labelled("", f"{classes}; read in {seconds:.0f} processor seconds")
        if audited.unread:
            functions = ", ".join(audited.unread)
            yield from _labelled(
                "", f"inputs that a runner gives to every class were not read in {functions}"
            )
    if not compiled:
        raise MachineError(
            "no class of this source is compiled by a decorator, and no graph runner that captures a model "
            "was found, so no input was read"
        )
    outcomes = [row.verdict for _, of_source in at_risk for _, row in of_source]
    broken, unknown = outcomes.count(Verdict.FAIL), outcomes.count(Verdict.ERROR)
    number, parts = plural(len(outcomes), "input"), []
    if broken:
        parts.append(f"{broken} of {number} at risk {'breaks' if broken == 1 else 'break'} a promise")
    if unknown:
        parts.append(f"{plural(unknown, 'input')} at risk could not be judged")
    answer = "; ".join(parts) or (f"{number} at risk: none breaks a promise" if outcomes else "none at risk")
    yield outcome(answer, good=not parts)
    return answer, at_risk, not parts


def _show_source(text: str, source: Source, audited: AuditedInputs) -> Document[AtRisk]:
    """Print the rows of one source, each input at risk as soon as its code was called."""
    judged = []
    at_risk = [row for row in audited.standings if row.standing is Standing.AT_RISK]
    with progress("calling the code of inputs at risk") as say:
        for standing, row in drive_inputs(text, at_risk):
            say(f"called the code of {standing.model_class}.{standing.input}")
            yield from _show_row(source, standing, row)
            judged.append((standing, row))
    shown: set[tuple[str, str, str]] = set()
    for standing in audited.standings:
        if standing.standing is not Standing.AT_RISK:
            # An attribute of a layer that many classes hold is one line of the table.
            key = (
                standing.read_by or f"{standing.member}:{standing.model_class}",
                standing.input,
                standing.where,
            )
            yield from _show_row(source, standing, input_row(source, standing), is_new=key not in shown)
            shown.add(key)
    return judged


def _show_row(source: Source, standing: InputStanding, row: Row[Promise], *, is_new: bool = True) -> Document:
    seen = seen_input(source.package, source.version, standing.model_class, standing.input)
    yield {**msgspec.to_builtins(row), "input": standing.input, "standing": standing.standing,
         "why": standing.why, "kind": standing.kind, "member": standing.member, "line": standing.line,
         "warm_up": standing.warm_up, "later_calls": standing.steps, "change": standing.change,
         "writers": [str(place) for place in standing.writers], "read_by": standing.read_by,
         "seen": seen.seen if seen else ""}  # fmt: skip
    at_risk = standing.standing is Standing.AT_RISK
    if standing.standing is not Standing.SAME and is_new:
        style = "red" if at_risk else ""
        yield from _labelled(standing.standing, f"{standing.model_class}.{standing.input}", style)
        yield from _labelled("", f"{standing.why} ({standing.where})", style)
    if at_risk:
        place = f" ({row.where})" if row.where and row.where not in row.detail else ""
        promise = f"{row.rule} under {row.arm}: " if row.arm else ""
        word, style = _WORDS[row.verdict]
        yield from _labelled(f"  {word}", f"{promise}{row.detail}{place}", style)
        shown = f"{row.evidence}: {seen.seen if seen else 'in no running engine yet'}"
        yield from _labelled("  evidence", shown)


def _labelled(label: str, text: str, style: str = "") -> Document:
    """Yield a word and after it a text; the label of a source may be too long for one line."""
    if len(label) >= _LABEL:
        yield Line(label, style)
        label = ""
    yield Line(cell(text), style, lead=label.ljust(_LABEL))


def _counted(number: int, noun: str, counts: Mapping[Standing, int]) -> str:
    """Return how many there are of a noun, and how many of them have each standing."""
    return f"{plural(number, noun)}: {', '.join(f'{count} {standing}' for standing, count in counts.items())}"
