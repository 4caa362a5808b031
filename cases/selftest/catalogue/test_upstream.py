"""Links to upstream issues."""

import pytest

from deepstack_harness.catalogue.incidents import catalogue
from deepstack_harness.catalogue.known_failures import known_failures
from deepstack_harness.catalogue.upstream import link_of

REFERENCES = {reference for incident in catalogue() for reference in incident.references}
REFERENCES |= {failure.reference for failure in known_failures()}


@pytest.mark.parametrize("reference", sorted(REFERENCES))
def test_every_upstream_reference_has_a_link(reference: str) -> None:
    project, _, number = reference.partition(" ")
    if project in ("sequence", "unreported"):
        assert link_of(reference) is None
    else:
        assert str(link_of(reference)).endswith(f"/issues/{number}")
