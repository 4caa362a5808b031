"""One sentence that names the argument, or the graph, and the step at fault."""

from deepstack_harness.contract.arm_spec import Capture, GuardPolicy, ShapePolicy
from deepstack_harness.contract.case import Case
from deepstack_harness.contract.observation import Answer, GraphFacts, Observation, Raised, StepFacts
from deepstack_harness.contract.plural import plural
from deepstack_harness.contract.trace import RUNS_DECODER, Op, Step
from deepstack_harness.oracles.base import numbered_steps
from deepstack_harness.oracles.distances import explained, tolerance
from deepstack_harness.oracles.output import EFFECT

Played = tuple[int, Step, StepFacts]


def diagnose(case: Case, observation: Observation) -> str | None:
    """Return why a run went wrong; None where nothing did, or the fault is of another kind."""
    for number, step, facts in numbered_steps(case, observation):
        if facts.raised:
            said = facts.raised
            what = f"{said.call} raised {said.type}: {said.message} ({said.where})"
            return f"step {number} '{step}': {_why_raised(case, observation, step, said)}{what}"
    if not (case.arm.compiled or case.arm.captured):
        return None
    runs = [run for run in numbered_steps(case, observation) if run[1].op in RUNS_DECODER and run[2].answer]
    wrong = next((run for run in runs if _off(case, run[2])), None)
    return _recompiled(case, observation) if wrong is None else _explain(case, observation, runs, wrong)


def _why_raised(case: Case, observation: Observation, step: Step, said: Raised) -> str:
    """Return the explanation that an exception of torch's leaves out."""
    graphs, arm = observation.graphs, case.arm
    if said.call != "decoder":
        return ""
    if graphs and graphs.limit_hit:
        return f"torch compiles no more than {graphs.graphs} graphs, and without fullgraph goes on eager; "
    if arm.shapes is ShapePolicy.MARK_UNBACKED and not graphs:
        return "nothing was compiled, unbacked sizes cannot be compared with each other or a number; "
    if arm.shapes is ShapePolicy.STATIC and graphs and arm.guards is not GuardPolicy.STOCK:
        return f"the graph is for one size alone, and no guard was left to notice {step.tokens} tokens; "
    return ""


def _recompiled(case: Case, observation: Observation) -> str | None:
    """Return why right outputs cost more graphs than the budget; None where they do not."""
    graphs = observation.graphs
    if graphs and graphs.breaks:
        return (
            f"torch broke the graph {plural(graphs.breaks, 'time')} and compiled {graphs.graphs} graphs, and "
            f"not {case.graph_budget}: an operation, such as an index by values, is in no graph"
        )
    if graphs is None or not graphs.reasons or graphs.graphs <= case.graph_budget:
        return None
    compiled = f"torch compiled {graphs.graphs} graphs, and not {case.graph_budget}"
    return f"{compiled}: {graphs.reasons[0]} held no more"


def _explain(case: Case, observation: Observation, runs: list[Played], wrong: Played) -> str:
    """Return the first fact that sets the wrong run apart."""
    before = runs[: runs.index(wrong)]
    if _rounding_explains(case, wrong[2]):
        return (
            f"{_off_by(wrong)}, which rounding explains, but arm {case.arm.name} rounds as eager does: "
            "the same numbers were added in another order"
        )
    if wrong[1].op is Op.REPLAY:
        return _replayed(case, before, wrong)
    if not case.arm.compiled or not before or wrong[2].graphs > before[-1][2].graphs:
        return f"{_off_by(wrong)}, and no graph of an earlier step took part"
    return _on_an_old_graph(observation, before[0], wrong)


def _on_an_old_graph(observation: Observation, first: Played, wrong: Played) -> str:
    if wrong[2].graphs > 1:
        return f"{_off_by(wrong)}, on one of {wrong[2].graphs} graphs that earlier steps compiled"
    number, step, facts = first
    given = _shape(facts.answer)
    if given != _shape(wrong[2].answer):
        return f"{_specialised(first, observation)}; {_reused(wrong)}"
    return (
        f"{_off_by(wrong)}, on the graph that step {number} '{step}' compiled, with {given} as 'payload' "
        "there and here: the graph kept something else of that step, or the caller passed something else"
    )


def _off(case: Case, facts: StepFacts) -> bool:
    found = facts.distances
    return found is not None and found.eager > tolerance(case, found)


def _rounding_explains(case: Case, facts: StepFacts) -> bool:
    """Say whether an arm that may round as it likes could be as far off."""
    assert facts.distances is not None  # _off saw it
    return facts.distances.eager <= explained(case, facts.distances)


def _replayed(case: Case, before: list[Played], wrong: Played) -> str:
    """Return which capture a wrong replay repeats, and what did not happen again."""
    step = wrong[1]
    captures = (f"step {number} '{one}'" for number, one, _ in before if one == Step(Op.CAPTURE, step.tokens))
    graph = f"the graph captured in {next(captures, 'an earlier step')}"
    if wrong[2].graph_use and wrong[2].graph_use.detached:
        return f"{graph} reads storage from which get no longer answers; {_off_by(wrong)}"
    python = "the decoder" if case.arm.capture is Capture.PIECEWISE else "get, the decoder and clear"
    return f"{graph} is replayed without the Python of {python}; {_off_by(wrong)}"


def _specialised(first: Played, observation: Observation) -> str:
    number, step, facts = first
    given = f"the argument 'payload' was {_shape(facts.answer)} in step {number} '{step}'"
    return f"{given}, which compiled the graph, {_guards(observation.graphs)}"


def _guards(facts: GraphFacts | None) -> str:
    dropped = facts.payload_guards - facts.payload_kept if facts else 0
    if facts is None or not dropped:
        return "and no guard notices another structure"
    return f"and {dropped} of {facts.payload_guards} guards on it were dropped"


def _reused(wrong: Played) -> str:
    number, step, facts = wrong
    return f"step {number} '{step}' passed {_shape(facts.answer)} and reused that graph: {_distance(wrong)}"


def _off_by(wrong: Played) -> str:
    number, step, _ = wrong
    return f"step {number} '{step}' is {_distance(wrong)}"


def _distance(wrong: Played) -> str:
    """Return how far the output is from eager, and whether the payload has any influence left."""
    found = wrong[2].distances
    assert found is not None  # _off saw it
    off = f"off from eager by {found.eager:.2g}"
    if found.no_deepstack is None or EFFECT * found.no_deepstack > found.eager:
        return off
    return f"{off}, and {found.no_deepstack:.1g} from a model without deepstack"


def _shape(answer: Answer | None) -> str:
    if answer is None or answer.structure == "none":
        return "None"
    return plural(len(answer.rows), "tensor")
