"""Incidents of any compiled region: each wrong program breaks its promises, and each right one keeps them."""

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
    "incident", [pytest.param(each, id=each.id, marks=marks(each)) for each in INCIDENTS]
)
def test_wrong_programs_are_caught_and_right_ones_kept(incident: Incident) -> None:
    programs = list(judge_programs(incident))
    assert [f"{each.name} under {each.arm}\n{each.judged}" for each in programs if not each.as_expected] == []
    broken = {each.name for each in programs if each.broken}
    assert broken == set(incident.faulty)
    assert {promise for each in programs for promise in each.promises} == set(incident.promises)
    script = incident.script
    assert script is not None
    of_script = [each for each in programs if (each.name, each.arm) == (script.subject, script.arm)]
    effects = {finding.effect for each in of_script for finding in each.broken}
    assert effects - {None} == set(incident.effects)


def test_every_program_belongs_to_an_incident_and_says_whether_it_is_wrong() -> None:
    faulty = {name for incident in INCIDENTS for name in incident.faulty}
    fixed = {name for incident in INCIDENTS for name in incident.fixed}
    assert faulty | fixed == set(HISTORIES)
    assert {name for name, entry in HISTORIES.items() if entry.fault} == faulty
