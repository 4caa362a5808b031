"""The class that is driven answers as a real object does, or it is refused."""

from pathlib import Path

import pytest

from cases.selftest.engines.class_mutants import Mutant, driven_answers, live_answers, mutants, written
from cases.selftest.engines.rebound_classes import RIGHT, WRONG, Rebound
from deepstack_harness.errors import Reason

_EVERY = 67
"""Of 1,500 mutants so many are left out for each that is played."""
SOURCES = {**RIGHT, **WRONG}
ALL = [(means, mutant) for means, source in SOURCES.items() for mutant in mutants(str(source))]


def _named(means: str, mutant: Mutant) -> str:
    return f"{means}: {mutant.name} {mutant.how} at {mutant.line}"


@pytest.mark.parametrize(
    ("means", "mutant"), [pytest.param(*each, id=_named(*each)) for each in ALL[::_EVERY]]
)
def test_a_mutated_class_answers_as_its_objects_do_or_is_refused(
    means: str, mutant: Mutant, tmp_path: Path
) -> None:
    source: Rebound = SOURCES[means]
    root = written(source, mutant, tmp_path)
    try:
        live = live_answers(root)
    except (ImportError, NameError, AttributeError):
        pytest.skip("Python refuses the module too")
    driven = driven_answers(root)
    refused = all(isinstance(each, Reason) for each in driven)
    assert refused or driven == live


def test_a_mutant_of_each_kind_is_driven_and_differs_from_the_source(tmp_path: Path) -> None:
    source = RIGHT["plain"]
    unchanged = live_answers(source_tree(source, tmp_path / "plain"))
    for number, mutant in enumerate(each for each in mutants(str(source)) if each.how != "deleted"):
        root = written(source, mutant, tmp_path / str(number))
        driven = driven_answers(root)
        if driven == live_answers(root) != unchanged:
            return
    pytest.fail("no mutant shows")


def source_tree(source: Rebound, root: Path) -> Path:
    """Write the source as it is, with what it is imported over."""
    return written(source, Mutant("as it is", "", 0, str(source)), root)
