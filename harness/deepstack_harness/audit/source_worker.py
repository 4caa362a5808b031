"""Warm workers that define and call the classes of one source; this process only finds them and judges.

`SourceWorker` calls all classes of a source, `FamilyWorker` the one class that a source has for a model
family. A worker has no network: this process reads every file that a call is about, from `source`, before
the call.  A release is cached by that, if need be privately, and the worker finds it on the disk.

Controls are buffers of ours that are played after a source in its worker.

Code under test shares a process with the code that measures it, and may replace that code, on purpose or by
accident. Judging is out of its reach. After each source `reference` has to pass in the same process, and a
mutant of each rule has to be caught. This detects a worker that measures nothing any more; it does not detect
code that restores the harness before the controls, or that recognises them.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TypeVar

from packaging.version import Version
from typing_extensions import override

from deepstack_harness.audit.class_verdicts import ClassVerdicts
from deepstack_harness.catalogue.buffers import MUTANTS
from deepstack_harness.catalogue.orders import Orders, deciding_functions, orders_of
from deepstack_harness.catalogue.plans import Where, plan_audit
from deepstack_harness.contract.case import Case, PlannedCase, registered
from deepstack_harness.contract.observation import Observation
from deepstack_harness.contract.oracles.judge import JudgedCase, judge_cases
from deepstack_harness.contract.rules import Rule
from deepstack_harness.contract.verdicts import Verdict
from deepstack_harness.engines.discover import ArgumentModel, FoundClass
from deepstack_harness.engines.known import (
    family_class,
    find_classes,
    open_source,
)
from deepstack_harness.engines.syntax import function_hashes
from deepstack_harness.errors import HarnessError
from deepstack_harness.play.case_worker import (
    DEFINE,
    DESCRIBE,
    SOURCE_WORK,
    STUBS_MET,
    WHERE_RETURNED,
    CaseWorker,
    ClassWays,
    SourceClass,
    Way,
    observation_of,
)
from deepstack_harness.play.loading import Played
from deepstack_harness.sources.request import every_python_file
from deepstack_harness.sources.source import Source, buffer_of
from deepstack_harness.sources.tree import of_release
from deepstack_harness.workers.limits import Limits
from deepstack_harness.workers.outcomes import CallResult, WorkerEnd, value_of
from deepstack_harness.workers.profiles import (
    COMPILE,
    COMPILE_LIMITS,
    CONTRACT,
    CONTRACT_LIMITS,
)

IMPORT_S = 300.0
"""Seconds for a call that imports a package: vLLM took 6 to 20 s of a processor that others use too.

A slower import ends the worker, and the rules of the class are ERROR.
"""
MOST_ENDS = 3
"""Workers that one class may end before the rest of its cases is left out: each may take its whole time.

