"""`repro --workload`: the traffic of an evaluation, served by every revision or by a vLLM."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable
from typing import TYPE_CHECKING

from deepstack_harness.catalogue.incidents import Incident
from deepstack_harness.catalogue.matrix import Where, plan_workload
from deepstack_harness.contract.case import PlannedCase
from deepstack_harness.reporting.terminal.output import Output

if TYPE_CHECKING:
    from deepstack_harness.contract.case import Case
    from deepstack_harness.contract.observation import Observation
    from deepstack_harness.contract.trace import Trace
    from deepstack_harness.oracles.evaluation import Evaluation

REQUESTS = 200
"""How many rows of the workload are served: enough for 400 steps and 100 token counts."""


def evaluate_workload(incident: Incident, where: Where, args: Namespace, output: Output) -> bool:
    """Return True if every fixed revision (or the source) agrees with eager, and no faulty one does.

    `args.workload` is True for the workload of ours.
    """
    trace, source = _trace(None if args.workload is True else args.workload, output), args.source
    if source is None:
        from deepstack_harness.play.play_case import play_case

        return _evaluate(incident, plan_workload(incident, where, trace), play_case, output)
    from deepstack_harness.auditing.family_worker import FamilyWorker

    with FamilyWorker(source, where.family) as worker:
        plan = plan_workload(incident, where, trace, worker.buffer)
        return _evaluate(incident, plan, worker.play, output, source=True)


def _evaluate(
    incident: Incident,
    plan: list[PlannedCase],
    play: Callable[[Case], Observation],
    output: Output,
    *,
    source: bool = False,
) -> bool:
    from deepstack_harness.oracles.evaluation import evaluate
    from deepstack_harness.reporting.terminal.evaluation_table import EvaluationTable

    table = EvaluationTable(output, [(one.case.buffer.name, one.case.arm.name) for one in plan])
    as_known = []
    for planned in plan:
        steps = len(planned.case.trace.steps)
        with output.progress(f"serving {steps} operations to {planned.case.buffer.name}"):
            seen = play(planned.case)
        found = evaluate(planned.case, seen)
        table.add(planned.case, seen.graphs, found)
        as_known.append(_as_known(incident, planned, found))
    good = all(as_known)
    if source:
        output.verdict("agrees with eager" if good else "does not agree with eager", good=good)
    else:
        output.verdict("as the catalogue expects" if good else "not as the catalogue expects", good=good)
    return good


def _trace(workload: str | None, output: Output) -> Trace:
    from deepstack_harness.workload.geometry3k import load_workload
    from deepstack_harness.workload.padding import unpadded
    from deepstack_harness.workload.schedule import distinct_counts, serve, to_trace

    requests = load_workload(workload)[:REQUESTS]
    steps = serve(requests)
    visual = sum(step.visual for step in steps)
    output.line(
        f"{len(requests)} requests, {len(steps)} steps ({visual} with visual tokens), "
        f"{distinct_counts(steps)} token counts; chunked prefill, 512 tokens and 4 slots a step, not padded"
    )
    # Unpadded, as without captured graphs: the counts vary most, and pr40145 does not die of padding.
    return to_trace(steps, pad=unpadded)


def _as_known(incident: Incident, planned: PlannedCase, found: Evaluation) -> bool:
    """Return True if a faulty revision is seen, and any other is not.

    A faulty revision must be seen only where its guards are dropped: torch's own guards recompile, and the
    outputs are right.
    """
    right = found.agreement == 1 and not found.died
    faulty = planned.case.subject in incident.faulty and planned.case.arm.guards == "drop_all"
    return right != faulty
