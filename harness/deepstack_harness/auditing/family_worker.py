"""A worker that drives the class of a source for one model family; nothing of it runs in this process."""

from dataclasses import asdict

from deepstack_harness.auditing.source_process import SourceProcess
from deepstack_harness.contract.case import Case
from deepstack_harness.contract.observation import Observation
from deepstack_harness.engines.cuts import cut_methods_of
from deepstack_harness.play.case_worker import WORK, observation_of
from deepstack_harness.play.source_class import SourceClass
from deepstack_harness.sources.source import buffer_of
from deepstack_harness.workers.foreign import COMPILE_LIMITS
from deepstack_harness.workers.limits import Limits
from deepstack_harness.workers.outcomes import value_of
from deepstack_harness.workers.profiles import COMPILE


class FamilyWorker(SourceProcess):
    """A worker that plays cases on the get, set and clear of one class; other buffers are ours."""

    def __init__(self, text: str, family: str, limits: Limits = COMPILE_LIMITS) -> None:
        """Define the class in a worker.

        `text` names the source.  Raises `UsageError` for what is no source or has no such class,
        `MachineError` where the source cannot be fetched or the worker ended.
        """
        super().__init__(text, limits, COMPILE)
        cut_methods_of(self.source, family)
        self._named = SourceClass(text, "", family=family)
        described = self.call(f"{WORK}:describe", source=asdict(self._named))
        found = value_of(described, f"the class of {self.source.label} for {family}")
        self.model_class: str = found["model_class"]
        self.filename: str = found["filename"]
        self.buffer = buffer_of(self.source, self.model_class)

    def play(self, case: Case) -> Observation:
        """Play a case; raises the error that the worker raised."""
        named = self._named if case.buffer == self.buffer else None
        return observation_of(case, self.worker.play(case, named))

    def where_returned(self, case: Case, seen: Observation, tokens: int) -> str:
        """Return FILE:LINE of the `return` by which an empty buffer answers `get(tokens)`."""
        sizes = (case.trace.capacity, seen.hidden, seen.levels)
        result = self.call(
            f"{WORK}:where_returned",
            source=asdict(self._named), tokens=tokens, sizes=sizes, dtype=seen.dtype, device=seen.device,
        )  # fmt: skip
        return str(value_of(result, "the line of an answer"))
