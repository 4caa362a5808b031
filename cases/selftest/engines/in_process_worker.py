"""Workers that work in this process, for code of ours: no process has to be started."""

import importlib
from collections.abc import Mapping
from functools import cached_property
from typing import Any

from typing_extensions import override

from deepstack_harness.auditing.source_worker import SourceWorker
from deepstack_harness.play.case_worker import CaseWorker
from deepstack_harness.workers.foreign import CONTRACT_LIMITS
from deepstack_harness.workers.outcomes import Answered, CallResult, RaisedInWorker, WorkerEnd


class _Facts:
    """A channel that keeps the facts of one call."""

    def __init__(self) -> None:
        self.facts: list[Any] = []

    def phase(self, text: str) -> None:
        """Take no note."""

    def fact(self, value: object) -> None:
        """Keep a fact."""
        self.facts.append(value)


class Here(CaseWorker):
    """A `CaseWorker` whose work is done here, except that a call of `ends_in` ends as `end` says."""

    def __init__(self, ends_in: str = "", end: WorkerEnd | RaisedInWorker | None = None) -> None:
        """Take the name of a function, as code under test may end the process in it."""
        super().__init__(CONTRACT_LIMITS)
        self._ends_in, self._end = ends_in, end

    @override
    def call(self, target: str, arguments: Mapping[str, Any]) -> CallResult:
        module, _, function = target.partition(":")
        if self._end is not None and function == self._ends_in:
            self.ends += isinstance(self._end, WorkerEnd)
            return self._end
        channel = _Facts()
        value = getattr(importlib.import_module(module), function)(channel, **arguments)
        return Answered(facts=tuple(channel.facts), output="", value=value)


class InProcessWorker(SourceWorker):
    """A `SourceWorker` whose work is done here."""

    def __init__(self, text: str, ends_in: str = "", end: WorkerEnd | None = None) -> None:
        """Take the text of a source, and the function that ends the worker, if one does."""
        super().__init__(text)
        self._ends = (ends_in, end)

    @cached_property
    @override
    def worker(self) -> CaseWorker:
        """The stand-in for a process."""
        return Here(*self._ends)
