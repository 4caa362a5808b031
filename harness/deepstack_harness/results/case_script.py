"""Programs that show the fault of a case with torch alone."""

from deepstack_harness.catalogue.incidents import catalogue
from deepstack_harness.contract.buffer_ref import BufferKind, BufferRef
from deepstack_harness.contract.case import ENGINE, Case
from deepstack_harness.contract.rules import Rule
from deepstack_harness.contract.verdicts import Judgement
from deepstack_harness.errors import UsageError
from deepstack_harness.oracles.judged_case import JudgedCase
from deepstack_harness.scripts.findings import Whose, render_finding
from deepstack_harness.scripts.standalone import render_script

_OF_BUFFERS = frozenset({Rule.R1, Rule.R2, Rule.R3, Rule.R4, Rule.R5, Rule.R6, Rule.R8})
"""Rules that a buffer alone breaks, so that a script without a decoder shows it."""


def script_of(judged: JudgedCase) -> str | None:
    """Return a program that shows the worst of the rules that a case broke; None where nobody wrote one.

    It is the incident's where that is about this very subject and arm.  Else a rule that needs a decoder,
    such as R0, is shown by the incident's program, on the incident's own subject and arm, which it names; a
    rule of the buffer by one that plays the trace on the buffer alone.
    """
    case = judged.case
    shown = next(said for said in judged.judgements if said.rule in judged.broken)
    incident = next((each for each in catalogue() if each.id == judged.planned.incident), None)
    script = incident.script if incident else None
    try:
        if (
            incident
            and script
            and (
                (script.subject, script.arm) == (case.subject, case.arm.name)
                or (shown.rule not in _OF_BUFFERS and shown.rule in incident.rules)
            )
        ):
            return render_script(incident, case.family)
        return _of_buffer(case, shown)
    except UsageError:
        return None


def _of_buffer(case: Case, shown: Judgement) -> str | None:
    """Return the trace on the buffer alone, where that breaks the rule."""
    if shown.rule not in _OF_BUFFERS or case.caller != ENGINE or not _has_a_name(case.buffer):
        return None
    return render_finding(case.trace, shown.rule, shown.detail, Whose(case.buffer.name))


def _has_a_name(buffer: BufferRef) -> bool:
    """Say whether a program can find the class: not in a source, and not inside a function."""
    return buffer.kind is not BufferKind.SOURCE and "<locals>" not in buffer.name
