"""Every incident of the catalogue: each revision breaks exactly the rules it is known to break.

Every day an incident is played whole on its first family; on its other families compiled cases
are nightly, and so are with Inductor all but its first faulty and its last fixed revision.
"""

from collections.abc import Iterator

import pytest

from cases.played import observed
from deepstack_harness.catalogue.incidents import catalogue
from deepstack_harness.catalogue.matrix import Where, daily, plan_incident
from deepstack_harness.contract.case import PlannedCase
from deepstack_harness.oracles.judged_case import judge_case


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


def _name(planned: PlannedCase) -> str:
    case = planned.case
    return f"{case.family}-{case.buffer.name}-{case.arm.name}-{case.trace}".replace(" ", "_")


@pytest.mark.parametrize("planned", list(cases()))
def test_breaks_what_it_is_known_to_break(planned: PlannedCase) -> None:
    judged = judge_case(planned, observed(planned.case))
    assert judged.as_expected, [
        said for said in judged.judgements if said.rule in judged.broken | judged.unjudged
    ]
