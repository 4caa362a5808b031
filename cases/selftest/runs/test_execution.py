"""What a run plays: the matrix as data, selections over it, groups, shards and case numbers."""

import pytest

from deepstack_harness.catalogue.buffers import REVISIONS
from deepstack_harness.catalogue.incidents import CONTRACT_RUNS
from deepstack_harness.catalogue.plans import CAPTURE_TRACES, CONTRACT_TRACES
from deepstack_harness.contract.case import PlannedCase
from deepstack_harness.errors import UsageError
from deepstack_harness.runs.execution import COLUMNS, Tier, matrix, select
from deepstack_harness.runs.pools import fingerprint, grouped, part_of
from deepstack_harness.runs.records import Shard


@pytest.fixture(scope="module")
def nightly() -> list[PlannedCase]:
    return matrix(Tier.NIGHTLY, ["cpu"])


def test_ci_has_at_most_60_groups_and_nightly_all_of_it(nightly: list[PlannedCase]) -> None:
    ci = grouped(matrix(Tier.CI, ["cpu"]))
    assert 10 < len(ci) <= 60
    daily = {planned.id for group in ci for planned in group.cases}
    assert daily < {planned.id for planned in nightly}


def test_a_case_is_planned_once_and_nothing_contradicts_itself(nightly: list[PlannedCase]) -> None:
    cases = [planned for group in grouped(nightly) for planned in group.cases]
    assert len({planned.id for planned in cases}) == len(cases) < len(nightly)
    assert len({(planned.id, planned.must_break) for planned in nightly}) == len(cases)


def test_the_contract_is_played_on_every_revision_and_expected_to_be_kept_by_reference() -> None:
    runs = CONTRACT_RUNS.entries
    assert {run.trace for run in runs} >= {*CONTRACT_TRACES, *CAPTURE_TRACES}
    for trace in (*CONTRACT_TRACES, CAPTURE_TRACES[0]):
        assert {name for run in runs if run.trace == trace for name in run.revisions} == set(REVISIONS)
    assert not any("reference" in run.broken for run in runs)


def test_every_device_is_planned() -> None:
    devices = {group.device for group in grouped(matrix(Tier.CI, ["cpu", "cuda"]))}
    assert devices == {"cpu", "cuda"}


@pytest.mark.parametrize(
    ("selection", "column", "values"),
    [
        ("family == 'granite4_vision' and arm == 'eager'", "family", {"granite4_vision"}),
        ("backend == 'inductor'", "arm", None),
        ("dtype != 'float32'", "dtype", {"bfloat16", "float16"}),
        ("incident in ['43602', '16785']", "incident", {"43602", "16785"}),
        ("caller != 'engine' and capture == 'none'", "caller", None),
        ("trace.str.contains('resize')", "trace", None),
    ],
)
def test_a_selection_is_an_expression_over_the_columns(
    nightly: list[PlannedCase], selection: str, column: str, values: set[str] | None
) -> None:
    found = select(nightly, selection)
    assert 0 < len(found) < len(nightly)
    if values is not None:
        seen = {str(getattr(planned.case, column, planned.incident)) for planned in found}
        assert seen == values


def test_an_incident_has_its_cases_though_it_shares_them(nightly: list[PlannedCase]) -> None:
    """43602 and 53516 play the same cases."""
    for incident in {planned.incident for planned in nightly if planned.incident}:
        assert {planned.incident for planned in select(nightly, f"incident == '{incident}'")} == {incident}


@pytest.mark.parametrize(
    "selection",
    ["family ==", "colour == 'red'", "family", "family == 'none'", "1", "__import__('os')", "@pd"],
)
def test_a_selection_that_does_not_read_or_holds_nowhere_is_quoted(
    nightly: list[PlannedCase], selection: str
) -> None:
    with pytest.raises(UsageError) as said:
        select(nightly, selection)
    assert f"'{selection}'" in str(said.value)
    assert all(column in str(said.value) for column in COLUMNS)


def test_groups_share_family_arm_and_device(nightly: list[PlannedCase]) -> None:
    for group in grouped(nightly):
        assert {planned.group for planned in group.cases} == {group.name}


def test_shards_are_disjoint_and_together_everything(nightly: list[PlannedCase]) -> None:
    groups = grouped(nightly)
    parts = [part_of(groups, Shard(index, 3)) for index in (1, 2, 3)]
    assert sorted(group.name for part in parts for group in part) == sorted(group.name for group in groups)
    again = [part_of(grouped(reversed(nightly)), Shard(index, 3)) for index in (1, 2, 3)]
    assert [[group.name for group in part] for part in parts] == [
        [one.name for one in part] for part in again
    ]
    assert fingerprint(groups) == fingerprint([group for part in parts for group in part])


@pytest.mark.parametrize("text", ["0/3", "4/3", "3", "a/b", "1/0", "1/3/3", "-1/3"])
def test_a_bad_shard_is_quoted(text: str) -> None:
    with pytest.raises(UsageError, match="I/N"):
        Shard.parse(text)


def test_the_number_of_a_case_stays(nightly: list[PlannedCase]) -> None:
    """It is the key of every comparison: another one makes all of history missing."""
    trace = "cap 16: profile 16; set 16; forward 16"
    found = [
        planned.id
        for planned in select(nightly, "incident == '43602' and arm == 'eager' and revision == 'pr40145'")
        if str(planned.case.trace) == trace
    ]
    assert found == ["6a398dbad390"]
