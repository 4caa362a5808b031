"""A whole run: the cases of the matrix, the part of them that a selection names, their pool and their files.

The matrix is families x revisions x traces x arms x dtypes x devices.
"""

import ast
import re
import sys
from collections.abc import Generator, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Protocol

from deepstack_harness import __version__
from deepstack_harness.catalogue.incidents import CONTRACT_RUNS, DEEPSTACK, catalogue
from deepstack_harness.catalogue.plans import Where, daily, plan_check, plan_incident, plan_runs
from deepstack_harness.contract.case import PlannedCase, user_buffer
from deepstack_harness.errors import UsageError
from deepstack_harness.play.case_worker import check_buffers
from deepstack_harness.runs.case_result import CaseResult
from deepstack_harness.runs.machine import environment, visible_gpus
from deepstack_harness.runs.pools import RUN_LIMITS, Group, LocalPool, fingerprint, grouped, part_of
from deepstack_harness.runs.records import About, Files, Planning, Shard
from deepstack_harness.runs.store import RunWriter, now
from deepstack_harness.text import first_line_of, shortened
from deepstack_harness.workers.limits import Limits

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
    cases: list[PlannedCase] = []
    for device in devices:
        where = Where(_OWN_FAMILY, device=device)
        of_user = (planned for name in buffers for planned in plan_check(where, user_buffer(name)))
        cases += of_user if buffers else [*_incidents(tier, device), *_contract(tier, device)]
    return cases


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
    for run in CONTRACT_RUNS.entries:
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
        raise UsageError(f"selection '{selection}' cannot be read: {first_line_of(error)}; {_HELP}") from None
    if not (isinstance(holds, pd.Series) and pd.api.types.is_bool_dtype(holds.dtype)):
        raise UsageError(f"selection '{selection}' is not a condition; {_HELP}")
    if not holds.any():
        distinct = len({planned.id for planned in cases})
        raise UsageError(f"selection '{selection}' matches none of the {distinct} cases; {_HELP}")
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
        raise UsageError(f"selection '{quoted}' cannot be read: {first_line_of(error)}; {_HELP}") from None
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


_DEVICE = re.compile(r"cpu|cuda(:\d+)?")
EXECUTORS = ("local", "ray")


class Pool(Protocol):
    """A player of groups."""

    def play(self, groups: Sequence[Group]) -> Generator[CaseResult]:
        """Play every case, each result as it comes, in whatever order."""
        ...


@dataclass(frozen=True)
class RunRequest:
    """The cases that a run is to play, and how."""

    selection: str | None = None
    tier: Tier = Tier.CI
    devices: tuple[str, ...] = ("cpu",)
    buffers: tuple[str, ...] = ()
    shard: Shard | None = None
    workers: int = 1
    executor: str = "local"
    limits: Limits = RUN_LIMITS
    cheapest_first: bool = False

    @property
    def shares_gpus(self) -> bool:
        """Say whether this process shares out GPUs: with Ray they are the cluster's, and Ray does it."""
        return self.executor == "local" and any(device.startswith("cuda") for device in self.devices)


class Execution:
    """One run, or one shard of it, from its plan to its files."""

    def __init__(self, request: RunRequest, folder: Path, *, resume: bool) -> None:
        """Plan the run and open its files.

        Raises `UsageError` for a wrong request, `MachineError` where there is no GPU or no
        Ray, and where the folder cannot be written to.
        """
        self._request = request
        gpus = _gpus(request)
        if request.buffers:
            check_buffers(request.buffers)
        groups = grouped(select(matrix(request.tier, request.devices, request.buffers), request.selection))
        self.left_out = [group for group in groups if request.shares_gpus and _too_wide(group, len(gpus))]
        groups = [group for group in groups if group not in self.left_out]
        shard_groups = part_of(groups, request.shard)
        self._pool = _pool(request, gpus)
        self.writer = RunWriter(
            Files(folder, request.shard), _about_run(request, groups, shard_groups), resume=resume
        )
        done = frozenset(case.case for case in self.writer.part.cases)
        self.groups = [left for group in shard_groups if (left := group.without(done))]
        if request.cheapest_first:
            self.groups.sort(key=lambda group: group.seconds / len(group.cases))

    def play(self) -> Generator[CaseResult]:
        """Play every case that is left; each result is stored when it comes.  Then the run is finished."""
        with closing(self._pool.play(self.groups)) as ended:
            for result in ended:
                self.writer.append(result.rows, result.case)
                yield result
        self.writer.finish()


def _pool(request: RunRequest, gpus: Sequence[str]) -> Pool:
    if request.executor == "ray":
        from deepstack_harness.runs.ray_pool import RayPool

        return RayPool(request.workers, request.limits)
    return LocalPool(request.workers, request.limits, gpus)


def _gpus(request: RunRequest) -> list[str]:
    """Return the GPUs to share out, if any; raises `UsageError` for an unknown device."""
    for device in request.devices:
        if not _DEVICE.fullmatch(device):
            raise UsageError(f"unknown device '{device}'; known are cpu, cuda and cuda:N")
    return visible_gpus() if request.shares_gpus else []


def _too_wide(group: Group, gpus: int) -> bool:
    """Say whether its ranks want more GPUs than there are."""
    return group.device.startswith("cuda") and group.ranks > gpus


def _about_run(request: RunRequest, groups: Sequence[Group], shard_groups: Sequence[Group]) -> About:
    return About(
        harness=__version__, started=now(), finished=None, command=tuple(sys.argv),
        selection=request.selection, tier=request.tier, environment=environment(),
        shard=str(request.shard) if request.shard else None,
        planned=Planning(len(shard_groups), sum(len(group.cases) for group in shard_groups)),
        plan=fingerprint(groups),
    )  # fmt: skip