The cases that are left out are ERROR, and never a pass.
"""


def judge_plan(
    plan: Iterable[PlannedCase], worker: CaseWorker, source: SourceClass | None = None
) -> list[JudgedCase]:
    """Play a plan, one case after the other, and judge each.

    `source` is the class of a source that all cases are about. After a class has ended its worker three
    times, the rest of its cases are not judged. Raises the errors that the worker raised.
    """

    def play(case: Case) -> Observation:
        return observation_of(case, worker.play(case, source))

    return list(judge_cases(plan, play, given_up=gives_up(worker)))


def gives_up(worker: CaseWorker) -> Callable[[], str]:
    """Return a function that returns why no more cases are played, once the worker was ended three times."""
    before = worker.ends

    def given_up() -> str:
        if worker.ends - before < MOST_ENDS:
            return ""
        return f"not played: the process that played other cases was ended {MOST_ENDS} times"

    return given_up


_RIGHT = "reference"
_WHERE = Where("qwen3_vl")
CONTROLS = tuple(
    next(name for name, mutant in MUTANTS.items() if mutant.rule is rule and mutant.arm == "eager")
    for rule in (Rule.STRUCTURE, Rule.BOUNDARY, Rule.FRESHNESS, Rule.CAPACITY, Rule.CLEAR, Rule.REJECTION)
)
"""A mutant of each rule that the methods of a buffer keep or break, and that shows without a decoder."""


def failed_control(worker: CaseWorker) -> str | None:
    """Play the controls in a worker that played code under test; return what went wrong, None for nothing."""
    return control_fault(lambda plan: judge_plan(plan, worker))


VerdictsT = TypeVar("VerdictsT", bound=ClassVerdicts)
JudgePlan = Callable[[list[PlannedCase]], list[JudgedCase]]


def control_fault(judge: JudgePlan) -> str | None:
    """Play the controls where code under test was played; return what went wrong, None for nothing."""
    tampered = "tampered: the process measures wrongly after it ran this code"
    try:
        cases = judge(plan_audit(_WHERE, registered(_RIGHT)))
        if wrong := sorted({rule for judged in cases for rule in judged.broken}):
            return f"{tampered}: '{_RIGHT}', which keeps every rule, breaks {', '.join(wrong)} after it"
        if not all(judged.observation.steps and not judged.observation.ended for judged in cases):
            return f"{tampered}: '{_RIGHT}' cannot be played after it"
        for name in CONTROLS:
            rule = MUTANTS[name].rule
            plan = plan_audit(_WHERE, registered(name))
            if not any(rule in judged.broken for planned in plan for judged in judge([planned])):
                return f"{tampered}: '{name}', which breaks {rule}, is not caught after it"
    except HarnessError as error:
        return f"the controls after it could not be played: {error}"
    return None


def unjudged(verdicts: VerdictsT, why: str) -> VerdictsT:
    """Return the verdicts with every row ERROR: the worker measured wrongly."""
    rows = (replace(row, verdict=Verdict.ERROR, value=None, detail=why) for row in verdicts.rows)
    return replace(verdicts, rows=tuple(rows))


NO_WAYS = ClassWays()
"""The ways of a class that cannot be called."""


@dataclass(frozen=True)
class AuditedClass:
    """One class of a source, and the ways in which it can be called.

    `ended` is how the worker ended that defined the class, as a sentence; then no way is known.
    """

    found: FoundClass
    ways: ClassWays = NO_WAYS
    ended: str | None = None

    @property
    def model_class(self) -> str:
        """The name by which cases and rows call the class."""
        return self.found.model_class

    @property
    def can_be_judged(self) -> bool:
        """True if there will be rows about the class."""
        return self.ways.methods or self.ways.forward or self.ways.splits or self.ended is not None

    @property
    def runner(self) -> ArgumentModel | None:
        """The engine around a text model whose payload is an argument; None for all other classes."""
        return self.found.methods if isinstance(self.found.methods, ArgumentModel) else None

    @property
    def argument(self) -> bool:
        """True for an engine whose graphs are given a step's payload as an argument."""
        return self.runner is not None or self._step_at != ""

    @property
    def replayed_at(self) -> str:
        """The place of the replay of an engine's own graphs; empty where they are not replayed."""
        if not self.ways.replays:
            return ""
        return self.runner.replayed_at if self.runner else self._step_at

    @property
    def patched_at(self) -> str:
        """The place of what a plugin does to a class that was defined."""
        return self.found.patch.at if self.found.patch and self.ended is None else ""

    @property
    def _step_at(self) -> str:
        """The place of a plugin's own forward."""
        return self.found.patch.step_at if self.found.patch else ""


