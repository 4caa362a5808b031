"""Cleanup after tests of hunts."""

from collections.abc import Iterator

import pytest

from deepstack_harness.play.work import SHARED_SESSION


@pytest.fixture(autouse=True)
def close_session() -> Iterator[None]:
    """End the session that the cases of a hunt share: while it is open, torch has its settings."""
    yield
    SHARED_SESSION.close()
