"""Every incident of the catalogue: each revision breaks exactly the rules it is known to break.

Every day all uncompiled cases are played, and the compiled ones that decide each incident, on its first
family with two layers; at night `run` plays all layers.  The other compiled ones, 1 s to 6 s each, are
nightly, and so are all of a `nightly` incident, whose program `cases/selftest/catalogue/test_scripts_run.py`
runs every day, faulty and fixed.
"""

from collections.abc import Iterator

import pytest

from cases.played import observed
from deepstack_harness.catalogue.incidents import catalogue, decisive
from deepstack_harness.catalogue.plans import Where, plan_incident
from deepstack_harness.contract.case import PlannedCase
from deepstack_harness.contract.oracles.judge import judge_case


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
