"""Outputs: R0, why an output is wrong, and figures over a whole workload.

R0 holds where compiled or captured equals eager within the tolerance, and the payload moves the output by far
more than that. `diagnose` names the argument, or the graph, and the step at fault in one sentence;
`evaluate` counts greedy agreement with eager and leaks between requests.

The tolerance comes from measurement: `contract.tolerances` has the table.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from deepstack_harness.contract.arm import Capture, GuardPolicy, ShapePolicy
from deepstack_harness.contract.case import Case
from deepstack_harness.contract.ledger import Ledger
from deepstack_harness.contract.observation import (
    NOT_FINITE,
    Distances,
    DroppedGuard,
    GraphFacts,
    Observation,
    Raised,
    StepFacts,
)
from deepstack_harness.contract.oracles.trace_audit import (
    Deviation,
    ObservedCase,
    error,
    judge_figure,
    numbered_steps,
    skip,
)
from deepstack_harness.contract.rules import Rule
from deepstack_harness.contract.tolerances import EFFECT, FLOORS, HALF, rounding_limit
from deepstack_harness.contract.trace import RUNS_DECODER, Op, Step
from deepstack_harness.contract.verdicts import FaultKind, Judgement
from deepstack_harness.errors import shorten_list
from deepstack_harness.text import plural


class MeasuredStep(NamedTuple):
    """A step (numbered from 1) whose output was compared, and how far it was from its references."""

    number: int
    step: Step
    distances: Distances


def tolerance(case: Case, distances: Distances) -> float:
    """Return the largest accepted distance of one forward to eager."""
    # Without Inductor eager's kernels run in eager's order; ranks add up parts of a sum.
    rounds_as_eager = not case.arm.by_inductor and case.arm.ranks == 1
    return 0.0 if case.dtype in HALF and rounds_as_eager else explained(case, distances)


def explained(case: Case, distances: Distances) -> float:
    """Return the largest distance that another rounding than eager's explains."""
    return rounding_limit(case.dtype, distances.rounding, distances.scale)


def is_unsteady(dtype: str, distances: Distances) -> bool:
    """Return whether two uncompiled runs from equal state differ by more than atomic additions explain."""
    return distances.repeated > FLOORS[dtype] * distances.scale


def measured_steps(case: Case, observation: Observation) -> list[MeasuredStep]:
    """Return the steps whose output was compared, in order; none where no step was played."""
    if not observation.steps:
        return []
    return [
        MeasuredStep(number, step, facts.distances)
        for number, step, facts in numbered_steps(case, observation)
        if facts.distances is not None
    ]


def worst_step(case: Case, measured: Sequence[MeasuredStep]) -> MeasuredStep | None:
    """Return the step that is furthest above its tolerance; of equals the one that the payload moves most.

    A step without a payload may be the wrong one, where it reads what was cleared. None for no step.
    """
    return max(
        measured, key=lambda step: (_excess(case, step.distances), step.distances.effect), default=None
    )


def case_distances(case: Case, observation: Observation) -> Distances | None:
    """Return the distances of a whole case: to eager those of its worst step.

    A step without a payload knows nothing of the payload's effect, so all else comes from the worst step
    that a payload takes part in, if there is one. None where no step was compared, and where equal outputs
    show nothing.
    """
    measured = measured_steps(case, observation)
    with_payload = [step for step in measured if step.distances.effect > 0]
    worst, shown = worst_step(case, measured), worst_step(case, with_payload or measured)
    if worst is None or shown is None or shows_nothing(case, worst, measured):
        return None
    return replace(shown.distances, eager=worst.distances.eager)


def shows_nothing(case: Case, worst: MeasuredStep, measured: Sequence[MeasuredStep]) -> bool:
    """Return whether all outputs are equal, and a payload was set that no decoder run could read."""
    sets = any(step.op is Op.SET for step in case.trace)
    reached = any(step.distances.effect > 0 for step in measured)
    return sets and not reached and _excess(case, worst.distances) <= 0


def _excess(case: Case, apart: Distances) -> float:
    return apart.eager - tolerance(case, apart)