class SourceWorker(CaseWorker):
    """A warm worker that calls all classes of the source that `text` names."""

    def __init__(
        self,
        text: str,
        limits: Limits = CONTRACT_LIMITS,
        *,
        stated: Version | None = None,
        source: Source | None = None,
    ) -> None:
        """Take the `source` that was opened before, or open it, as the release that is `stated`, if one is.

        Raises `UsageError` for what is no source, or no tree of that release, `MachineError` where it cannot
        be fetched.
        """
        super().__init__(limits, sandbox=CONTRACT, preload=SOURCE_WORK)
        self.text = text
        opened = open_source(text) if source is None else source
        self.source = opened if stated is None or source is not None else of_release(opened, stated)
        self._step_s = limits.step_s
        self._imported_after = -1

    @cached_property
    def orders(self) -> Orders:
        """The orders in which the engine of this source calls its classes.

        Those that were recorded are among them where this source decides as the recorded one did.  Raises
        `MachineError` where a file that decides cannot be fetched.
        """
        hashes = function_hashes(self.source, deciding_functions(self.source.package))
        return orders_of(self.source.package, hashes)

    def classes(self, wanted: Callable[[str, str], bool] = lambda *_: True) -> list[AuditedClass]:
        """Find the `wanted` classes, by name and file, and define each in the worker.

        Raises what `find_classes` raises.
        """
        classes = []
        for found in find_classes(self.source, wanted):
            every_python_file(self.source)  # the worker has no network
            result = self._import(found.model_class)
            if isinstance(result, WorkerEnd):
                classes.append(AuditedClass(found, ended=result.sentence))
            else:
                ways = value_of(result, f"the definition of {found.model_class}")
                classes.append(AuditedClass(found, ways))
        return classes

    def judge(self, plan: Iterable[PlannedCase], model_class: str, way: Way) -> list[JudgedCase]:
        """Play a plan on a class and judge it, as `judge_plan` does."""
        return judge_plan(plan, self, SourceClass(self.text, model_class, way))

    @override
    def play(self, case: Case, source: SourceClass | None = None) -> CallResult[Played]:
        """Play a case; a new process imports the package first, without the limit of a step."""
        if source is not None and self._imported_after not in (-1, self.ends):
            self._import(source.model_class)
        return super().play(case, source)

    def stubs_met(self, audited: AuditedClass) -> AuditedClass | None:
        """Return a class as refused, where what was played of it has met a stub; else None."""
        named = SourceClass(self.text, audited.model_class)
        met = value_of(self.call(STUBS_MET, {"source": named}), f"the stubs of {audited.model_class}")
        return replace(audited, ways=ClassWays(refusals=met)) if met else None

    def _import(self, model_class: str) -> CallResult[ClassWays]:
        """Import the package of the source in the worker's process, and define a class."""
        timeout_s = None if self._step_s is None else max(self._step_s, IMPORT_S)
        result = self.call(DEFINE, {"text": self.text, "model_class": model_class}, timeout_s=timeout_s)
        self._imported_after = self.ends
        return result


class FamilyWorker(CaseWorker):
    """A warm worker that plays cases on the get, set and clear of one class; other buffers are ours."""

    def __init__(self, text: str, family: str, limits: Limits = COMPILE_LIMITS) -> None:
        """Define the class in a worker.

        `text` names the source.  Raises `UsageError` for what is no source or has no such class,
        `MachineError` where the source cannot be fetched or the worker ended.
        """
        super().__init__(limits, sandbox=COMPILE, preload=SOURCE_WORK)
        self.source = open_source(text)
        family_class(self.source, family)
        every_python_file(self.source)  # the worker has no network
        self._named = SourceClass(text, "", family=family)
        described = value_of(
            self.call(DESCRIBE, {"source": self._named}), f"the class of {self.source.label} for {family}"
        )
        self.model_class, self.filename = described.model_class, described.filename
        self.buffer = buffer_of(self.source, self.model_class)

    def observe(self, case: Case) -> Observation:
        """Play a case; raises the error that the worker raised."""
        named = self._named if case.buffer == self.buffer else None
        return observation_of(case, self.play(case, named))

    def where_returned(self, case: Case, seen: Observation, tokens: int) -> str:
        """Return FILE:LINE of the `return` that `get(tokens)` of an empty buffer ends at."""
        sizes = (case.trace.capacity, seen.hidden, seen.levels)
        result = self.call(WHERE_RETURNED, {
            "source": self._named, "tokens": tokens, "sizes": sizes, "dtype": seen.dtype,
            "device": seen.device,
        })  # fmt: skip
        return value_of(result, "the line of an answer")
