"""A whole run: what is asked for, who plays it, and where it is written down."""

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
from deepstack_harness.results.files import Files, Shard
from deepstack_harness.results.records import About, Planning
from deepstack_harness.results.write import RunWriter, now
from deepstack_harness.runs.local_pool import LocalPool
from deepstack_harness.runs.play_group import RUN_LIMITS
from deepstack_harness.runs.selection import Tier, matrix, select
from deepstack_harness.runs.task_result import Done
from deepstack_harness.runs.tasks import Group, fingerprint, grouped, part_of
from deepstack_harness.workers.limits import Limits

_DEVICE = re.compile(r"cpu|cuda(:\d+)?")
EXECUTORS = ("local", "ray")


class Pool(Protocol):
    """Who plays groups."""

    def play(self, groups: Sequence[Group]) -> Generator[Done]:
        """Every task as it ends, in whatever order."""
        ...


@dataclass(frozen=True)
class Wanted:
    """What a run is asked for."""

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
        """Whether this process has GPUs to share out: with Ray they are the cluster's, and Ray does it."""
        return self.executor == "local" and any(device.startswith("cuda") for device in self.devices)


class Execution:
    """One run, or one shard of it, from its plan to its files."""

    def __init__(self, wanted: Wanted, folder: Path, *, resume: bool) -> None:
        """Plan it and open its files.

        Raises `UsageError` for what cannot be asked for and a folder that cannot be
        written to, `MachineError` where there is no GPU, or no Ray.
        """
        self._wanted = wanted
        gpus = _gpus(wanted)
        if wanted.buffers:
            check_buffers(wanted.buffers)
        groups = grouped(select(matrix(wanted.tier, wanted.devices, wanted.buffers), wanted.selection))
        self.left_out = [group for group in groups if wanted.shares_gpus and _too_wide(group, len(gpus))]
        groups = [group for group in groups if group not in self.left_out]
        mine = part_of(groups, wanted.shard)
        self._pool = _pool(wanted, gpus)
        self.writer = RunWriter(Files(folder, wanted.shard), _about(wanted, groups, mine), resume=resume)
        done = frozenset(case.case for case in self.writer.part.cases)
        self.groups = [left for group in mine if (left := group.without(done))]

    def play(self) -> Generator[Done]:
        """Every task that is left, as it ends and is written down; then the run is finished."""
        with closing(self._pool.play(self.groups)) as ended:
            for done in ended:
                self.writer.append(done.rows, done.case)
                yield done
        self.writer.finish()


def _pool(wanted: Wanted, gpus: Sequence[str]) -> Pool:
    if wanted.executor == "ray":
        from deepstack_harness.runs.ray_pool import RayPool

        return RayPool(wanted.workers, wanted.limits)
    return LocalPool(wanted.workers, wanted.limits, gpus)


def _gpus(wanted: Wanted) -> list[str]:
    """The GPUs to share out, if any; raises `UsageError` for a device that is none."""
    for device in wanted.devices:
        if not _DEVICE.fullmatch(device):
            raise UsageError(f"unknown device '{device}'; known are cpu, cuda and cuda:N")
    return visible_gpus() if wanted.shares_gpus else []


def _too_wide(group: Group, gpus: int) -> bool:
    """Whether its ranks want more GPUs than there are."""
    return group.device.startswith("cuda") and group.ranks > gpus


def _about(wanted: Wanted, groups: Sequence[Group], mine: Sequence[Group]) -> About:
    return About(
        harness=__version__, started=now(), finished=None, command=tuple(sys.argv),
        selection=wanted.selection, tier=wanted.tier, environment=environment(),
        shard=str(wanted.shard) if wanted.shard else None,
        planned=Planning(len(mine), sum(len(group.tasks) for group in mine)), plan=fingerprint(groups),
    )  # fmt: skip
