"""`repro --workload`: the traffic of an evaluation, served by every revision or by a vLLM."""

from __future__ import annotations

from typing import TYPE_CHECKING

from deepstack_harness.catalogue.incidents import Incident
from deepstack_harness.catalogue.matrix import Planned, Where, plan_workload
from deepstack_harness.reporting.terminal.output import Output

if TYPE_CHECKING:
    from deepstack_harness.contract.trace import Trace
    from deepstack_harness.oracles.evaluation import Evaluation
    from deepstack_harness.play.cells import Runner
    from deepstack_harness.sources.source import Source

REQUESTS = 200
"""How many rows of the workload are served: enough for 400 steps and 100 token counts."""


def evaluate_workload(
    incident: Incident, where: Where, workload: str | None, source: Source | None, output: Output
) -> bool:
    """Whether every fixed revision (or the source) agrees with eager wholly, and no faulty one does."""
    from deepstack_harness.oracles.evaluation import evaluate
    from deepstack_harness.play.cells import Runner
    from deepstack_harness.reporting.terminal.evaluation_table import EvaluationTable

    trace = _trace(workload, output)
    runner, plan = Runner(), plan_workload(incident, where, trace)
    if source is not None:
        runner, plan = _of_source(incident, where, trace, source)
    table = EvaluationTable(output, [(one.case.revision, one.case.arm.name) for one in plan])
    as_known = []
    for planned in plan:
        with output.progress(f"serving {len(trace.steps)} operations to {planned.case.revision}"):
            cell = runner.play(planned)
        found = evaluate(cell.case, cell.observation)
        table.add(cell.case, cell.observation.graphs, found)
        as_known.append(_as_known(incident, planned, found))
    text = "as the catalogue has it" if source is None else "agrees with eager"
    output.verdict(text if all(as_known) else f"not {text}", good=all(as_known))
    return all(as_known)


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


def _of_source(
    incident: Incident, where: Where, trace: Trace, source: Source
) -> tuple[Runner, list[Planned]]:
    from deepstack_harness.engines.classes import methods_of
    from deepstack_harness.play.cells import Runner

    bound = methods_of(source, where.family)
    return Runner({bound.label: bound}), plan_workload(
        incident, where, trace, (bound.label, bound.model_class)
    )


def _as_known(incident: Incident, planned: Planned, found: Evaluation) -> bool:
    """A faulty revision is seen with its guards dropped only: torch's own guards recompile and are right."""
    right = found.agreement == 1 and not found.died
    faulty = planned.case.revision in incident.faulty and planned.case.arm.guards == "drop_all"
    return right != faulty
