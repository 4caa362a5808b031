"""Every incident of the catalogue: each revision breaks exactly the rules it is known to break.

Every day an incident is played whole on its first family; on its other families compiled cases
are nightly, and so are with Inductor all but its first faulty and its last fixed revision.
"""

from collections.abc import Iterator

import pytest

from deepstack_harness.catalogue.incidents import catalogue
from deepstack_harness.catalogue.matrix import Planned, Where, daily, plan_incident
from deepstack_harness.play.cells import Runner


def cases() -> Iterator[object]:
    for incident in catalogue():
        for family in incident.families:
            for planned in plan_incident(incident, Where(family)):
                # One process per backend: the first Inductor compile of a process costs 20 s.
                arm = planned.case.arm
                # So do ranks: one worker starts them.
                group = pytest.mark.xdist_group("ranks" if arm.ranks > 1 else str(arm.backend))
                slow = [] if daily(incident, planned.case) else [pytest.mark.slow]
                yield pytest.param(planned, id=f"{incident.id}-{_name(planned)}", marks=[group, *slow])


def _name(planned: Planned) -> str:
    case = planned.case
    return f"{case.family}-{case.revision}-{case.arm.name}-{case.trace}".replace(" ", "_")


@pytest.fixture(scope="session")
def runner() -> Runner:
    return Runner()


@pytest.mark.parametrize("planned", list(cases()))
def test_breaks_what_it_is_known_to_break(runner: Runner, planned: Planned) -> None:
    cell = runner.play(planned)
    assert not cell.unjudged, cell.judgements
    assert cell.broken == planned.must_break, [said for said in cell.judgements if said.rule in cell.broken]
