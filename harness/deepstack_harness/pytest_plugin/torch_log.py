"""Keep torch's DEBUG records out of what pytest shows of a failing test.

torch sets its logger `torch.__trace` to DEBUG and writes a thousand records for a graph
(`torch._logging.trace_structured`), which the handlers of pytest, of level 0, all take.
"""

import logging
from collections.abc import Callable

import pytest

_HANDLERS = ("caplog_handler", "report_handler")


def quiet_torch(config: pytest.Config) -> Callable[[], None]:
    """Drop torch's records below INFO until the function that is returned is called.

    Nothing is dropped where the project sets `log_level`: it asked for what it gets.
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
