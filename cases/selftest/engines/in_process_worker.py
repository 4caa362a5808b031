"""A source worker that works in this process, for sources of ours: no process has to be started."""

import importlib
from collections.abc import Mapping
from functools import cached_property
from typing import Any

from typing_extensions import override

from deepstack_harness.auditing.source_worker import SourceWorker
from deepstack_harness.play.case_worker import CaseWorker
from deepstack_harness.workers.foreign import CONTRACT_LIMITS
from deepstack_harness.workers.outcomes import Answered, CallResult


class _Facts:
    """A channel that keeps the facts of one call."""

    def __init__(self) -> None:
        self.facts: list[Any] = []

    def phase(self, text: str) -> None:
        """Take no note."""

    def fact(self, value: object) -> None:
        """Keep a fact."""
        self.facts.append(value)


class _Here(CaseWorker):
    @override
    def call(self, target: str, arguments: Mapping[str, Any]) -> CallResult:
        module, _, function = target.partition(":")
        channel = _Facts()
        value = getattr(importlib.import_module(module), function)(channel, **arguments)
        return Answered(facts=tuple(channel.facts), output="", value=value)


class InProcessWorker(SourceWorker):
    """A `SourceWorker` whose work is done here."""

    @cached_property
    @override
    def worker(self) -> CaseWorker:
        """The stand-in for a process."""
        return _Here(CONTRACT_LIMITS)
