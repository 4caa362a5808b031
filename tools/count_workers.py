"""Plugin of coverage.py that keeps the lines that a worker ran.

`Worker.close` kills its worker, and a sandbox lets it write to its own folder alone. So the plugin opens a
file before the sandbox is entered, and writes all that was counted to it before each answer of the worker.

With the option `by_test` every line is counted for the test that ran it, in whichever process.
"""

from __future__ import annotations

import os
import sys
import zlib
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from coverage import Coverage, CoverageData, CoveragePlugin
from coverage.exceptions import CoverageException

if TYPE_CHECKING:
    from types import FrameType

    from coverage.plugin_support import Plugins
    from typing_extensions import Buffer


_CHILD = "workers/child.py"
_ANSWERS = (b'"kind": "answered"', b'"kind": "raised"', b'"kind": "ready"')


class _OfTests(CoveragePlugin):
    """Counts a line for the test that runs now, by the variable that children of pytest inherit."""

    def dynamic_context(self, frame: FrameType) -> str | None:
        """Return the node id of the test, None between two tests."""
        return current_test()


def current_test() -> str | None:
    """Return the node id of the test that runs in pytest, this process or one that started it."""
    return os.environ.get("PYTEST_CURRENT_TEST", "").rpartition(" (")[0] or None


def coverage_init(plugins: Plugins, options: Mapping[str, str]) -> None:
    """Count in the worker that this process becomes where it is the supervisor of one.

    `options` are those of the plugin's section: `package`, the files to count, `dumps`, where to write, and
    `by_test`, which may be absent.
    """
    if "by_test" in options:
        plugins.add_dynamic_context(_OfTests())
    if os.setsid.__name__ == "setsid":  # a fork starts coverage, and its plugins, again
        os.setsid = _counting_from(os.setsid, options["package"], Path(options["dumps"]))
    # coverage imports this module before it counts lines: what came with it is to be imported again.
    mine = {"deepstack_harness", __name__}
    if not any(name.startswith("deepstack_harness.") for name in sys.modules.keys() - mine):
        for name in mine:
            sys.modules.pop(name, None)


def _counting_from(setsid: Callable[[], None], package: str, dumps: Path) -> Callable[[], None]:
    """Return `setsid`, which a worker calls before it enters its sandbox, with the start of the count."""

    def setsid_and_count() -> None:
        setsid()
        if not any(word.endswith(_CHILD) for word in sys.orig_argv):
            return
        if usual := Coverage.current():
            usual.stop()
        # As in the settings of the stage, this file is left out: part of it ran before the count began.
        counted = Coverage(
            data_file=None, config_file=False, source=[package], omit=[__file__], context=current_test()
        )
        stream = os.open(dumps / f"{os.getpid()}-{os.urandom(4).hex()}", os.O_WRONLY | os.O_CREAT, 0o600)
        os.write = _saving(os.write, counted, stream)
        counted.start()

    return setsid_and_count


def _saving(
    write: Callable[[int, Buffer], int], counted: Coverage, stream: int
) -> Callable[[int, Buffer], int]:
    """Return `os.write` that saves what was counted when an answer is written."""
    owner = os.getpid()

    def save_and_write(descriptor: int, data: Buffer) -> int:
        if os.getpid() == owner and any(kind in bytes(memoryview(data)[:80]) for kind in _ANSWERS):
            with suppress(CoverageException, OSError):  # code under test may have closed the file
                dump = counted.get_data().dumps()
                os.truncate(stream, os.pwrite(stream, dump, 0))
        return write(descriptor, data)

    return save_and_write


def collect(dumps: Path, counted: Path) -> None:
    """Write the dumps of workers as files that `coverage combine` reads; a torn one is left out."""
    for path in dumps.iterdir():
        with suppress(CoverageException, zlib.error):
            CoverageData(str(counted / f"lines.{path.name}")).loads(path.read_bytes())