def judge_output(observed: ObservedCase) -> Judgement:
    """Judge the step that is furthest above its tolerance, or closest to it; a decoder that raised fails."""
    case, observation = observed.case, observed.observation
    if not (case.arm.compiled or case.arm.captured):
        name = case.arm.name
        return skip(Rule.OUTPUT, f"arm {name} is neither compiled nor captured: others are compared with it")
    if observation.routed and case.dtype in HALF:
        why = f"in {case.dtype} rounding may choose another expert: such families are compared in float32"
        return skip(Rule.OUTPUT, why)
    if observation.error:
        return error(Rule.OUTPUT, observation.error)
    crashed = crashes(observed)
    if crashed:
        crash = crashed[0]
        judgement = judge_figure(
            Rule.OUTPUT,
            NOT_FINITE,
            FLOORS[case.dtype],
            "abs",
            crash.detail,
            [crash.step],
            shape=crash.shape,
            chances=len(crashed),
        )
        return replace(judgement, exception=crash.exception)
    return _judge_distances(observed)


def crashes(observed: ObservedCase) -> list[Deviation]:
    """Return the decoder's exceptions; those at the recompile limit are caused by the harness: see R11."""
    case, observation = observed.case, observed.observation
    if observation.graphs and observation.graphs.limit_hit:
        return []
    return [
        Deviation(
            Rule.OUTPUT,
            1,
            "calls",
            f"step {number} '{step}' raised {raised.type}: {raised.message}",
            FaultKind.RAISED,
            exception=raised.type,
            step=number,
        )
        for number, step, facts in numbered_steps(case, observation)
        if (raised := facts.raised) and raised.call == "decoder"
    ]


def _judge_distances(observed: ObservedCase) -> Judgement:
    case, observation = observed.case, observed.observation
    measured = measured_steps(case, observation)
    worst = worst_step(case, measured)
    if worst is None or shows_nothing(case, worst, measured):
        return skip(Rule.OUTPUT, _why_not_compared(case, observation))
    apart, limit = worst.distances, tolerance(case, worst.distances)
    unsteady = next((step for step in measured if is_unsteady(case.dtype, step.distances)), None)
    if unsteady:
        return error(
            Rule.OUTPUT,
            f"step {unsteady.number} '{unsteady.step}': two uncompiled runs from equal state are "
            f"{unsteady.distances.repeated:.2g} apart: the decoder keeps state that cannot be seen (of a C "
            "extension, a file, a clock), or does not compute the same twice",
        )
    states = list(_states_apart(observed))
    if states and apart.eager <= limit:
        return states[0]
    payloads = (step.distances for step in measured if step.distances.effect > 0)
    weak = next((found for found in payloads if found.effect <= EFFECT * tolerance(case, found)), None)
    if weak:
        return error(
            Rule.OUTPUT, f"the payload moves the output by {weak.effect:.2g} only: too little to judge by"
        )
    dropped = next(_dropped_levels(case, measured), None) if apart.eager <= limit else None
    if dropped:
        return dropped
    ignored = apart.eager > limit >= apart.zero_deepstack
    why = "the compiled output equals that without the payload, which is ignored: " if ignored else ""
    without = "" if apart.no_deepstack is None else f"{apart.no_deepstack:.2g} from no-deepstack, "
    words = f"{why}{apart.eager:.2g} from eager, {without}{apart.zero_deepstack:.2g} from zero-deepstack"
    if places := state_places(observation):
        words += f"; the decoder keeps state ({shorten_list(places)}), equal in both"
    detail = f"step {worst.number} '{worst.step}': {words}"
    return judge_figure(
        Rule.OUTPUT,
        apart.eager,
        limit,
        "abs",
        detail,
        [worst.number],
        shape=FaultKind.OUTPUT,
        chances=len(measured),
    )


def state_places(observation: Observation) -> tuple[str, ...]:
    """Return the places of the decoder's state that lives from call to call, where that was watched."""
    return tuple(dict.fromkeys(fact.place for step in observation.steps for fact in step.state))


