"""Settings of the plugin: its options and ini keys, hypothesis profiles, torch's log records.

torch sets its logger `torch.__trace` to DEBUG and writes a thousand records for a graph
(`torch._logging.trace_structured`), which the handlers of pytest, of level 0, all take.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import pytest

JUDGED: pytest.StashKey[list[dict[str, Any]]] = pytest.StashKey()
"""Results of the fixtures in one test: cases with their rows, as plain data."""

NOTICES = (r"ignore:Guards may run slower on Python 3\.13\.0:RuntimeWarning",)
"""Filters for warnings of torch that are about the machine, and not about the code that it compiles.

Where a project makes warnings errors, such a notice would end each compilation.  The sentence is that of
torch/_dynamo/guards.py, read in torch 2.15 (`_get_generic_dict_manager_example_value`).
"""


def setting(config: pytest.Config, name: str) -> str:
    """Return an option, else the ini key of its name; empty where neither is given."""
    given = config.getoption(f"--deepstack-{name}")
    return str((config.getini(f"deepstack_{name}") if given is None else given) or "")


def without_gpu(config: pytest.Config, why: str) -> None:
    """Skip, or with `--deepstack-require-gpu` fail."""
    if config.getoption("--deepstack-require-gpu") or config.getini("deepstack_require_gpu"):
        pytest.fail(f"{why}, and --deepstack-require-gpu was given", pytrace=False)
    pytest.skip(why)


def load_profile(name: str) -> None:
    """Register the hypothesis profiles and load one; raises `pytest.UsageError` for an unknown name.

    `ci` plays the same examples every time, `dev` looks for new ones, `nightly` looks long.
    """
    from hypothesis import HealthCheck, settings  # 0.2 s: only a run that takes a profile pays for it

    # `too_slow` and deadlines are clocks: a busy machine is no fault of the code.
    no_clock = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
    settings.register_profile("ci", no_clock, derandomize=True, database=None)
    settings.register_profile("dev", no_clock)
    settings.register_profile("nightly", no_clock, max_examples=5000, print_blob=True)
    if name not in {"ci", "dev", "nightly"}:
        raise pytest.UsageError(f"unknown hypothesis profile '{name}'; known are ci, dev, nightly")
    settings.load_profile(name)


_HANDLERS = ("caplog_handler", "report_handler")


def quiet_torch(config: pytest.Config) -> Callable[[], None]:
    """Drop torch's records below INFO until the function that is returned is called.

    Nothing is dropped where the project sets `log_level`: these records are then wanted.
    """
    plugin = config.pluginmanager.get_plugin("logging-plugin")
    if plugin is None or config.getoption("log_level") or config.getini("log_level"):
        return lambda: None
    handlers = [getattr(plugin, name) for name in _HANDLERS if hasattr(plugin, name)]
    for handler in handlers:
        handler.addFilter(_is_wanted)

    def restore() -> None:
        for handler in handlers:
            handler.removeFilter(_is_wanted)

    return restore


def _is_wanted(record: logging.LogRecord) -> bool:
    return record.levelno >= logging.INFO or record.name.partition(".")[0] != "torch"
