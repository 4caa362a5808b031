"""Tasks of a run: families x revisions x traces x arms x dtypes x devices, selected by an expression."""

from collections.abc import Iterable, Iterator, Sequence
from enum import StrEnum

import pandas as pd

from deepstack_harness.catalogue.contract_runs import contract_runs
from deepstack_harness.catalogue.incidents import DEEPSTACK, catalogue
from deepstack_harness.catalogue.matrix import Where, daily, plan_check, plan_incident, plan_runs
from deepstack_harness.contract.rules import Rule
from deepstack_harness.errors import UsageError
from deepstack_harness.runs.tasks import Task

COLUMNS = (
    "family", "revision", "caller", "trace", "arm", "backend", "guards", "shapes", "capture",
    "dtype", "device", "incident",
)  # fmt: skip
"""Names that an expression can use."""

_NIGHTLY_DTYPES = ("float32", "bfloat16", "float16")
_OWN_FAMILY = "qwen3_vl"


class Tier(StrEnum):
    """Size of the matrix: NIGHTLY has every case, CI few groups that share compiles."""

    CI = "ci"
    NIGHTLY = "nightly"


def matrix(tier: Tier, devices: Sequence[str], buffers: Sequence[str] = ()) -> list[Task]:
    """Return every task of a tier; a case that several incidents have comes once for each of them.

    With `buffers`, classes of the user's own (MODULE:CLASS), these alone are planned, over the whole
    contract and without expectations.
    """
    found: list[Task] = []
    for device in devices:
        where = Where(_OWN_FAMILY, device=device)
        own = (Task(planned.case, None) for name in buffers for planned in plan_check(where, name))
        found += own if buffers else [*_incidents(tier, device), *_contract(tier, device)]
    return found


def _incidents(tier: Tier, device: str) -> Iterator[Task]:
    for incident in catalogue():
        if incident.system != DEEPSTACK:
            continue
        for family in incident.families:
            for planned in plan_incident(incident, Where(family, device=device)):
                if tier is Tier.NIGHTLY or daily(incident, planned.case):
                    yield Task(planned.case, _sorted(planned.must_break), incident.id, planned.note)


def _contract(tier: Tier, device: str) -> Iterator[Task]:
    dtypes = _NIGHTLY_DTYPES if tier is Tier.NIGHTLY else _NIGHTLY_DTYPES[:1]
    for run in contract_runs():
        for family in run.families:
            for dtype in dtypes:
                for planned in plan_runs([run], run.revisions, Where(family, dtype, device)):
                    yield Task(planned.case, _sorted(planned.must_break), None, planned.note)


def _sorted(rules: Iterable[Rule] | None) -> tuple[Rule, ...] | None:
    return None if rules is None else tuple(rule for rule in Rule if rule in set(rules))


def select(tasks: Sequence[Task], selection: str | None) -> list[Task]:
    """Return the tasks for which an expression over `COLUMNS` holds, in the syntax of `DataFrame.eval`.

    Raises `UsageError` for an expression that cannot be parsed, and for one that holds for no task.
    """
    if selection is None:
        return list(tasks)
    frame = pd.DataFrame([_columns(task) for task in tasks], columns=list(COLUMNS), dtype=object)
    try:
        holds = frame.eval(selection, engine="python", local_dict={}, global_dict={})
    except Exception as error:  # noqa: BLE001  # pandas raises whatever the expression makes it
        raise UsageError(f"selection '{selection}' does not read: {_said(error)}; {_HELP}") from None
    if not (isinstance(holds, pd.Series) and pd.api.types.is_bool_dtype(holds.dtype)):
        raise UsageError(f"selection '{selection}' is no condition that holds or does not; {_HELP}")
    if not holds.any():
        raise UsageError(
            f"selection '{selection}' holds for none of {len({task.id for task in tasks})} cases; {_HELP}"
        )
    return [task for task, held in zip(tasks, holds, strict=True) if held]


_HELP = f"""the columns are {", ".join(COLUMNS)}, as in "family == 'qwen3_vl' and backend != 'inductor'\""""


def _columns(task: Task) -> tuple[str, ...]:
    case, arm = task.case, task.case.arm
    return (
        case.family, case.revision, case.caller, str(case.trace), arm.name, str(arm.backend),
        str(arm.guards), str(arm.shapes), str(arm.capture), case.dtype, case.device, task.incident or "",
    )  # fmt: skip


def _said(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
