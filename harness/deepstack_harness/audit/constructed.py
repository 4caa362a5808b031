"""A second opinion on R0: classes made by their own `__init__`, compiled by the engine's own decorator.

`play.constructed_work` makes and runs a class in a worker of its own; this process judges it by the oracle
of every R0.  The row of a constructed class has the evidence `constructed`.  It is never merged with the row
of the furnished class: `disagreement` is a sentence about where the two differ.
"""

from collections.abc import Collection, Mapping
from dataclasses import replace

from deepstack_harness.audit.class_verdicts import sum_up
from deepstack_harness.audit.classes import COMPILED_TRACE, WHERE, judge_compiled, known_rules_of, not_judged
from deepstack_harness.audit.source_worker import IMPORT_S, SourceWorker
from deepstack_harness.catalogue.known import UNREPORTED, seen_input
from deepstack_harness.catalogue.plans import plan_compiled
from deepstack_harness.contract.observation import Observation
from deepstack_harness.contract.oracles.judge import judge_case, unjudged_case
from deepstack_harness.contract.rules import Rule
from deepstack_harness.contract.verdicts import BROKEN, Evidence, Row, Verdict
from deepstack_harness.engines.known import engine_of
from deepstack_harness.errors import HarnessError, UsageError
from deepstack_harness.play.case_worker import CONSTRUCT, CaseWorker
from deepstack_harness.sources.source import Source, buffer_of
from deepstack_harness.workers.outcomes import WorkerEnd, value_of
from deepstack_harness.workers.profiles import COMPILE, COMPILE_LIMITS


def constructing_worker() -> CaseWorker:
    """Return a worker that imports an engine and makes its classes: both change the process."""
    limits = replace(COMPILE_LIMITS, step_s=IMPORT_S)
    return CaseWorker(limits, sandbox=COMPILE, preload=CONSTRUCT.module)


def constructed_classes(source: Source, wanted: Collection[str] = ()) -> list[str]:
    """Return the classes of a source that have a tiny configuration, or those of them that are `wanted`.

    Raises `UsageError` for an engine without configurations, and for classes that have none.
    """
    engine = engine_of(source)
    if not engine.tiny:
        raise UsageError(f"{engine.package.title} has no tiny configurations: --construct is for vLLM")
    files = source.python_files()
    there = [name for name, tiny in engine.tiny.items() if tiny.member in files]
    lacking = sorted({*wanted} - {*there})
    if lacking:
        known = ", ".join(there) or "no class"
        raise UsageError(f"--class {lacking[0]}: {source.label} has tiny configurations of {known}")
    return [name for name in there if not wanted or name in wanted]


def constructed_row(worker: SourceWorker, constructing: CaseWorker, name: str) -> Row:
    """Return the row of R0 of a class, made by its own `__init__`.

    R0 is known to be broken where a running engine showed it of the class or of the argument it compiles.
    """
    source = worker.source
    (planned,) = plan_compiled(WHERE, buffer_of(source, name), COMPILED_TRACE)
    refusal = ""
    try:
        result = constructing.call(
            CONSTRUCT, {"text": worker.text, "model_class": name, "case": planned.case}
        )
        if isinstance(result, WorkerEnd):
            judged = unjudged_case(planned, result.sentence)
        else:
            seen: Observation = value_of(result, f"the construction of {name}")
            judged = judge_case(planned, seen, [Rule.OUTPUT])
    except HarnessError as error:
        refusal = str(error)
        judged = unjudged_case(planned, refusal)
    known: Mapping[Rule, str] = known_rules_of(source, name)
    if seen_input(source.package, source.version, *engine_of(source).tiny[name].argument):
        known = {Rule.OUTPUT: UNREPORTED}
    (row,) = sum_up([judged], source.label, name, known, rules=[Rule.OUTPUT]).rows
    if refusal:
        row = not_judged(row, refusal)
    return replace(row, evidence=Evidence.CONSTRUCTED)


def furnished_rows(worker: SourceWorker, names: Collection[str]) -> dict[str, Row]:
    """Return the row of R0 of each of these classes, furnished, that can be run compiled."""
    # All are defined before one is played: playing changes what an import is checked against.
    classes = worker.classes(lambda name, _: name in names)
    rows = (
        row
        for audited in classes
        for row in judge_compiled(audited, worker, known_rules_of(worker.source, audited.model_class))
    )
    return {str(row.model_class): row for row in rows}


def disagreement(constructed: Row, furnished: Row | None) -> str:
    """Return how two opinions differ, as a sentence; empty where they agree, or one of them is none."""
    if furnished is None or Verdict.SKIP in {constructed.verdict, furnished.verdict}:
        return ""
    one, other = (row.verdict in BROKEN for row in (constructed, furnished))
    if one == other:
        return ""
    words = {True: "breaks", False: "keeps"}
    made = f"{constructed.model_class}: made by its own __init__ it {words[one]} R0"
    return f"{made}, furnished it {words[other]} it"
