"""A whole run: the request, the pool that plays it, and the files that store it."""

import re
import sys
from collections.abc import Generator, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from deepstack_harness import __version__
from deepstack_harness.errors import UsageError
from deepstack_harness.machine.environment import environment
from deepstack_harness.machine.gpus import visible_gpus
from deepstack_harness.play.user_buffer import check_buffers
from deepstack_harness.results.case_result import CaseResult
from deepstack_harness.results.files import Files, Shard
from deepstack_harness.results.records import About, Planning
from deepstack_harness.results.write import RunWriter, now
from deepstack_harness.runs.groups import Group, fingerprint, grouped, part_of
from deepstack_harness.runs.local_pool import LocalPool
from deepstack_harness.runs.play_group import RUN_LIMITS
from deepstack_harness.runs.selection import Tier, matrix, select
from deepstack_harness.workers.limits import Limits

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
        mine = part_of(groups, request.shard)
        self._pool = _pool(request, gpus)
        self.writer = RunWriter(Files(folder, request.shard), _about(request, groups, mine), resume=resume)
        done = frozenset(case.case for case in self.writer.part.cases)
        self.groups = [left for group in mine if (left := group.without(done))]

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


def _about(request: RunRequest, groups: Sequence[Group], mine: Sequence[Group]) -> About:
    return About(
        harness=__version__, started=now(), finished=None, command=tuple(sys.argv),
        selection=request.selection, tier=request.tier, environment=environment(),
        shard=str(request.shard) if request.shard else None,
        planned=Planning(len(mine), sum(len(group.cases) for group in mine)), plan=fingerprint(groups),
    )  # fmt: skip
