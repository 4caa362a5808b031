"""A case that is played in this process and judged by every rule: what most cases are made of."""

from dataclasses import dataclass, replace
from functools import cache

from cases.shallow import shallow
from deepstack_harness.catalogue.buffers import buffer_named
from deepstack_harness.catalogue.plans import graph_budget
from deepstack_harness.contract.arm import ArmSpec
from deepstack_harness.contract.case import Case, Compare, parse_subject, registered
from deepstack_harness.contract.observation import Observation
from deepstack_harness.contract.oracles.judge import judge_all
from deepstack_harness.contract.oracles.outputs import diagnose
from deepstack_harness.contract.oracles.trace_audit import ObservedCase
from deepstack_harness.contract.protocols import BufferFactory
from deepstack_harness.contract.rules import Rule
from deepstack_harness.contract.trace import Trace
from deepstack_harness.contract.verdicts import Judgement, Verdict
from deepstack_harness.play.model import Model, factory_of
from deepstack_harness.play.observe import play
from deepstack_harness.play.play_case import play_case


def observed(case: Case, *, few_layers: bool = False) -> Observation:
    """Play a case of a named buffer; tests of one process that need the same case share it.

    With `few_layers` its family has one, or two where it needs two: they compile three times as fast.
    """
    return _played_once(replace(case, graph_budget=1), few_layers)  # playing takes no notice of the budget


@cache
def _played_once(case: Case, few_layers: bool) -> Observation:  # what is cached has a place
    if few_layers:
        return play(case, shallow(case.family, layers=1), factory_of(case.buffer))
    return play_case(case)


@dataclass(frozen=True)
class Played:
    """One case, its observation, and the judgement of each rule."""

    case: Case
    observation: Observation
    judgements: dict[Rule, Judgement]

    @property
    def broken(self) -> set[Rule]:
        """The rules that are broken; an ERROR is a fault of the test."""
        verdicts = {rule: judgement.verdict for rule, judgement in self.judgements.items()}
        assert Verdict.ERROR not in verdicts.values()
        return {rule for rule, verdict in verdicts.items() if verdict is Verdict.FAIL}

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
    that has no name.
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
    judgements = judge_all(ObservedCase(case, observation))
    return Played(case, observation, {judgement.rule: judgement for judgement in judgements})
