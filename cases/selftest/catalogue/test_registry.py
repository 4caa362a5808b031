"""Names of families, callers and buffers, as they are read from the files of their classes."""

from pathlib import Path

import pytest

from deepstack_harness.catalogue.buffers import REVISIONS
from deepstack_harness.catalogue.incidents import catalogue
from deepstack_harness.catalogue.registry import CALLERS, ReadClass, read_classes
from deepstack_harness.contract.names import imported
from deepstack_harness.models.engine import Engine, SequenceParallel
from deepstack_harness.models.engine_faults import MadeElsewhere

TEXT = '''
class SkipsSet(Engine):
    """Engine that never sets.

    More of it.
    """

    faulty: ClassVar[bool] = True
    rule = Rule.R1
    arm = "eager"
    levels = 3
    rows: int


class Other:
    name = "other_2"


def function(): ...
'''


def test_classes_are_read_with_what_they_state_and_nothing_is_imported(tmp_path: Path) -> None:
    (tmp_path / "faults.py").write_text(TEXT)
    skips, other = read_classes(tmp_path / "faults.py", "acme.engines")
    assert skips == ReadClass(
        "acme.engines.faults:SkipsSet",
        "skips_set",
        "Engine that never sets.",
        {"faulty": True, "rule": "R1", "arm": "eager"},
    )
    assert other == ReadClass("acme.engines.faults:Other", "other_2", "", {"name": "other_2"})


def engines(base: type[Engine]) -> set[type[Engine]]:
    return {base}.union(*(engines(each) for each in base.__subclasses__()))


def test_every_engine_is_a_caller_but_for_two_bases() -> None:
    named = {imported(entry.target) for entry in CALLERS.own.values()}
    ours = {each for each in engines(Engine) if each.__module__.startswith("deepstack_harness.models.")}
    assert ours - named == {SequenceParallel, MadeElsewhere}
    assert next(iter(CALLERS)) == "engine"


@pytest.mark.parametrize("name", CALLERS.own)
def test_a_caller_is_faulty_where_the_catalogue_says_so_of_a_right_buffer(name: str) -> None:
    subject = f"reference@{name}"
    incidents = catalogue()
    faulty = any(subject in incident.faulty for incident in incidents)
    fixed = any(subject in incident.fixed for incident in incidents)
    assert getattr(imported(CALLERS[name].target), "faulty") is bool(CALLERS[name].fault)  # noqa: B009
    assert not (faulty and fixed)
    if faulty or fixed:
        assert bool(CALLERS[name].fault) == faulty


@pytest.mark.parametrize("name", REVISIONS.own)
def test_a_revision_is_described_by_a_whole_sentence(name: str) -> None:
    assert REVISIONS[name].summary.endswith(".")
    assert callable(imported(REVISIONS[name].target))
