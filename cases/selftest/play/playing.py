"""How tests play a case: one trace on one buffer, uncompiled by default."""

from dataclasses import replace

from deepstack_harness.catalogue.buffers import buffer_named
from deepstack_harness.catalogue.plans import graph_budget
from deepstack_harness.contract.arm import EAGER, ArmSpec
from deepstack_harness.contract.case import Case, Compare, registered
from deepstack_harness.contract.observation import Observation
from deepstack_harness.contract.oracles.judge import judge_all
from deepstack_harness.contract.oracles.trace_audit import ObservedCase
from deepstack_harness.contract.rules import Rule
from deepstack_harness.contract.trace import Trace
from deepstack_harness.contract.verdicts import Judgement, Verdict
from deepstack_harness.play.model import Model
from deepstack_harness.play.observe import play


def case_of(trace: str, revision: str, arm: ArmSpec = EAGER, dtype: str = "float32") -> Case:
    parsed = Trace.parse(trace)
    return Case(
        "qwen3_vl", registered(revision), parsed, arm, dtype=dtype, graph_budget=graph_budget(parsed, arm)
    )


def observe(model: Model, trace: str, revision: str, arm: ArmSpec = EAGER) -> Observation:
    return play(case_of(trace, revision, arm), model, buffer_named(revision))


def judge(
    model: Model, trace: str, revision: str, arm: ArmSpec = EAGER, compare: Compare = Compare.ALL
) -> dict[Rule, Judgement]:
    case = replace(case_of(trace, revision, arm), compare=compare)
    return {
        said.rule: said for said in judge_all(ObservedCase(case, play(case, model, buffer_named(revision))))
    }


def broken(judgements: dict[Rule, Judgement]) -> set[Rule]:
    assert not [judgement for judgement in judgements.values() if judgement.verdict is Verdict.ERROR]
    return {rule for rule, judgement in judgements.items() if judgement.verdict is Verdict.FAIL}
