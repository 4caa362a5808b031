"""A case that is played in this process and judged by every rule: what most cases are made of."""

from dataclasses import dataclass, replace
from functools import cache

from cases.shallow import shallow
from deepstack_harness.catalogue.matrix import graph_budget
from deepstack_harness.contract.arm_spec import ArmSpec
from deepstack_harness.contract.buffer_ref import registered
from deepstack_harness.contract.case import Case, Compare, parse_subject
from deepstack_harness.contract.observation import Observation
from deepstack_harness.contract.protocols import BufferFactory
from deepstack_harness.contract.rules import Rule
from deepstack_harness.contract.trace import Trace
from deepstack_harness.contract.verdicts import Judgement, Verdict
from deepstack_harness.mutants.by_name import buffer_named
from deepstack_harness.oracles.all_rules import judge_all
from deepstack_harness.oracles.diagnosis import diagnose
from deepstack_harness.oracles.observed_case import ObservedCase
from deepstack_harness.play.in_process import factory_of
from deepstack_harness.play.model import Model
from deepstack_harness.play.observe import play
from deepstack_harness.play.play_case import play_case


def observed(case: Case, *, few_layers: bool = False) -> Observation:
    """Play a case of a named buffer; tests of one process that ask for the same case share it.

    With `few_layers` its family has two, which compile three times as fast.
    """
    return _played_once(replace(case, graph_budget=1), few_layers)  # the budget is for the one who judges


@cache
def _played_once(case: Case, few_layers: bool) -> Observation:  # what is cached has a place
    if few_layers:
        return play(case, shallow(case.family), factory_of(case.buffer))
    return play_case(case)


@dataclass(frozen=True)
class Played:
    """One case, its observation, and the judgement of each rule."""

    case: Case
    observation: Observation
    said: dict[Rule, Judgement]

    @property
    def broken(self) -> set[Rule]:
        """The rules that are broken; an ERROR is a fault of the test."""
        assert not [one for one in self.said.values() if one.verdict is Verdict.ERROR]
        return {rule for rule, one in self.said.items() if one.verdict is Verdict.FAIL}

    @property
    def graphs(self) -> int:
        """The number of graphs, which the compiler must have counted."""
        assert self.observation.graphs is not None
        return self.observation.graphs.graphs

    @property
    def attended(self) -> list[int | None]:
        """The rows that attention was given, per step that runs the decoder."""
        return [facts.attended for facts in self.observation.steps if not facts.step.startswith("set")]

    @property
    def diagnosis(self) -> str:
        """The sentence that `repro` would print."""
        return diagnose(self.case, self.observation) or "nothing"


def play_judged(
    model: Model,
    subject: str,
    arm: str,
    trace: str,
    *,
    family: str | None = None,
    make: BufferFactory | None = None,
    compare: Compare = Compare.ALL,
) -> Played:
    """Play `REVISION[@CALLER]` and judge it.

    `family` names the model where it is another one than the tiny decoder of that name; `make` is a buffer
    that no name stands for.
    """
    revision, caller = parse_subject(subject)
    spec, parsed = ArmSpec.parse(arm), Trace.parse(trace)
    case = Case(
        family or model.family.name,
        registered(revision),
        parsed,
        spec,
        dtype=str(model.dtype).removeprefix("torch."),
        graph_budget=graph_budget(parsed, spec),
        caller=caller,
        compare=compare,
    )
    observation = play(case, model, make or buffer_named(revision))
    return Played(case, observation, {said.rule: said for said in judge_all(ObservedCase(case, observation))})
