"""Upstream issues: their links, what became of them, and the incident that each belongs to."""

import re

import pytest

from deepstack_harness.catalogue.incidents import catalogue, find
from deepstack_harness.catalogue.known_failures import known_failures
from deepstack_harness.catalogue.upstream import Report, link_of, reports, state_of
from deepstack_harness.errors import UsageError

REFERENCES = {reference for incident in catalogue() for reference in incident.references}
REFERENCES |= {failure.reference for failure in known_failures()}


@pytest.mark.parametrize("reference", sorted(REFERENCES))
def test_every_upstream_reference_has_a_link(reference: str) -> None:
    project, _, number = reference.partition(" ")
    if project in ("sequence", "unreported"):
        assert link_of(reference) is None
    else:
        assert str(link_of(reference)).endswith(f"/issues/{number}")


@pytest.mark.parametrize("report", reports().values(), ids=reports())
def test_a_report_belongs_to_an_incident_or_says_why_to_none(report: Report) -> None:
    assert link_of(report.reference)
    assert re.fullmatch(r"20\d\d-(0[1-9]|1[0-2])", report.seen)
    assert report.kind == "pull request" or report.state != "merged"
    known = {reference for incident in catalogue() for reference in incident.references}
    assert (report.reference in known) == (not report.reason)


def test_the_state_of_a_reference() -> None:
    assert state_of("sglang 33726") == "pull request, open in 2026-08"
    assert state_of("vllm 43602") is None


def test_who_asks_for_a_report_of_no_incident_is_told_why() -> None:
    with pytest.raises(UsageError, match="'LightLLM#1155' is no incident: a right design"):
        find("LightLLM#1155")


@pytest.mark.parametrize(
    ("alias", "incident"),
    [
        ("vllm-ascend 6261", "18098"),
        ("tpu-inference 3164", "2266"),
        ("mlx-vlm 581", "2296"),
        ("mlx-engine 237", "1635"),
        ("onnxruntime-genai 1989", "1635"),
        ("MNN 4499", "44384"),
        ("sonar 1664", "41485"),
        ("sglang 13055", "33726"),
        ("mbridge 47", "129"),
        ("ms-swift 6477", "6514"),
    ],
)
def test_a_report_of_the_same_fault_finds_its_incident(alias: str, incident: str) -> None:
    assert find(alias).id == incident
