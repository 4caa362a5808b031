"""Workers that work in this process, for code of ours: no process has to be started."""

import importlib
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec
from typing_extensions import override

from deepstack_harness.audit.source_worker import SourceWorker
from deepstack_harness.catalogue.traces import INPUT_TRACES
from deepstack_harness.contract.case import PlannedCase
from deepstack_harness.contract.oracles.judge import JudgedCase
from deepstack_harness.contract.trace import Trace
from deepstack_harness.play.case_worker import CaseWorker, Way
from deepstack_harness.workers.outcomes import Answered, CallResult, RaisedInWorker, WorkerEnd
from deepstack_harness.workers.profiles import CONTRACT_LIMITS
from deepstack_harness.workers.remote import Remote, call_typed


class _Facts:
    """A channel that stores the facts of one call."""

    def __init__(self) -> None:
        self.facts: list[Any] = []

    def phase(self, text: str) -> None:
        """Take no note."""

    def fact(self, value: object) -> None:
        """Keep a fact."""
        self.facts.append(value)


class InProcessCases(CaseWorker):
    """A `CaseWorker` whose work is done here, except that a call of `ends_in` ends with `end`."""

    def __init__(self, ends_in: str = "", end: WorkerEnd | RaisedInWorker | None = None) -> None:
        """Take the name of a function, as code under test may end the process in it."""
        super().__init__(CONTRACT_LIMITS)
        self.ends_in, self.end = ends_in, end

    @override
    def call(self, target: Any, arguments: Mapping[str, Any] | None = None, **_: object) -> CallResult:
        return call_here(self, target, arguments or {}, self.ends_in, self.end)


class InProcessWorker(SourceWorker):
    """A `SourceWorker` whose work is done here."""

    def __init__(self, text: str, ends_in: str = "", end: WorkerEnd | None = None) -> None:
        """Take the text of a source, and the function that ends the worker, if one does.

        Its package is imported here too: `engines.load.unload` forgets it.
        """
        super().__init__(text)
        self.ends_in, self.end = ends_in, end

    @override
    def call(self, target: Any, arguments: Mapping[str, Any] | None = None, **_: object) -> CallResult:
        return call_here(self, target, arguments or {}, self.ends_in, self.end)


class WithoutInputs(InProcessWorker):
    """One that leaves out the 54 traces with unusual payloads: they show nothing of how a class is made."""

    @override
    def judge(self, plan: Iterable[PlannedCase], model_class: str, way: Way) -> list[JudgedCase]:
        return super().judge(
            [planned for planned in plan if planned.case.trace not in _INPUTS], model_class, way
        )


_INPUTS = frozenset(map(Trace.parse, INPUT_TRACES))


def call_here(
    worker: CaseWorker,
    remote: Remote[Any],
    arguments: Mapping[str, Any],
    ends_in: str,
    end: WorkerEnd | RaisedInWorker | None,
) -> CallResult:
    """Call a function in this process, with its arguments and result converted as for a worker."""
    module, _, name = remote.target.partition(":")
    if end is not None and name == ends_in:
        worker.ends += isinstance(end, WorkerEnd)
        return end
    channel = _Facts()
    function = getattr(importlib.import_module(module), name)
    value = call_typed(function, {**msgspec.to_builtins(dict(arguments)), "channel": channel})
    return Answered(facts=tuple(channel.facts), value=msgspec.convert(value, remote.result))
