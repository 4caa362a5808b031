"""Processor seconds of each test: `pytest -p tools.test_costs --costs=FILE` appends them to a record.

`python -m tools.test_costs FILE` prints the most expensive test files, with `--tests` the most expensive
tests, with `--against EARLIER` also what an earlier record has for the same names. A record has JSON lines.

Seconds are user and system time of the process that runs the tests and of all its descendants, those that are
still running included, because a fork server ends with the session. Missing are the controller of
pytest-xdist, and a process that ended after its parent. `starts` counts programs, and forks requested from a
fork server, by that process itself.
"""

import argparse
import json
import os
import sys
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Sequence
from pathlib import Path
from typing import Any

import pytest

_TICKS = os.sysconf("SC_CLK_TCK")
_STARTS = frozenset({"subprocess.Popen", "os.fork", "os.posix_spawn", "socket.sendmsg"})
"""Audit events of Python; the package sends messages with descriptors to fork servers only."""
OTHERS = ("(collection)", "(end of the session)")


class Costs:
    """The costs of this process so far, and the record that each part of them is written to."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._starts = 0
        self._seconds = 0.0
        sys.addaudithook(self._count)

    def _count(self, event: str, _: tuple[Any, ...]) -> None:
        self._starts += event in _STARTS

    def record(self, test: str) -> None:
        """Attribute to `test` what was spent since the last call, the start of this process at first."""
        spent = seconds_of(os.getpid())
        line = {"test": test, "seconds": round(spent - self._seconds, 3), "starts": self._starts}
        self._seconds, self._starts = spent, 0
        with self._path.open("ab", buffering=0) as stream:
            stream.write(json.dumps(line).encode() + b"\n")

    @pytest.hookimpl(trylast=True)
    def pytest_collection_finish(self) -> None:
        """Record what the start and the collection have cost."""
        self.record(OTHERS[0])

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, object, object]:
        """Record what a test has cost, with the fixtures that it was the first to need."""
        result = yield
        self.record(item.nodeid)
        return result


def children_of(pid: int) -> list[int]:
    """Return the process ids of the children, those of every thread; none of a process that has ended."""
    found: list[int] = []
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        try:
            found += map(int, task.read_text().split())
        except OSError:  # it has ended
            continue
    return found


def seconds_of(pid: int) -> float:
    """Return the seconds of a process, of children that it waited for, and of descendants that still run."""
    try:
        # After the name, which may contain anything, the state is field 3 of proc(5); times are 14 to 17.
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return sum(map(int, fields[11:15])) / _TICKS + sum(map(seconds_of, children_of(pid)))


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add `--costs`."""
    parser.addoption("--costs", metavar="FILE", type=Path, help="append the processor seconds of each test")


@pytest.hookimpl(trylast=True)
def pytest_configure(config: pytest.Config) -> None:
    """Measure in the processes that run tests: this one, or the workers of pytest-xdist."""
    path = config.getoption("--costs")
    if path and (hasattr(config, "workerinput") or getattr(config.option, "dist", "no") == "no"):
        costs = Costs(path.absolute())
        config.pluginmanager.register(costs, "test-costs")
        config.add_cleanup(lambda: costs.record(OTHERS[1]))


Table = dict[str, tuple[float, int, int]]
"""Seconds, starts and number of tests by name."""


def read_table(lines: Iterable[str], name_of: Callable[[str], str]) -> Table:
    """Sum a record up by what `name_of` makes of the names of its tests."""
    seconds: Counter[str] = Counter()
    starts: Counter[str] = Counter()
    tests: Counter[str] = Counter()
    for line in filter(str.strip, lines):
        row = json.loads(line)
        name = name_of(row["test"])
        seconds[name] += row["seconds"]
        starts[name] += row["starts"]
        tests[name] += row["test"] not in OTHERS
    return {name: (seconds[name], starts[name], tests[name]) for name in seconds}


def main(words: Sequence[str]) -> int:
    """Print the table of a record."""
    parser = argparse.ArgumentParser(prog="python -m tools.test_costs", description=__doc__)
    parser.add_argument("record", type=Path)
    parser.add_argument("--against", type=Path, metavar="EARLIER")
    parser.add_argument("--tests", action="store_true", help="rows are tests instead of files")
    parser.add_argument("-n", type=int, default=30, metavar="ROWS")
    options = parser.parse_args(words)

    def name_of(test: str) -> str:
        return test if options.tests else test.partition("::")[0]

    table, earlier = (
        read_table(path.read_text().splitlines(), name_of) if path else {}
        for path in (options.record, options.against)
    )
    first = earlier or table
    rows = sorted({**earlier, **table}, key=lambda name: -first.get(name, (0.0,))[0])
    total = [tuple(map(sum, zip(*costs.values(), strict=True))) for costs in (earlier, table) if costs]
    print(*(f"{side:>24}" for side in ("before", "after")[-len(total) :]), sep="")
    print(f"{'seconds':>10}{'starts':>7}{'tests':>7}" * len(total))
    for name in rows[: options.n]:
        costs = [side.get(name, (0.0, 0, 0)) for side in (earlier, table) if side]
        print(*(f"{spent:10.1f}{starts:7}{tests:7}" for spent, starts, tests in costs), " ", name, sep="")
    print(*(f"{spent:10.1f}{starts:7}{tests:7}" for spent, starts, tests in total), "  total", sep="")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
