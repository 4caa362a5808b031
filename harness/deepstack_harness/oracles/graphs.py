"""R11: the stated number of graphs, no break, no fall-back to eager.

Without a compiler the answers alone are judged: what guards look at has to stay the same.
"""

from collections.abc import Iterator

from deepstack_harness.contract.case import Case
from deepstack_harness.contract.observation import Answer, GraphFacts, Observation
from deepstack_harness.contract.plural import plural
from deepstack_harness.contract.rules import Rule
from deepstack_harness.contract.verdicts import Judgement
from deepstack_harness.oracles.base import against, error, numbered_steps, skip
from deepstack_harness.oracles.observed_case import ObservedCase


def judge(observed: ObservedCase) -> Judgement:
    """Count graphs against the budget; a break or a reached recompile limit is above any budget."""
    case, observation = observed.case, observed.observation
    if not case.arm.compiled:
        return _judge_answers(case, observation)
    if observation.error:
        return error(Rule.R11, observation.error)
    found = observation.graphs
    if found is None:
        return skip(Rule.R11, _why_nothing(case, observation))
    surplus = found.breaks + found.limit_hit
    # At the limit fewer graphs exist than sizes were asked for: what is missing would run eager.
    graphs = max(found.graphs, case.graph_budget) + surplus if surplus else found.graphs
    return against(Rule.R11, graphs, case.graph_budget, "graphs", _describe(found))


def _judge_answers(case: Case, observation: Observation) -> Judgement:
    """Count what guards look at and that differs from the first answer: container, requires_grad, strides."""
    # A negative count should not be answered at all (R8).
    seen = [
        (number, f"step {number} '{step}'", key, said)
        for number, step, facts in numbered_steps(case, observation)
        if facts.answer is not None and step.tokens >= 0
        for key, said in _guarded(facts.answer, observation.hidden)
    ]
    levels = range(observation.levels)
    first = {f"gradient {level}": ("a buffer answers", "without requires_grad") for level in levels}
    wrong = [
        (number, f"{where} answered {said}, and {first[key][0]} {first[key][1]}")
        for number, where, key, said in seen
        if first.setdefault(key, (where, said))[1] != said
    ]
    if len({number for number, *_ in seen}) < 2:
        return skip(Rule.R11, f"arm {case.arm.name} is not compiled, and no two answers can be compared")
    detail = f"{wrong[0][1]}: a guard fails, and another graph is compiled" if wrong else ""
    return against(Rule.R11, len(wrong), 0, "changes", detail, [number for number, _ in wrong])


def _guarded(answer: Answer, hidden: int) -> Iterator[tuple[str, str]]:
    """Iterate over (key, text) of what guards look at; the stride of a single row or column means nothing.

    Another width than the hidden size has other strides too: that is R2.
    """
    if answer.structure == "none":
        return  # that is R1
    yield "container", f"with a {answer.container}"
    for level, gradient in enumerate(answer.gradients):
        yield f"gradient {level}", "with requires_grad" if gradient else "without requires_grad"
    for level, (runs, width, strides) in enumerate(
        zip(answer.rows, answer.hidden, answer.strides, strict=False)
    ):
        if sum(run.rows for run in runs) > 1 and width == hidden:
            yield f"strides {level}", f"with strides {strides[:1] if width == 1 else strides}"


def _describe(found: GraphFacts) -> str:
    again, breaks = plural(found.recompiles, "recompile"), plural(found.breaks, "break")
    parts = [f"{plural(found.graphs, 'graph')}, {again}, {breaks}"]
    if found.limit_hit:
        parts.append(
            "the recompile limit was reached: without fullgraph torch runs eager from here on, in silence"
        )
    if found.reasons:
        parts.append(f"recompiled because {found.reasons[0]}")
    return "; ".join(parts)


def _why_nothing(case: Case, observation: Observation) -> str:
    for number, step, facts in numbered_steps(case, observation):
        if facts.raised and facts.raised.call == "decoder":
            return f"nothing was compiled: step {number} '{step}' raised {facts.raised.type}"
    return "the decoder was never reached"
