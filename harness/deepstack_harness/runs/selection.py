"""Tasks of a run: families x revisions x traces x arms x dtypes x devices, selected by an expression."""

import ast
from collections.abc import Iterator, Sequence
from enum import StrEnum

from deepstack_harness.catalogue.contract_runs import contract_runs
from deepstack_harness.catalogue.incidents import DEEPSTACK, catalogue
from deepstack_harness.catalogue.matrix import Where, daily, plan_check, plan_incident, plan_runs
from deepstack_harness.clean_text import shortened
from deepstack_harness.contract.buffer_ref import user_buffer
from deepstack_harness.contract.case import PlannedCase
from deepstack_harness.errors import UsageError

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


def matrix(tier: Tier, devices: Sequence[str], buffers: Sequence[str] = ()) -> list[PlannedCase]:
    """Return every case of a tier; a case that several incidents have comes once for each of them.

    With `buffers`, classes of the user's own (MODULE:CLASS), these alone are planned, over the whole
    contract and without expectations.
    """
    found: list[PlannedCase] = []
    for device in devices:
        where = Where(_OWN_FAMILY, device=device)
        own = (planned for name in buffers for planned in plan_check(where, user_buffer(name)))
        found += own if buffers else [*_incidents(tier, device), *_contract(tier, device)]
    return found


def _incidents(tier: Tier, device: str) -> Iterator[PlannedCase]:
    for incident in catalogue():
        if incident.system != DEEPSTACK:
            continue
        for family in incident.families:
            for planned in plan_incident(incident, Where(family, device=device)):
                if tier is Tier.NIGHTLY or daily(incident, planned.case):
                    yield planned


def _contract(tier: Tier, device: str) -> Iterator[PlannedCase]:
    dtypes = _NIGHTLY_DTYPES if tier is Tier.NIGHTLY else _NIGHTLY_DTYPES[:1]
    for run in contract_runs():
        for family in run.families:
            for dtype in dtypes:
                yield from plan_runs([run], run.revisions, Where(family, dtype, device))


def select(cases: Sequence[PlannedCase], selection: str | None) -> list[PlannedCase]:
    """Return the cases for which an expression over `COLUMNS` holds, in the syntax of `DataFrame.eval`.

    Raises `UsageError` for an expression that cannot be parsed, and for one that holds for no task.
    """
    if selection is None:
        return list(cases)
    import pandas as pd  # of an extra: a run without a selection needs none

    frame = pd.DataFrame([_columns(planned) for planned in cases], columns=list(COLUMNS), dtype=object)
    _check_syntax(selection)
    try:
        holds = frame.eval(selection, engine="python", local_dict={}, global_dict={})
    except Exception as error:  # noqa: BLE001  # pandas raises whatever the expression makes it
        raise UsageError(f"selection '{selection}' cannot be read: {_said(error)}; {_HELP}") from None
    if not (isinstance(holds, pd.Series) and pd.api.types.is_bool_dtype(holds.dtype)):
        raise UsageError(f"selection '{selection}' is not a condition; {_HELP}")
    if not holds.any():
        known = len({planned.id for planned in cases})
        raise UsageError(f"selection '{selection}' matches none of the {known} cases; {_HELP}")
    return [planned for planned, held in zip(cases, holds, strict=True) if held]


_ALLOWED = (
    ast.Expression, ast.BoolOp, ast.boolop, ast.Compare, ast.cmpop, ast.UnaryOp, ast.Not, ast.Invert,
    ast.Constant, ast.BinOp, ast.BitAnd, ast.BitOr, ast.Name, ast.Load, ast.List, ast.Tuple, ast.Call,
    ast.keyword,
)  # fmt: skip
_METHODS = ("contains", "endswith", "fullmatch", "match", "startswith")
_LONGEST = 10_000


def _check_syntax(selection: str) -> None:
    """Refuse an expression that could take for ever or reach anything but the columns.

    `9**9**9` cannot be interrupted, and pandas evaluates methods of whatever an expression names.
    """
    if len(selection) > _LONGEST:
        raise UsageError(f"a selection has up to {_LONGEST:,} characters, not {len(selection):,}; {_HELP}")
    quoted = shortened(selection, 200)
    try:
        parts = list(ast.walk(ast.parse(selection.strip(), mode="eval")))
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise UsageError(f"selection '{quoted}' cannot be read: {_said(error)}; {_HELP}") from None
    for part in parts:
        if not (isinstance(part, _ALLOWED) or _is_text_method(part)):
            named = shortened(ast.unparse(part) or type(part).__name__, 200)
            raise UsageError(
                f"selection '{quoted}' cannot be read: it may compare columns and call "
                f"{', '.join(_METHODS)} of COLUMN.str, but has '{named}'; {_HELP}"
            )


def _is_text_method(part: ast.AST) -> bool:
    """Return True for `COLUMN.str` and `COLUMN.str.METHOD`."""
    match part:
        case ast.Attribute(ast.Attribute(ast.Name(), "str"), method):
            return method in _METHODS
        case ast.Attribute(ast.Name(), "str"):
            return True
    return False


_HELP = f"""the columns are {", ".join(COLUMNS)}, as in "family == 'qwen3_vl' and backend != 'inductor'\""""


def _columns(planned: PlannedCase) -> tuple[str, ...]:
    case, arm = planned.case, planned.case.arm
    return (
        case.family, case.buffer.name, case.caller, str(case.trace), arm.name, str(arm.backend),
        str(arm.guards), str(arm.shapes), str(arm.capture), case.dtype, case.device, planned.incident or "",
    )  # fmt: skip


def _said(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