def _states_apart(observed: ObservedCase) -> Iterator[Judgement]:
    """Iterate over the failures of steps that left another state than the uncompiled run, in order."""
    for number, step, facts in numbered_steps(observed.case, observed.observation):
        for fact in facts.state:
            limit = rounding_limit(observed.case.dtype, fact.rounding, fact.scale)
            if fact.apart > limit:
                said = f"step {number} '{step}' leaves {fact.played} in the decoder's state {fact.place}, "
                detail = f"{said}uncompiled it leaves {fact.eager}"
                yield judge_figure(
                    Rule.OUTPUT, fact.apart, limit, "abs", detail, [number], shape=FaultKind.OUTPUT, chances=1
                )


def _dropped_levels(case: Case, measured: Sequence[MeasuredStep]) -> Iterator[Judgement]:
    """Iterate over the failures of steps whose output is the same without one level of their payload."""
    for step in measured:
        apart = step.distances
        limit = tolerance(case, apart)
        dropped = [level for level, effect in enumerate(apart.levels) if effect <= limit]
        if dropped and apart.effect > limit:
            which = f"{plural(len(dropped), 'level')} ({', '.join(map(str, dropped))})"
            detail = (
                f"step {step.number} '{step.step}': {which} of {len(apart.levels)} have no influence on the "
                f"output, which the payload moves by {apart.effect:.2g}: the decoder drops a part of it"
            )
            failed = judge_figure(
                Rule.OUTPUT, len(dropped), 0, "levels", detail, [step.number], shape=FaultKind.NO_EFFECT,
                chances=len(measured),
            )  # fmt: skip
            yield replace(failed, level=dropped[0])


def _why_not_compared(case: Case, observation: Observation) -> str:
    for _, step, facts in numbered_steps(case, observation):
        if facts.raised and step.op in RUNS_DECODER:
            return f"'{step}': {facts.raised.call} raised {facts.raised.type} before the decoder ran"
    return "no step ran the decoder on a payload"


Played = tuple[int, Step, StepFacts]


def diagnose(case: Case, observation: Observation) -> str | None:
    """Return why a run went wrong; None where nothing did, or the fault is of another kind."""
    calls = 0
    for number, step, facts in numbered_steps(case, observation):
        calls += step.op in RUNS_DECODER
        if facts.raised:
            raised = facts.raised
            what = f"{raised.call} raised {raised.type}: {raised.message} ({raised.where})"
            return f"step {number} '{step}': {_why_raised(case, observation, step, raised, calls)}{what}"
    if not (case.arm.compiled or case.arm.captured):
        return None
    runs = [run for run in numbered_steps(case, observation) if run[1].op in RUNS_DECODER and run[2].answer]
    for before, (number, step, facts) in enumerate(runs):
        apart = facts.distances
        if apart is not None and apart.eager > tolerance(case, apart):
            wrong = MeasuredStep(number, step, apart)
            return _why_output_is_wrong(case, observation, runs[:before], wrong, facts)
    return _why_more_graphs(case, observation)


def _why_raised(case: Case, observation: Observation, step: Step, raised: Raised, call: int) -> str:
    """Return what an exception leaves out; `call` is the number of the decoder's call from 1."""
    graphs, arm = observation.graphs, case.arm
    if raised.call != "decoder":
        return ""
    if graphs and graphs.limit_hit:
        return f"torch compiles no more than {graphs.graphs} graphs, and without fullgraph goes on eager; "
    if arm.shapes is ShapePolicy.MARK_UNBACKED and not graphs:
        return "nothing was compiled, unbacked sizes cannot be compared with each other or a number; "
    if arm.shapes is ShapePolicy.STATIC and graphs and arm.guards is not GuardPolicy.STOCK:
        return f"the graph is for one size alone, and no guard was left to notice {step.tokens} tokens; "
    guard = _last_failed(graphs, call)
    return f"{_was_dropped(guard)}: `{guard.name}` was {guard.then}, and then {guard.now}; " if guard else ""


def _why_more_graphs(case: Case, observation: Observation) -> str | None:
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


