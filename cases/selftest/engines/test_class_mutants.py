"""The class that is driven answers as a real object does, or it is refused."""

from pathlib import Path

import pytest

from cases.selftest.engines.class_mutants import Mutant, driven_answers, live_answers, mutants, written
from cases.selftest.engines.rebound_classes import RIGHT, WRONG, Rebound
from deepstack_harness.errors import Reason

SOURCES = {**RIGHT, **WRONG}


@pytest.mark.parametrize(("place", "means"), [*enumerate(SOURCES)][::2])
def test_a_mutated_class_answers_as_its_objects_do_or_is_refused(
    place: int, means: str, tmp_path: Path
) -> None:
    """One of the 27 to 35 mutants of every second source, another change of another line in each."""
    source: Rebound = SOURCES[means]
    found = list(mutants(str(source)))
    mutant = found[7 * place % len(found)]
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
