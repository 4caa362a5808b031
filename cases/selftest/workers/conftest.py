"""Workers of these tests are forks of a server wherever one can be: those that preload a module."""

import pytest

from deepstack_harness.workers import forked


@pytest.fixture(autouse=True)
def _served(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the server import modules of the tests too, which are not our package's."""
    monkeypatch.setattr(forked, "SERVED", "")
    monkeypatch.delenv(forked.NO_FORK_SERVER, raising=False)
