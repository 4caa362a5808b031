"""A worker that drives the class of a source for one model family; nothing of it runs in this process."""

from dataclasses import asdict
from types import TracebackType
from typing import Self

from deepstack_harness.auditing.source_profile import source_profile
from deepstack_harness.contract.case import Case
from deepstack_harness.contract.observation import Observation
from deepstack_harness.engines.known import open_source
from deepstack_harness.play.case_worker import COMPILE_LIMITS, WORK, CaseWorker, observation_of
from deepstack_harness.play.source_class import SourceClass
from deepstack_harness.sources.source import buffer_of
from deepstack_harness.workers.limits import Limits
from deepstack_harness.workers.outcomes import value_of
from deepstack_harness.workers.profiles import COMPILE


class FamilyWorker:
    """Plays cases on the get, set and clear of one class; other buffers of its cases are ours."""

    def __init__(self, text: str, family: str, limits: Limits = COMPILE_LIMITS) -> None:
        """Define the class in a worker.

        `text` names the source.  Raises `UsageError` for what is no source or has no such class,
        `MachineError` where the source cannot be fetched or the worker ended.
        """
        self.source = open_source(text)
        self._named = SourceClass(text, "", family=family)
        self._worker = CaseWorker(limits, sandbox=source_profile(self.source, COMPILE))
        found = value_of(
            self._worker.call(f"{WORK}:describe", {"source": asdict(self._named)}),
            f"the class of {self.source.label} for {family}",
        )
        self.model_class: str = found["model_class"]
        self.filename: str = found["filename"]
        self.buffer = buffer_of(self.source, self.model_class)

    def __enter__(self) -> Self:
        """Return this worker, to be closed."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End the worker."""
        self._worker.close()

    def play(self, case: Case) -> Observation:
        """Play a case; raises the error that the worker raised."""
        named = self._named if case.buffer == self.buffer else None
        return observation_of(case, self._worker.play(case, named))

    def where_returned(self, case: Case, seen: Observation, tokens: int) -> str:
        """Return FILE:LINE of the `return` by which an empty buffer answers `get(tokens)`."""
        asked = {
            "source": asdict(self._named), "tokens": tokens, "dtype": seen.dtype, "device": seen.device,
            "sizes": (case.trace.capacity, seen.hidden, seen.levels),
        }  # fmt: skip
        return str(value_of(self._worker.call(f"{WORK}:where_returned", asked), "the line of an answer"))
