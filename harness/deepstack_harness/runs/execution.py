"""A whole run: the cases of the matrix, the part of them that a selection names, their pool and their files.

The matrix is families x revisions x traces x arms x dtypes x devices.
"""

import fnmatch
import glob
import re
import shlex
import sys
from collections import defaultdict
from collections.abc import Callable, Generator, Iterator, Sequence
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
from deepstack_harness.options import option, whole
from deepstack_harness.play.case_worker import check_buffers
from deepstack_harness.runs.case_result import CaseResult
from deepstack_harness.runs.machine import environment, visible_gpus
from deepstack_harness.runs.pools import RUN_LIMITS, Group, LocalPool, fingerprint, grouped, part_of
from deepstack_harness.runs.records import About, Files, Planning, Shard
from deepstack_harness.runs.store import RunWriter, now
from deepstack_harness.text import shortened
from deepstack_harness.workers.limits import Limits

COLUMNS = (
    "family", "revision", "caller", "trace", "arm", "backend", "guards", "shapes", "capture",
    "dtype", "device", "incident",
)  # fmt: skip
"""Keys that a word of a selection can have."""

_NIGHTLY_DTYPES = ("float32", "bfloat16", "float16")
_OWN_FAMILY = "qwen3_vl"


class Tier(StrEnum):
    """Size of the matrix: NIGHTLY has every case, CI few groups that share compiles."""

    CI = "ci"
    NIGHTLY = "nightly"


def matrix(tier: Tier, devices: Sequence[str], buffers: Sequence[str] = ()) -> list[PlannedCase]:
    """Return every case of a tier; a case that several incidents have comes once for each of them.

    With `buffers`, classes of the user's own (MODULE:CLASS), only these are planned, over the whole contract
    and without expectations.
    """
    cases: list[PlannedCase] = []
    for device in devices:
        where = Where(_OWN_FAMILY, device=device)
        of_user = (planned for name in buffers for planned in plan_check(where, user_buffer(name)))
        cases += of_user if buffers else _of_catalogue(tier, device)
    return cases


def _of_catalogue(tier: Tier, device: str) -> Iterator[PlannedCase]:
    for incident in catalogue():
        if incident.system != DEEPSTACK:
            continue
        for family in incident.families:
            for planned in plan_incident(incident, Where(family, device=device)):
                if tier is Tier.NIGHTLY or daily(incident, planned.case):
                    yield planned
    dtypes = _NIGHTLY_DTYPES if tier is Tier.NIGHTLY else _NIGHTLY_DTYPES[:1]
    for run in CONTRACT_RUNS.entries:
        for family in run.families:
            for dtype in dtypes:
                yield from plan_runs([run], run.revisions, Where(family, dtype, device))


def select(cases: Sequence[PlannedCase], words: Sequence[str]) -> list[PlannedCase]:
    """Return the cases that fit all words KEY=GLOB and KEY!=GLOB, where KEY is one of `COLUMNS`.

    Several KEY=GLOB of one key are alternatives. Raises `UsageError` for another word, and where no case
    fits.
    """
    wanted: dict[str, list[_Fit]] = defaultdict(list)
    unwanted: dict[str, list[_Fit]] = defaultdict(list)
    for word in words:
        term = _TERM.fullmatch(word)
        if term is None or term["key"] not in COLUMNS:
            raise UsageError(f"selection '{shortened(word, 200)}' {_why_refused(word, term)}; {_HELP}")
        fits = unwanted if term["but"] else wanted
        fits[term["key"]].append(re.compile(fnmatch.translate(term["glob"])).match)

    def is_chosen(planned: PlannedCase) -> bool:
        case, arm = planned.case, planned.case.arm
        columns = (
            case.family, case.buffer.name, case.caller, str(case.trace), arm.name, str(arm.backend),
            str(arm.guards), str(arm.shapes), str(arm.capture), case.dtype, case.device,
            planned.incident or "",
        )  # fmt: skip
        values = dict(zip(COLUMNS, columns, strict=True))
        return all(any(fit(values[key]) for fit in fits) for key, fits in wanted.items()) and not any(
            fit(values[key]) for key, fits in unwanted.items() for fit in fits
        )

    chosen = [planned for planned in cases if is_chosen(planned)]
    if not chosen:
        distinct, quoted = len({planned.id for planned in cases}), shortened(shlex.join(words), 200)
        raise UsageError(f"selection {quoted} matches none of the {distinct} cases; {_HELP}")
    return chosen


