"""Judge the rows that a class gives each rank of a shared step (R9), over ranks that are stand-ins."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import msgspec

from deepstack_harness.auditing.argument_classes import WHERE
from deepstack_harness.auditing.source_worker import AuditedClass, SourceWorker
from deepstack_harness.auditing.standing import sum_up
from deepstack_harness.catalogue.latent import latent_argument
from deepstack_harness.catalogue.matrix import plan_audit
from deepstack_harness.catalogue.reach import FLAG, LATENT, UNKNOWN
from deepstack_harness.contract.arm_spec import ArmSpec
from deepstack_harness.contract.case import PlannedCase
from deepstack_harness.contract.observation import Observation
from deepstack_harness.contract.plural import plural
from deepstack_harness.contract.row import Evidence, Row
from deepstack_harness.contract.rules import Rule
from deepstack_harness.contract.trace import Trace
from deepstack_harness.contract.verdicts import BROKEN
from deepstack_harness.oracles.judged_case import JudgedCase, judge_case, unjudged_case
from deepstack_harness.play.source_class import SourceClass
from deepstack_harness.sources.source import buffer_of
from deepstack_harness.workers.outcomes import WorkerEnd, value_of

PADDED = (
    ("cap 16: set 9; get 10", 2),
    ("cap 16: set 9; get 12", 4),
    ("cap 16: set 9; get 16", 8),
    ("cap 16: set 9; get 12; clear 12; set 3; get 4", 4),
)
"""Steps that were padded to a multiple of the ranks, and how many ranks share them."""
UNPADDED = (("cap 16: set 10; get 10", 4), ("cap 16: set 9; get 9", 8))
"""Steps that were not: `torch.chunk` makes parts of unequal size, or fewer than there are ranks."""
_SETTING = "sequence parallelism"


def judge_split(found: AuditedClass, worker: SourceWorker, known: Mapping[Rule, str]) -> Row:
    """Return the row of R9: the worst of all steps, with how the engine comes to it."""
    padded = [_judged(found, worker, *one) for one in PADDED]
    unpadded = [_judged(found, worker, *one) for one in UNPADDED]
    cases = [*padded, *unpadded]
    (row,) = sum_up(cases, worker.source.label, found.model_class, known, rules=[Rule.R9]).rows
    return _with_reach(row, worker.source.package, padded) if row.verdict in BROKEN else row


def _judged(found: AuditedClass, worker: SourceWorker, text: str, ranks: int) -> JudgedCase:
    """Play one trace on every rank, and judge it as a step that ranks share."""
    buffer = buffer_of(worker.source, found.model_class)
    (alone,) = plan_audit(WHERE, buffer, [Trace.parse(text)])
    shared = PlannedCase(replace(alone.case, arm=ArmSpec.parse(f"eager/tp{ranks}")), None)
    result = worker.call(
        "deepstack_harness.play.split_work:play_split",
        case=msgspec.to_builtins(alone.case),
        source=msgspec.to_builtins(SourceClass(worker.text, found.model_class)),
        ranks=ranks,
    )
    if isinstance(result, WorkerEnd):
        return unjudged_case(shared, result.sentence)
    seen = value_of(result, f"the rows of each rank of {found.model_class}")
    return judge_case(shared, msgspec.convert(seen, Observation))


def _with_reach(row: Row, package: str, padded: Sequence[JudgedCase]) -> Row:
    """Return the row with its reach: an engine that pads comes to a fault of padded steps alone."""
    broken = [judged for judged in padded if Rule.R9 in judged.broken]
    if broken:
        return replace(row, reach=f"{FLAG}{_SETTING}", evidence=Evidence.READ)
    kept = f"{row.detail}; {plural(len(padded), 'step')} padded to a multiple of the ranks kept it"
    if latent_argument(package, Rule.R9) is None:
        return replace(row, reach=UNKNOWN, detail=kept)
    return replace(row, reach=LATENT, evidence=Evidence.READ, detail=kept)
