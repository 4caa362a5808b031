"""A furnished class returns what a real object returns, or it is refused."""

from pathlib import Path

import pytest

from cases.selftest.engines.class_mutants import Mutant, furnished_results, live_results, mutants, written
from cases.selftest.engines.rebound_classes import RIGHT, WRONG, Rebound
from deepstack_harness.errors import Reason

SOURCES = {**RIGHT, **WRONG}


@pytest.mark.parametrize(("place", "means"), [*enumerate(SOURCES)][::2])
def test_a_mutated_class_returns_what_its_objects_return_or_is_refused(
    place: int, means: str, tmp_path: Path
) -> None:
    """One of the 27 to 35 mutants of every second source, another change of another line in each."""
    source: Rebound = SOURCES[means]
    found = list(mutants(str(source)))
    mutant = found[7 * place % len(found)]
    root = written(source, mutant, tmp_path)
    try:
        live = live_results(root)
    except (ImportError, NameError, AttributeError):
        pytest.skip("Python refuses the module too")
    furnished = furnished_results(root)
    refused = all(isinstance(result, Reason) for result in furnished)
    assert refused or furnished == live


def test_a_mutant_of_each_kind_is_called_and_differs_from_the_source(tmp_path: Path) -> None:
    source = RIGHT["plain"]
    unchanged = live_results(source_tree(source, tmp_path / "plain"))
    changed = (mutant for mutant in mutants(str(source)) if mutant.how != "deleted")
    for number, mutant in enumerate(changed):
        root = written(source, mutant, tmp_path / str(number))
        if furnished_results(root) == live_results(root) != unchanged:
            return
    pytest.fail("no mutant shows")


def source_tree(source: Rebound, root: Path) -> Path:
    """Write the source as it is, with what it is imported over."""
    return written(source, Mutant("as it is", "", 0, str(source)), root)
