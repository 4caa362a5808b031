"""R11: the stated number of graphs, no break, no fall-back to eager."""

from harness.case import Case, Judgement, Observation
from harness.oracles.base import against, error, skip
from harness.rules import Rule


def judge(case: Case, observation: Observation) -> Judgement:
    """Graphs above the budget; a break or a reached recompile limit counts as one too many."""
    if not case.arm.compiled:
        return skip(Rule.R11, f"arm {case.arm.name} is not compiled")
    if observation.error:
        return error(Rule.R11, observation.error)
    found = observation.graphs
    if found is None:
        return skip(Rule.R11, "the decoder was never reached")
    surplus = found.breaks + found.limit_hit
    detail = f"{found.graphs} graphs, {found.recompiles} recompiles, {found.breaks} breaks"
    if found.reasons:
        detail += f"; recompiled because {found.reasons[0]}"
    return against(Rule.R11, found.graphs + surplus, case.graph_budget, "graphs", detail)
