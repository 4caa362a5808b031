"""A worker that defines and drives the classes of one source; this process only cuts them and judges."""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cached_property

import msgspec

from deepstack_harness.auditing.controls import failed_control
from deepstack_harness.auditing.judged_plan import judge_plan
from deepstack_harness.auditing.source_process import SourceProcess
from deepstack_harness.binding.argument_files import ArgumentCut
from deepstack_harness.binding.discover import FoundCut
from deepstack_harness.binding.function_hashes import function_hashes
from deepstack_harness.catalogue.orders import Orders, orders_of
from deepstack_harness.catalogue.recorded import deciding_functions
from deepstack_harness.contract.case import PlannedCase
from deepstack_harness.engines.cuts import cuts_of
from deepstack_harness.oracles.judged_case import JudgedCase
from deepstack_harness.play.case_worker import WORK
from deepstack_harness.play.source_class import SourceClass, Way
from deepstack_harness.workers.foreign import CONTRACT_LIMITS
from deepstack_harness.workers.limits import Limits
from deepstack_harness.workers.outcomes import WorkerEnd, value_of
from deepstack_harness.workers.profiles import CONTRACT


@dataclass(frozen=True)
class AuditedClass:
    """One deepstack class of a source, and the ways in which it can be driven.

    `refusals` say why a way cannot be taken, `note` what the class shares with another one.  `ended` says
    how the worker ended that defined the class; then nothing else is known.

    `splits` is True for a function that splits a payload over ranks.

    `argument` is True for an engine whose graphs are given a step's payload as an argument.  Then
    `replayed_at` is the place of the replay of its graphs, empty where they cannot be driven, and `lost`
    says what they lose, or why, `graphs_note` is what else is known of them, and `graphs_settings` are the
    engine's options that lead to them, where its orders do not say it.  `patched_at` is the place of what a
    plugin does to the class.
    """

    model_class: str
    member: str
    methods: bool = False
    forward: bool = False
    refusals: tuple[str, ...] = ()
    note: str = ""
    ended: str | None = None
    argument: bool = False
    replayed_at: str = ""
    patched_at: str = ""
    lost: str = ""
    graphs_note: str = ""
    graphs_settings: str = ""
    splits: bool = False

    @property
    def can_be_judged(self) -> bool:
        """True if there is something to say about the class."""
        return self.methods or self.forward or self.splits or self.ended is not None


class SourceWorker(SourceProcess):
    """A worker that drives all classes of a source."""

    def __init__(self, text: str, limits: Limits = CONTRACT_LIMITS) -> None:
        """Raise `UsageError` for what is no source, `MachineError` where it cannot be fetched."""
        super().__init__(text, limits, CONTRACT)

    @cached_property
    def orders(self) -> Orders:
        """The orders in which the engine of this source calls its classes.

        Those that were recorded are among them where this source decides as the recorded one did.  Raises
        `MachineError` where a file that decides cannot be fetched.
        """
        hashes = function_hashes(self.source, deciding_functions(self.source.package))
        return orders_of(self.source.package, hashes)

    def classes(self) -> list[AuditedClass]:
        """Find all deepstack classes, and define each in the worker; raise what `cuts_of` raises."""
        return [self._define(cut) for cut in cuts_of(self.source)]

    def judge(self, plan: Iterable[PlannedCase], model_class: str, way: Way) -> list[JudgedCase]:
        """Play a plan on a class and judge it, as `judge_plan` does."""
        return judge_plan(plan, self.worker, SourceClass(self.text, model_class, way))

    def failed_control(self) -> str | None:
        """Return what shows that the worker measures wrongly after all that it ran; None for nothing."""
        return failed_control(self.worker)

    def _define(self, cut: FoundCut) -> AuditedClass:
        result = self.call(f"{WORK}:define", text=self.text, model_class=cut.model_class)
        if isinstance(result, WorkerEnd):
            return AuditedClass(cut.model_class, cut.member, note=cut.note, ended=result.sentence)
        defined = value_of(result, f"the definition of {cut.model_class}")
        ways = msgspec.convert(defined, _Defined)
        found = AuditedClass(
            cut.model_class, cut.member, ways.methods, ways.forward, ways.refusals, cut.note,
            splits=ways.splits,
        )  # fmt: skip
        if cut.patch is not None:
            found = replace(found, patched_at=cut.patch.at)
        graphs_at = _graphs_at(cut)
        if graphs_at is None:
            return found
        place = graphs_at if ways.replays else ""
        found = replace(found, argument=True, replayed_at=place, lost=ways.lost)
        if not isinstance(cut.methods, ArgumentCut):
            return found
        runner = cut.methods
        return replace(found, graphs_note=runner.replay_note, graphs_settings=runner.replay_settings)


def _graphs_at(cut: FoundCut) -> str | None:
    """Return the place of a class's own graphs, empty where it is not known; None for a class without."""
    if isinstance(cut.methods, ArgumentCut):
        return cut.methods.replayed_at
    return (cut.patch.step_at or None) if cut.patch else None


class _Defined(msgspec.Struct):
    methods: bool
    forward: bool
    refusals: tuple[str, ...]
    replays: bool
    lost: str
    splits: bool