_Fit = Callable[[str], object]
_TERM = re.compile(r"(?P<key>\w+)(?P<but>!?)=(?P<glob>(?!=).*)", re.DOTALL)
_COMPARISON = re.compile(r"\s*(\w+)\s*(!?=)=?\s*(['\"])([^'\"]*)\3\s*")
_HELP = (
    f"write words KEY=GLOB or KEY!=GLOB, as in family=qwen3_vl 'arm=eager/*' backend!=inductor, where KEY is "
    f"one of {', '.join(COLUMNS)}"
)


def _why_refused(word: str, term: re.Match[str] | None) -> str:
    """Return the reason for a word; for a plain expression of an earlier version, the words for it."""
    if term is not None:
        return f"has the unknown key '{shortened(term['key'], 50)}'"
    parts = [_COMPARISON.fullmatch(part) for part in word.split(" and ")]
    words = [f"{part[1]}{part[2]}{glob.escape(part[4])}" for part in parts if part]
    if len(words) == len(parts):
        return f"is an expression, which is no longer read: write {shortened(shlex.join(words), 300)}"
    return "is no KEY=GLOB; expressions are no longer read"


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

    selection: tuple[str, ...] = option(
        "play the cases that fit all of these words, such as family=qwen3_vl backend!=inductor "
        "'trace=*resize*'; words of one key are alternatives. Keys are family, revision, caller, trace, "
        "arm, backend, guards, shapes, capture, dtype, device, incident",
        "selection",
        nargs="*",
        metavar="KEY=GLOB",
        default=(),
    )
    tier: Tier = option("ci (default) or nightly, which has all cases", metavar="T", default=Tier.CI)
    devices: tuple[str, ...] = option(
        "cpu (default), cuda or cuda:N; may be repeated", "--device", metavar="D", default=("cpu",)
    )
    buffers: tuple[str, ...] = option(
        "instead, play the contract traces on this class of your own; may be repeated",
        "--buffer",
        metavar="MODULE:CLASS",
        default=(),
    )
    workers: int = option("number of workers (default 1)", "-n", type=whole, metavar="W", default=1)
    shard: Shard | None = option(
        "play only part I of N; all parts may write into one folder",
        metavar="I/N",
        parse=Shard.parse,
        default=None,
    )
    executor: str = option("local (default) or ray", metavar="E", default="local")
    cheapest_first: bool = option(
        "play cases that compile nothing first: a run that is ended early has judged the most", default=False
    )
    limits: Limits = RUN_LIMITS

    @property
    def shares_gpus(self) -> bool:
        """Return whether this process shares out GPUs: with Ray they are the cluster's, and Ray does it."""
        return self.executor == "local" and any(device.startswith("cuda") for device in self.devices)


class Execution:
    """One run, or one shard of it, from its plan to its files."""

    def __init__(self, request: RunRequest, folder: Path, *, resume: bool) -> None:
        """Plan the run and open its files.

        Raises `UsageError` for a wrong request, `MachineError` where there is no GPU or no
        Ray, and where the folder cannot be written to.
        """
        self._request = request
        for device in request.devices:
            if not _DEVICE.fullmatch(device):
                raise UsageError(f"unknown device '{device}'; known are cpu, cuda and cuda:N")
        gpus = visible_gpus() if request.shares_gpus else []
        if request.buffers:
            check_buffers(request.buffers)
        groups = grouped(select(matrix(request.tier, request.devices, request.buffers), request.selection))
        self.left_out = [
            group
            for group in groups
            if request.shares_gpus and group.device.startswith("cuda") and group.ranks > len(gpus)
        ]
        groups = [group for group in groups if group not in self.left_out]
        shard_groups = part_of(groups, request.shard)
        self._pool: Pool = LocalPool(request.workers, request.limits, gpus)
        if request.executor == "ray":
            from deepstack_harness.runs.ray_pool import RayPool

            self._pool = RayPool(request.workers, request.limits)
        about = About(
            harness=__version__, started=now(), finished=None, command=tuple(sys.argv),
            selection=shlex.join(request.selection) or None, tier=request.tier, environment=environment(),
            shard=str(request.shard) if request.shard else None,
            planned=Planning(len(shard_groups), sum(len(group.cases) for group in shard_groups)),
            plan=fingerprint(groups),
        )  # fmt: skip
        self.writer = RunWriter(Files(folder, request.shard), about, resume=resume)
        done = frozenset(case.case for case in self.writer.part.cases)
        self.groups = [left for group in shard_groups if (left := group.without(done))]
        if request.cheapest_first:
            self.groups.sort(key=lambda group: group.seconds / len(group.cases))

    def play(self) -> Generator[CaseResult]:
        """Play every case that is left; each result is stored when it comes. Then the run is finished."""
        with closing(self._pool.play(self.groups)) as ended:
            for result in ended:
                self.writer.append(result.rows, result.case)
                yield result
        self.writer.finish()
