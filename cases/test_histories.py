"""Incidents of any compiled region: a wrong program breaks its promises, and a right one fulfils them."""

import pytest

from deepstack_harness.catalogue.incidents import STEPS, Incident, catalogue
from deepstack_harness.catalogue.registry import HISTORIES
from deepstack_harness.cli.repro_steps import judge_programs

INCIDENTS = [incident for incident in catalogue() if incident.system == STEPS]


def marks(incident: Incident) -> list[pytest.MarkDecorator]:
    """Return the group of an incident, and `slow` for one of generated code: 10 s for each compile."""
    inductor = [pytest.mark.xdist_group("inductor"), pytest.mark.slow]
    return inductor if incident.nightly else [pytest.mark.xdist_group("eager")]


@pytest.mark.parametrize(
    "incident", [pytest.param(incident, id=incident.id, marks=marks(incident)) for incident in INCIDENTS]
)
def test_wrong_programs_are_caught_and_right_ones_pass(incident: Incident) -> None:
    programs = list(judge_programs(incident))
    assert [
        f"{program.name} under {program.arm}\n{program.judged}"
        for program in programs
        if not program.as_expected
    ] == []
    broken = {program.name for program in programs if program.broken}
    assert broken == set(incident.faulty)
    assert {promise for program in programs for promise in program.promises} == set(incident.promises)
    script = incident.script
    assert script is not None
    of_script = [
        program for program in programs if (program.name, program.arm) == (script.subject, script.arm)
    ]
    effects = {finding.effect for program in of_script for finding in program.broken}
    assert effects - {None} == set(incident.effects)


def test_every_program_belongs_to_an_incident_and_states_whether_it_is_wrong() -> None:
    faulty = {name for incident in INCIDENTS for name in incident.faulty}
    fixed = {name for incident in INCIDENTS for name in incident.fixed}
    assert faulty | fixed == set(HISTORIES)
    assert {name for name, entry in HISTORIES.items() if entry.fault} == faulty
