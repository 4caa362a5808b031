"""Every incident of the catalogue: each revision breaks exactly the rules it is known to break.

Every day all uncompiled cases are played, and the compiled ones of faulty subjects that decide an incident,
on its first family with one layer; at night `run` plays all layers.  The other compiled ones, 1 s to 6 s
each, are nightly, and so are all of a `nightly` incident: `cases/selftest/catalogue/test_scripts_run.py` runs
the program of each incident every day, faulty and fixed, and 43602 has its right twin here.
"""

from collections.abc import Iterator

import pytest

from cases.played import observed
from deepstack_harness.catalogue.incidents import Incident, catalogue, decisive
from deepstack_harness.catalogue.plans import Where, plan_incident
from deepstack_harness.contract.arm import ArmSpec, Backend
from deepstack_harness.contract.case import Case, PlannedCase
from deepstack_harness.contract.observation import Observation
from deepstack_harness.contract.oracles.judge import judge_case


def _is_faulty(incident: Incident, case: Case) -> bool:
    return bool({case.buffer.name, f"{case.buffer.name}@{case.caller}"} & set(incident.faulty))


def cases() -> Iterator[object]:
    for incident in catalogue():
        for family in incident.families:
            plan = plan_incident(incident, Where(family))
            decides = decisive(incident, plan) if family == incident.families[0] else ()
            for planned in plan:
                # One process per backend: the first Inductor compile of a process costs 20 s.
                arm = planned.case.arm
                # So do ranks: one worker starts them.
                group = pytest.mark.xdist_group("ranks" if arm.ranks > 1 else str(arm.backend))
                daily = planned in decides and not incident.nightly
                daily &= incident.id == "43602" or _is_faulty(incident, planned.case)
                # Inductor compiles one faulty case every day, 17 s, and the others at night.
                daily &= arm.backend is not Backend.INDUCTOR or (
                    incident.id == "43602" and planned.case.subject in incident.faulty
                )
                slow = [pytest.mark.slow] if arm.compiled and not daily else []
                few = daily and arm.compiled and arm.ranks == 1
                yield pytest.param(planned, few, id=f"{incident.id}-{_name(planned)}", marks=[group, *slow])


def _name(planned: PlannedCase) -> str:
    case = planned.case
    return f"{case.family}-{case.buffer.name}-{case.arm.name}-{case.trace}".replace(" ", "_")


@pytest.mark.parametrize(("planned", "few_layers"), list(cases()))
def test_breaks_what_it_is_known_to_break(planned: PlannedCase, *, few_layers: bool) -> None:
    judged = judge_case(planned, observed(planned.case, few_layers=few_layers))
    assert judged.as_expected, [
        said for said in judged.judgements if said.rule in judged.broken | judged.unjudged
    ]


def programs() -> Iterator[object]:
    """Yield each incident of the buffer with the cases of its program: its subject under its arm."""
    for incident in catalogue():
        if incident.script is None or not incident.families:
            continue
        subject, arm = incident.script.subject, ArmSpec.parse(incident.script.arm)
        plan = plan_incident(incident, Where(incident.families[0]))
        of_program = [case for case in plan if (case.case.subject, case.case.arm) == (subject, arm)]
        marks = [pytest.mark.xdist_group("ranks" if arm.ranks > 1 else str(arm.backend))]
        marks += [pytest.mark.slow] if arm.backend is Backend.INDUCTOR or incident.nightly else []
        yield pytest.param(incident, of_program, id=incident.id, marks=marks)


@pytest.mark.parametrize(("incident", "cases"), list(programs()))
def test_the_program_of_an_incident_has_its_effects(incident: Incident, cases: list[PlannedCase]) -> None:
    few = not incident.nightly
    judged = [
        judge_case(
            case, observed(case.case, few_layers=few and case.case.arm.compiled and case.case.arm.ranks == 1)
        )
        for case in cases
    ]
    effects = {
        judgement.effect
        for case in judged
        for judgement in case.judgements
        if judgement.rule in incident.rules
    }
    assert judged
    assert effects - {None} == set(incident.effects)


DROPPED_GUARDS = {
    "43602": "payload", "53516": "payload", "50891": "payload", "empty-on-text": "payload", "129": "payload",
    "2673": "hidden", "2266": "self.tokens_set", "payload-on-model": "self.held",
}  # fmt: skip
"""Incidents whose fault is a dropped guard, and the input that it is about. The others fail no guard."""


def guarded_cases() -> Iterator[object]:
    """Yield the cases that drop guards; daily a faulty one for each input above, and one right one."""
    missing = {*DROPPED_GUARDS.values(), "right"}
    for incident in catalogue():
        of_incident = DROPPED_GUARDS.get(incident.id)
        for planned in plan_incident(incident, Where(incident.families[0])) if incident.families else ():
            case = planned.case
            if case.arm.name == "eager/drop_all":
                kind = of_incident if _is_faulty(incident, case) else "right"
                daily = of_incident is not None and kind in missing
                missing -= {kind} if daily else set()
                marks = [pytest.mark.xdist_group("eager"), *([] if daily else [pytest.mark.slow])]
                yield pytest.param(incident, case, id=f"{incident.id}-{_name(planned)}", marks=marks)


@pytest.mark.parametrize(("incident", "case"), list(guarded_cases()))
def test_an_incident_that_is_a_dropped_guard_is_found_by_it(incident: Incident, case: Case) -> None:
    """The right twin fails none, nor does a faulty subject whose fault is something else."""
    seen = observed(case, few_layers=True)
    failed = {guard.name for guard in seen.graphs.failed} if seen.graphs else set()
    if incident.id in DROPPED_GUARDS and _is_faulty(incident, case) and not _raises_before_it_runs(seen):
        assert DROPPED_GUARDS[incident.id] in failed
    else:
        assert failed == set()


def _raises_before_it_runs(seen: Observation) -> bool:
    return any(facts.raised and facts.raised.call != "decoder" for facts in seen.steps)


def test_every_incident_that_is_a_dropped_guard_is_played() -> None:
    played = {param.values[0].id for param in guarded_cases()}  # type: ignore[attr-defined]
    assert set(DROPPED_GUARDS) <= played
