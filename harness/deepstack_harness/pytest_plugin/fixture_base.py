"""The base of the fixtures: settings of the run, mistakes told in one sentence, judgements stored."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager

import msgspec
import pytest

from deepstack_harness.contract.row import Row
from deepstack_harness.contract.rules import Rule
from deepstack_harness.errors import HarnessError, MachineError, UsageError
from deepstack_harness.oracles.judged_case import JudgedCase
from deepstack_harness.pytest_plugin import JUDGED, setting, without_gpu
from deepstack_harness.pytest_plugin.torch_log import quiet_torch
from deepstack_harness.reporting.terminal.audit_table import figure_of
from deepstack_harness.results.case_result import in_test, result_of

_DEFAULT_ARMS = "eager/stock,eager/drop_all"
"""The cheapest backend, with torch's own guards and with those that engines drop."""


class Fixture:
    """A fixture of one test."""

    def __init__(self, request: pytest.FixtureRequest) -> None:
        """Take the settings of the run; nothing is played yet."""
        self._config = request.config
        self._node: pytest.Item = request.node
        request.addfinalizer(quiet_torch(request.config))

    def device(self, given: str | None) -> str:
        """Return the device that was given, else that of the run."""
        return given or setting(self._config, "device") or "cpu"

    def arms(self, given: Sequence[str] | None) -> Sequence[str]:
        """Return the names of arms that were given, else those of the run."""
        chosen = setting(self._config, "arms") or _DEFAULT_ARMS
        return [name.strip() for name in chosen.split(",")] if given is None else given

    @contextmanager
    def one_sentence(self) -> Iterator[None]:
        """Fail the test with the sentence of a wrong call; skip it where a GPU is not here."""
        try:
            yield
        except HarnessError as error:
            found = error
        else:
            return
        if isinstance(found, MachineError):
            without_gpu(self._config, str(found))
        # pytest shows what was being handled as well, and a block of a generator is left by its exception.
        raise pytest.fail.Exception(str(found), pytrace=False) from None

    def store(self, judged: JudgedCase) -> None:
        """Store a judged case for the report, as plain data, which xdist carries between processes."""
        stored = self._node.stash.setdefault(JUDGED, [])
        file, line, _ = self._node.location
        where = file if line is None else f"{file}:{line + 1}"
        result = in_test(result_of(judged, 0.0), self._node.nodeid, len(stored) + 1, where)
        stored.append(msgspec.to_builtins(result))


def told(row: Row) -> str:
    """Return a broken rule in one line: the rule, the figure, the place, and what was seen."""
    rule = row.rule
    limit = f", at most {row.limit:g}" if row.limit else ""
    return f"{rule} {rule.word}: {figure_of(row)}{limit}, on '{row.trace}' under {row.arm}: {row.detail}"


def rules_of(names: Iterable[str], known: Sequence[Rule]) -> list[Rule]:
    """Return rules by name; raises `UsageError` for a rule that the fixture does not judge."""
    wanted = list(names)
    for name in wanted:
        if name not in known:
            raise UsageError(f"rule '{name}' is not judged here; known are {', '.join(known)}")
    return [Rule(name) for name in wanted]


def name_of(thing: Callable[..., object] | str) -> str:
    """Return `module:name` of a class or function, which a text is already."""
    if isinstance(thing, str):
        return thing
    named = thing if hasattr(thing, "__qualname__") else type(thing)
    return f"{named.__module__}:{named.__qualname__}"
