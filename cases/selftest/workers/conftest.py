"""Fixtures for tests of child processes."""

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from cases.selftest.workers.processes import Witness


@pytest.fixture
def witness(tmp_path: Path) -> Iterator[Witness]:
    with closing(Witness(tmp_path)) as found:
        yield found
