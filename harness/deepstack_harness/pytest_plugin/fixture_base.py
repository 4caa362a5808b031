"""What the fixtures share: settings of the run, mistakes told in one sentence, what was judged kept."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager

import pytest

from deepstack_harness.contract.case import Case, Judgement, Observation
from deepstack_harness.contract.row import Row
from deepstack_harness.contract.rules import Rule
from deepstack_harness.errors import HarnessError, MachineError, UsageError
from deepstack_harness.pytest_plugin import JUDGED, setting, without_gpu
from deepstack_harness.pytest_plugin.records import record
from deepstack_harness.reporting.terminal.audit_table import figure_of

_DEFAULT_ARMS = "eager/stock,eager/drop_all"
"""The cheapest backend, with torch's own guards and with those that engines drop."""


class Asked:
    """A fixture of one test."""

    def __init__(self, request: pytest.FixtureRequest) -> None:
        """Nothing is done yet."""
        self._config = request.config
        self._node: pytest.Item = request.node

    def device(self, given: str | None) -> str:
        """The one given, else that of the run."""
        return given or setting(self._config, "device") or "cpu"

    def arms(self, given: Sequence[str] | None) -> Sequence[str]:
        """Names of arms: those given, else those of the run."""
        chosen = setting(self._config, "arms") or _DEFAULT_ARMS
        return [name.strip() for name in chosen.split(",")] if given is None else given

    @contextmanager
    def one_sentence(self) -> Iterator[None]:
        """A wrong call fails the test with its sentence, a GPU that is not here skips it."""
        try:
            yield
        except HarnessError as error:
            found = error
        else:
            return
        # Behind the handler: pytest would show what was being handled as well.
        if isinstance(found, MachineError):
            without_gpu(self._config, str(found))
        pytest.fail(str(found), pytrace=False)

    def keep(self, case: Case, observation: Observation, judgements: Iterable[Judgement]) -> None:
        """Remember what was judged, for the report."""
        kept = self._node.stash.setdefault(JUDGED, [])
        kept.append(record(case, observation, list(judgements), f"{self._node.nodeid} #{len(kept) + 1}"))


def told(row: Row) -> str:
    """A broken rule in one line: what is promised, the figure, where it was seen, and what."""
    rule = Rule(row.rule)
    limit = f", at most {row.limit:g}" if row.limit else ""
    return f"{rule} {rule.word}: {figure_of(row)}{limit}, on '{row.trace}' under {row.arm}: {row.detail}"


def rules_of(names: Iterable[str], known: Sequence[Rule]) -> list[Rule]:
    """Rules by name; `UsageError` for one that the fixture does not judge."""
    wanted = list(names)
    for name in wanted:
        if name not in known:
            raise UsageError(f"rule '{name}' is not judged here; known are {', '.join(known)}")
    return [Rule(name) for name in wanted]


def name_of(thing: Callable[..., object]) -> str:
    """`module:name` of a class or function."""
    named = thing if hasattr(thing, "__qualname__") else type(thing)
    return f"{named.__module__}:{named.__qualname__}"
