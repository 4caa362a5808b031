"""A worker that defines and drives the classes of one source; this process only cuts them and judges."""

from collections.abc import Iterable
from dataclasses import dataclass
from types import TracebackType
from typing import Self

import msgspec

from deepstack_harness.auditing.controls import failed_control
from deepstack_harness.auditing.judged_plan import judge_plan
from deepstack_harness.auditing.source_profile import source_profile
from deepstack_harness.binding.discover import FoundCut, find_cuts
from deepstack_harness.contract.case import PlannedCase
from deepstack_harness.engines.known import engine_of, open_source
from deepstack_harness.oracles.judged_case import JudgedCase
from deepstack_harness.play.case_worker import CONTRACT_LIMITS, WORK, CaseWorker
from deepstack_harness.play.source_class import SourceClass, Way
from deepstack_harness.workers.limits import Limits
from deepstack_harness.workers.outcomes import CallResult, WorkerEnd, value_of
from deepstack_harness.workers.profiles import CONTRACT


@dataclass(frozen=True)
class AuditedClass:
    """One deepstack class of a source, and the ways in which it can be driven.

    `refusals` say why a way cannot be taken, `note` what the class shares with another one.  `ended` says
    how the worker ended that defined the class; then nothing else is known.
    """

    model_class: str
    member: str
    methods: bool = False
    forward: bool = False
    refusals: tuple[str, ...] = ()
    note: str = ""
    ended: str | None = None

    @property
    def can_be_judged(self) -> bool:
        """True if there is something to say about the class."""
        return self.methods or self.forward or self.ended is not None


class SourceWorker:
    """Drives the classes of the source that `text` names; nothing of the source runs in this process."""

    def __init__(self, text: str, limits: Limits = CONTRACT_LIMITS) -> None:
        """Raise `UsageError` for what is no source, `MachineError` where it cannot be fetched."""
        self.text = text
        self.source = open_source(text)
        self._worker = CaseWorker(limits, sandbox=source_profile(self.source, CONTRACT))

    def __enter__(self) -> Self:
        """Return this worker, to be closed."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End the worker."""
        self._worker.close()

    def classes(self) -> list[AuditedClass]:
        """Find all deepstack classes, and define each in the worker; raise what `find_cuts` raises."""
        return [self._define(cut) for cut in find_cuts(self.source, engine_of(self.source).files)]

    def judge(self, plan: Iterable[PlannedCase], model_class: str, way: Way) -> list[JudgedCase]:
        """Play a plan on a class and judge it, as `judge_plan` does."""
        return judge_plan(plan, self._worker, SourceClass(self.text, model_class, way))

    def call(self, target: str) -> CallResult:
        """Call a function that takes the text of the source."""
        return self._worker.call(target, {"text": self.text})

    def failed_control(self) -> str | None:
        """Return what shows that the worker measures wrongly after all that it ran; None for nothing."""
        return failed_control(self._worker)

    def _define(self, cut: FoundCut) -> AuditedClass:
        asked = {"text": self.text, "model_class": cut.model_class}
        result = self._worker.call(f"{WORK}:define", asked)
        if isinstance(result, WorkerEnd):
            return AuditedClass(cut.model_class, cut.member, note=cut.note, ended=result.sentence)
        defined = value_of(result, f"the definition of {cut.model_class}")
        ways = msgspec.convert(defined, _Defined)
        return AuditedClass(cut.model_class, cut.member, ways.methods, ways.forward, ways.refusals, cut.note)


class _Defined(msgspec.Struct):
    methods: bool
    forward: bool
    refusals: tuple[str, ...]
