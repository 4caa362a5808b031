"""One sentence that names the argument and the step at fault."""

from harness.case import Answer, Case, Distances, GraphFacts, Observation, StepFacts
from harness.oracles.base import numbered_steps
from harness.oracles.output import tolerance
from harness.trace import RUNS_DECODER, Step

Played = tuple[int, Step, StepFacts]


def diagnose(case: Case, observation: Observation) -> str | None:
    """Why a run went wrong; None where nothing did, or it is no fault of this kind."""
    for number, step, facts in numbered_steps(case, observation):
        if facts.raised:
            said = facts.raised
            return f"step {number} '{step}': {said.call} raised {said.type}: {said.message} ({said.where})"
    runs = [run for run in numbered_steps(case, observation) if run[1].op in RUNS_DECODER and run[2].answer]
    wrong = [run for run in runs if _off(run[2])]
    if not case.arm.compiled or not wrong:
        return None
    return f"{_specialised(runs[0], observation)}; {_reused(wrong[0])}"


def _off(facts: StepFacts) -> bool:
    found = facts.distances
    return found is not None and found.eager > tolerance(found)


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
    assert facts.distances is not None  # _off saw it
    off = f"off from eager by {facts.distances.eager:.2g}"
    passed = f"step {number} '{step}' passed {_shape(facts.answer)} and reused that graph"
    return f"{passed}: {off}{_as_without(facts.distances)}"


def _as_without(found: Distances) -> str:
    if found.no_deepstack is None or found.no_deepstack > tolerance(found):
        return ""
    return f", and {found.no_deepstack:.1g} from a model without deepstack"


def _shape(answer: Answer | None) -> str:
    if answer is None or answer.structure == "none":
        return "None"
    return f"{len(answer.rows)} tensors"
