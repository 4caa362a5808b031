"""Decisive cases of an incident: the few that show it first, taken from its own entry.  No torch."""

from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby

from deepstack_harness.catalogue.incidents import Incident
from deepstack_harness.contract.arm_spec import Backend
from deepstack_harness.contract.case import PlannedCase
from deepstack_harness.contract.rules import Rule

_STAGES = ({Backend.NONE}, {Backend.EAGER, Backend.AOT_EAGER}, {Backend.INDUCTOR, Backend.H200})
"""Uncompiled; Dynamo without code generation; Inductor, whose first compile in a process costs 6 to 20 s."""

Pair = tuple[PlannedCase, PlannedCase]
"""A faulty case, and a correct one on the same trace under the same arm."""


def decisive(incident: Incident, plan: Iterable[PlannedCase]) -> list[PlannedCase]:
    """Return the cheapest cases of an incident's plan that show it, in the order of the plan.

    These are one pair per stage (uncompiled, Dynamo alone, Inductor) as far as the incident breaks its rules
    there, and one more for each of its rules that these pairs do not break.  The plan is that of
    `plan_incident`: cheap backends first.
    """
    pairs = list(_pairs(incident, plan))
    of_stages = ([pair for pair in pairs if pair[0].case.arm.backend in stage] for stage in _STAGES)
    chosen = [_most_broken(incident, of_stage) for of_stage in of_stages if of_stage]
    for rule in incident.rules:
        if not any(rule in _broken(incident, pair[0]) for pair in chosen):
            chosen += [pair for pair in pairs if rule in _broken(incident, pair[0])][:1]
    # A pair may have been chosen for two reasons.
    wanted = {planned for pair in chosen for planned in pair}
    return [planned for pair in pairs for planned in pair if planned in wanted]


def decisive_of_source(plan: Sequence[PlannedCase]) -> list[PlannedCase]:
    """Return the cases of a source's plan that are cheap, and those under the first Inductor arm alone.

    Every trace is kept: a class may have the fault on any of them.  A trace that only other Inductor arms
    play keeps its first arm.
    """
    cheap = [each for each in plan if each.case.arm.backend is not Backend.INDUCTOR and not each.is_control]
    dear = [each for each in plan if each.case.arm.backend is Backend.INDUCTOR]
    played = {each.case.trace for each in cheap}
    first_of = {each.case.trace: each for each in reversed(dear)}
    alone = [each for trace, each in first_of.items() if trace not in played]
    return [*cheap, *(each for each in dear if each is dear[0] or each in alone)]


def _pairs(incident: Incident, plan: Iterable[PlannedCase]) -> Iterator[Pair]:
    """Yield for each trace and arm the faulty case that breaks most rules there, and a correct one."""
    played = [planned for planned in plan if not planned.is_control]
    for _, group in groupby(played, key=lambda one: (one.case.trace, one.case.arm, one.case.dtype)):
        cell = {planned.case.subject: planned for planned in group}
        broken = [cell[one] for one in _faulty(incident) if one in cell and _broken(incident, cell[one])]
        faulty = max(broken, key=lambda one: len(_broken(incident, one)), default=None)
        fixed = next((cell[one] for one in _fixed(incident) if one in cell), None)
        if faulty is not None and fixed is not None:
            yield faulty, fixed


def _faulty(incident: Incident) -> list[str]:
    """Return the subject that the incident's program shows, then the other faulty ones."""
    shown = [incident.script.subject] if incident.script else []
    return [*shown, *incident.faulty]


def _fixed(incident: Incident) -> list[str]:
    """Return the correct subjects: the fix that a reference names, then the last one first."""
    numbers = {reference.split()[-1] for reference in incident.references}
    named = [one for one in incident.fixed if one.partition("@")[0].removeprefix("pr") in numbers]
    return [*named, *reversed(incident.fixed)]


def _broken(incident: Incident, faulty: PlannedCase) -> frozenset[Rule]:
    return (faulty.must_break or frozenset()) & frozenset(incident.rules)


def _most_broken(incident: Incident, pairs: list[Pair]) -> Pair:
    """Return the pair that breaks most of the incident's rules; of equals the first, the cheapest."""
    return max(pairs, key=lambda pair: len(_broken(incident, pair[0])))
