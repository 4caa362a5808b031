"""A worker for code of one source, which this process reads and never runs."""

from functools import cached_property
from types import TracebackType
from typing import Any, Self

from deepstack_harness.engines.known import open_source
from deepstack_harness.play.case_worker import CaseWorker
from deepstack_harness.workers.limits import Limits
from deepstack_harness.workers.outcomes import CallResult
from deepstack_harness.workers.profiles import SandboxProfile


class SourceProcess:
    """A process for the code of the source that `text` names; it starts with the first call.

    The worker has no network.  A caller therefore reads in this process, from `source`, every file that a
    call is about: a release is cached by that, if need be privately, and the worker finds it on the disk.
    """

    def __init__(self, text: str, limits: Limits, profile: SandboxProfile) -> None:
        """Raise `UsageError` for what is no source, `MachineError` where it cannot be fetched."""
        self.text = text
        self.source = open_source(text)
        self._limits = limits
        self._profile = profile

    def __enter__(self) -> Self:
        """Return this process, to be closed."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End the worker."""
        self.worker.close()

    @cached_property
    def worker(self) -> CaseWorker:
        """The worker that runs the code of the source."""
        return CaseWorker(self._limits, sandbox=self._profile)

    def call(self, target: str, **arguments: Any) -> CallResult:
        """Call a function of the worker, as `CaseWorker.call` does."""
        return self.worker.call(target, arguments)