def _why_output_is_wrong(
    case: Case, observation: Observation, before: list[Played], wrong: MeasuredStep, facts: StepFacts
) -> str:
    """Return the first fact that sets a wrong run apart from those `before` it."""
    apart = wrong.distances
    off = f"off from eager by {apart.eager:.2g}"
    if apart.no_deepstack is not None and EFFECT * apart.no_deepstack <= apart.eager:
        off += f", and {apart.no_deepstack:.1g} from a model without deepstack"
    step_is_off = f"step {wrong.number} '{wrong.step}' is {off}"
    if apart.eager <= explained(case, apart):
        return (
            f"{step_is_off}, which rounding explains, but arm {case.arm.name} rounds as eager does: "
            "the same numbers were added in another order"
        )
    if wrong.step.op is Op.REPLAY:
        capture = Step(Op.CAPTURE, wrong.step.tokens)
        captures = (f"step {number} '{step}'" for number, step, _ in before if step == capture)
        graph = f"the graph captured in {next(captures, 'an earlier step')}"
        if facts.graph_use and facts.graph_use.detached:
            return f"{graph} reads storage from which get no longer answers; {step_is_off}"
        python = "the decoder" if case.arm.capture is Capture.PIECEWISE else "get, the decoder and clear"
        return f"{graph} is replayed without the Python of {python}; {step_is_off}"
    if not case.arm.compiled or not before or facts.graphs > before[-1][2].graphs:
        return f"{step_is_off}, and no graph of an earlier step took part"
    compiling, step, _ = before[0]
    guard = _last_failed(observation.graphs, len(before) + 1)
    if facts.graphs > 1:
        failed = (
            f"; {_was_dropped(guard)}: `{guard.name}` was {guard.then}, and then {guard.now}" if guard else ""
        )
        return f"{step_is_off}, on one of {facts.graphs} graphs that earlier steps compiled{failed}"
    if guard:
        return (
            f"`{guard.name}` was {guard.then} in step {compiling} '{step}', which compiled the graph, and "
            f"{_was_dropped(guard)}; step {wrong.number} '{wrong.step}' had {guard.now} and reused that "
            f"graph: {off}"
        )
    return (
        f"{step_is_off}, on the graph that step {compiling} '{step}' compiled, and no guard on what it read "
        "fails here: the graph kept something else of that step, or the caller passed something else"
    )


def _last_failed(facts: GraphFacts | None, call: int) -> DroppedGuard | None:
    """Return the dropped guard that failed last, up to this call of the decoder."""
    failed = [guard for guard in facts.failed if guard.first_call <= call] if facts else []
    return max(failed, key=lambda guard: guard.first_call, default=None)


def _was_dropped(guard: DroppedGuard) -> str:
    line = f" ({guard.where})" if guard.where else ""
    return f"the guard '{guard.rule}'{line} was dropped"


@dataclass(frozen=True)
class Evaluation:
    """Figures over all decoder runs of a trace.

    `agreement` is the share of tokens (padding included) whose greedy choice
    equals eager's, None where nothing ran; `runs` decoder runs that were compared,
    with `counts` distinct token counts; `died` runs that raised; `leaked` rows of a
    payload that belonged to other requests than those of the step that read it.
    """

    agreement: float | None
    runs: int
    counts: int
    died: int
    leaked: int


def evaluate(case: Case, observation: Observation) -> Evaluation:
    """Return the figures of one observation."""
    ledger = Ledger(case.trace.capacity, observation.levels, observation.hidden)
    runs: list[tuple[int, float]] = []
    died = leaked = 0
    for _, step, facts in numbered_steps(case, observation):
        if facts.distances is not None:
            runs.append((step.tokens, facts.distances.greedy))
        died += step.op in RUNS_DECODER and facts.raised is not None
        # Rows of ended payloads whose requests have no part in the live one.
        owners = _owners(ledger, ledger.live.number if ledger.live else 0)
        leaked += sum(
            run.rows
            for level in (facts.answer.rows if facts.answer else ())
            for run in level
            if run.payload and not owners & _owners(ledger, abs(run.payload))
        )
        ledger.commit(step, accepted=facts.raised is None, capacity=facts.capacity)
    tokens = sum(count for count, _ in runs)
    return Evaluation(
        agreement=sum(count * share for count, share in runs) / tokens if tokens else None,
        runs=len(runs),
        counts=len({count for count, _ in runs}),
        died=died,
        leaked=leaked,
    )


def _owners(ledger: Ledger, payload: int) -> frozenset[str]:
    held = ledger.payloads.get(payload)
    return frozenset(held.request.split("+")) if held else frozenset()
