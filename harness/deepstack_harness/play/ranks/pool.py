"""Ranks that share steps: processes of their own, started once, in real process groups.

A process serves every world that has its rank: ranks 0 and 1 play the cases of two
ranks, and with 2 and 3 those of four.  Orders and answers are JSON, processes are
spawned.  One that dies or hangs takes all of them down; the next case starts new ones.
"""

import atexit
import itertools
import tempfile
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from types import MappingProxyType

import torch

from deepstack_harness.callers.collectives import WaitedInVain
from deepstack_harness.contract.case import Case
from deepstack_harness.contract.observation import Observation
from deepstack_harness.errors import HarnessError, MachineError, UsageError
from deepstack_harness.families.by_name import family_named
from deepstack_harness.play.ranks.merge import merged
from deepstack_harness.play.ranks.messages import Failed, Order, Played, Reply
from deepstack_harness.play.ranks.process import RankProcess, RanksLost, replies

LIMIT_S = 180.0
"""Seconds for one case: a tiny decoder takes 0.1 uncompiled, and a few with aot_eager."""
START_S = 180.0
"""Seconds for starting: importing takes 3 on an idle machine, and the ranks share its cores."""

_USERS: Mapping[str, type[HarnessError]] = MappingProxyType(
    {"UsageError": UsageError, "MachineError": MachineError}
)
"""What a rank raises about the case itself is raised here again."""


class World:
    """As many rank processes as the largest case so far asked for."""

    def __init__(self, limit_s: float = LIMIT_S) -> None:
        """No process is started before the first case; each case is given `limit_s` seconds."""
        self.limit_s = limit_s
        self._processes: list[RankProcess] = []
        self._folder = tempfile.TemporaryDirectory(prefix="deepstack-")
        self._numbers = itertools.count()
        self._group: tuple[int, bool, float] | None = None
        self._meeting = ""
        atexit.register(self.close)

    @property
    def pids(self) -> list[int]:
        """Process ids in the order of the ranks; each is also its process group's."""
        return [process.pid for process in self._processes]

    def play(self, case: Case) -> Observation:
        """What the ranks of a case saw, as one observation.

        Where a rank dies, hangs, or raises what is no fact of a step, it has no steps,
        and an error with that rank's output.  Raises `UsageError` and `MachineError`
        as playing in this process does.
        """
        _check_machine(case)
        try:
            return self._observe(case, self._ask(case))
        except RanksLost as lost:
            return _not_played(case, self._tell(case, lost.ranks, str(lost)))
        except HarnessError:  # said by all ranks alike: they can go on
            raise
        except BaseException:
            # Interrupted: answers still to come would be taken for those of the next case.
            self.close()
            raise

    def close(self) -> None:
        """End all processes and everything they started."""
        for process in self._processes:
            process.end()
        self._processes.clear()
        self._group = None

    def _ask(self, case: Case) -> list[Reply]:
        order = Order(case, self._meeting_of(case), self.limit_s)
        self._start(case.arm.ranks)
        members = self._processes[: case.arm.ranks]
        for process in members:
            process.send(order)
        return replies(members, self.limit_s)

    def _start(self, ranks: int) -> None:
        new = [RankProcess(rank) for rank in range(len(self._processes), ranks)]
        self._processes += new
        replies(new, START_S)

    def _meeting_of(self, case: Case) -> str:
        """Where the ranks of this case meet: a new file for every group that is not the last one."""
        group = (case.arm.ranks, _on_gpu(case), self.limit_s)
        if group != self._group:
            if _on_gpu(case):
                self.close()  # NCCL's groups do not end one rank at a time
            self._meeting = (Path(self._folder.name) / f"meeting-{next(self._numbers)}").as_uri()
            self._group = group
        return self._meeting

    def _observe(self, case: Case, answers: Sequence[Reply]) -> Observation:
        failed = {rank: answer for rank, answer in enumerate(answers) if isinstance(answer, Failed)}
        if len(failed) == len(answers) and failed[0].kind in _USERS:
            raise _USERS[failed[0].kind](failed[0].message)
        if failed:
            # A rank that waited in vain did so for one that failed otherwise.
            rank = min(failed, key=lambda rank: (failed[rank].kind == WaitedInVain.__name__, rank))
            raise RanksLost([rank], f"raised {failed[rank].kind}: {failed[rank].message}")
        played = [answer.observation for answer in answers if isinstance(answer, Played)]
        return merged(played, range(len(played)))

    def _tell(self, case: Case, lost: Sequence[int], how: str) -> str:
        """What went wrong, with the output of the ranks at fault; ends the world."""
        printed = {process.rank: process.end() for process in self._processes}
        self.close()
        who = f"rank{'s' if len(lost) > 1 else ''} {', '.join(map(str, lost))} of {case.arm.ranks}"
        outputs = [f"rank {rank} printed: {printed[rank] or 'nothing'}" for rank in lost]
        return "\n".join([f"{who} {how}", *outputs])


@cache
def world() -> World:
    """The one that serves this run; it ends with this process."""
    return World()


def _check_machine(case: Case) -> None:
    count = torch.cuda.device_count()
    if _on_gpu(case) and count < case.arm.ranks:
        raise MachineError(
            f"arm {case.arm.name} on {case.device} needs a GPU for each of {case.arm.ranks} ranks, "
            f"torch sees {count}; use --device cpu"
        )


def _on_gpu(case: Case) -> bool:
    return case.device.startswith("cuda")


def _not_played(case: Case, why: str) -> Observation:
    family = family_named(case.family)
    return Observation(
        dtype=case.dtype, device=case.device, levels=family.levels, hidden=family.hidden,
        torch=str(torch.__version__), steps=(), routed=family.routed, error=why,
    )  # fmt: skip
