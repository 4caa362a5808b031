"""R11: the stated number of graphs, no break, no fall-back to eager."""

from deepstack_harness.contract.case import Case, GraphFacts, Judgement, Observation
from deepstack_harness.contract.rules import Rule
from deepstack_harness.oracles.base import against, error, numbered_steps, skip


def judge(case: Case, observation: Observation) -> Judgement:
    """Graphs above the budget; a break or a reached recompile limit is one too many, whatever the budget."""
    if not case.arm.compiled:
        return skip(Rule.R11, f"arm {case.arm.name} is not compiled")
    if observation.error:
        return error(Rule.R11, observation.error)
    found = observation.graphs
    if found is None:
        return skip(Rule.R11, _why_nothing(case, observation))
    surplus = found.breaks + found.limit_hit
    # At the limit fewer graphs exist than sizes were asked for: what is missing would run eager.
    graphs = max(found.graphs, case.graph_budget) + surplus if surplus else found.graphs
    return against(Rule.R11, graphs, case.graph_budget, "graphs", _describe(found))


def _describe(found: GraphFacts) -> str:
    parts = [f"{found.graphs} graphs, {found.recompiles} recompiles, {found.breaks} breaks"]
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
