"""Fixtures of the harness's own tests."""

import logging
import signal
import sys
from collections.abc import Iterator
from contextlib import closing
from logging.handlers import BufferingHandler
from pathlib import Path

import pytest
import torch

from cases.selftest.workers.processes import Witness
from deepstack_harness.play.model import Model


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Keep the tests of a module's fixture on one worker of pytest-xdist, or each worker makes it again."""
    for item in items:
        if isinstance(item, pytest.Function) and item.get_closest_marker("xdist_group") is None:
            file = item.nodeid.partition("::")[0]
            fixtures = (known[-1] for known in item._fixtureinfo.name2fixturedefs.values())
            if any(fixture.scope == "module" and fixture.baseid == file for fixture in fixtures):
                item.add_marker(pytest.mark.xdist_group(file))


@pytest.fixture
def logged() -> Iterator[list[logging.LogRecord]]:
    """Records that are logged during a test; the level of the root is put back.

    pytest's own `caplog` is turned off: its plugin goes through the thousand loggers of torch six times for
    each test, 2 % of a run.
    """
    root, handler = logging.getLogger(), BufferingHandler(capacity=1_000_000)
    level = root.level
    root.addHandler(handler)
    yield handler.buffer
    root.removeHandler(handler)
    root.setLevel(level)


@pytest.fixture(scope="session")
def qwen() -> Model:
    """The tiny Qwen3-VL decoder, drawn once."""
    torch.set_num_threads(1)
    return Model.build("qwen3_vl")


@pytest.fixture(autouse=True, scope="module")
def wide_lines() -> Iterator[None]:
    """State a width that no sentence has, so that tests of sentences need not put them together.

    `cases/selftest/document/test_width.py` has the width that users get.
    """
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setenv("COLUMNS", "1000")
        yield


@pytest.fixture(autouse=True)
def same_import_path() -> Iterator[None]:
    """Put `sys.path` back: a command that imports a user's file adds its folder, and children inherit it."""
    before = [*sys.path]
    yield
    sys.path[:] = before


@pytest.fixture
def reset_signals() -> Iterator[None]:
    """Reset SIGINT and SIGHUP, which `nohup` and a shell's `&` ignore, in the children that a test starts.

    A child inherits what is ignored, and has the default of what this process handles.
    """
    before = {
        signal.SIGINT: signal.signal(signal.SIGINT, signal.default_int_handler),
        signal.SIGHUP: signal.signal(signal.SIGHUP, lambda *_: None),
    }
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.fixture
def witness(tmp_path: Path) -> Iterator[Witness]:
    """A FIFO whose end of file shows that no process of a test is left."""
    with closing(Witness(tmp_path)) as found:
        yield found
