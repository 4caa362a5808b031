"""The work of a rank: play its part of every case, in one process group after another."""

import faulthandler
import sys
import traceback
from collections.abc import Mapping
from dataclasses import replace
from datetime import timedelta
from functools import cache
from typing import Any

import msgspec
import torch
import torch.distributed as dist

from deepstack_harness.contract.case import Case
from deepstack_harness.errors import HarnessError
from deepstack_harness.play.in_process import factory_of, shared_model
from deepstack_harness.play.observe import play as play_steps

_COLLECTIVE_SHARE = 0.4
"""Share of the time limit after which a rank stops waiting for another one, and says so."""
_DUMP_SHARE = 0.9
"""Share of the time limit after which a rank prints its stack, which shows where it hangs."""


def play(case: Mapping[str, Any], rank: int, meeting: str, limit_s: float) -> dict[str, Any]:
    """Play a `Case` as `rank` and return the `Observation`; both as JSON.

    `meeting` is the `file://` init_method of the process group, another one for every new group.
    `limit_s` are the seconds after which nobody waits for the answer any more.
    """
    torch.set_num_threads(1)
    faulthandler.dump_traceback_later(limit_s * _DUMP_SHARE, file=sys.stderr)
    try:
        parsed = msgspec.convert(case, Case)
        _member(rank).join(parsed, meeting, limit_s)
        mine = _on_own_gpu(parsed, rank)
        model = shared_model(mine.family, mine.dtype, mine.device, mine.seed)
        return msgspec.to_builtins(play_steps(mine, model, factory_of(mine.buffer)))  # type: ignore[no-any-return]
    except Exception as error:
        if not isinstance(error, HarnessError):
            traceback.print_exc()
        raise
    finally:
        faulthandler.cancel_dump_traceback_later()


@cache
def _member(rank: int) -> "Member":
    return Member(rank)


class Member:
    """Member of one process group after another: this process, with its rank."""

    def __init__(self, rank: int) -> None:
        """Begin in no group."""
        self._rank = rank
        self._meeting = ""

    def join(self, case: Case, meeting: str, limit_s: float) -> None:
        """Leave the last group and join the one of `case`, if that is another one."""
        if meeting == self._meeting:
            return
        if dist.is_initialized():
            dist.destroy_process_group()
        gpu = case.device.startswith("cuda")
        if gpu:
            torch.cuda.set_device(self._rank)
        dist.init_process_group(
            "cpu:gloo,cuda:nccl" if gpu else "gloo",
            init_method=meeting,
            rank=self._rank,
            world_size=case.arm.ranks,
            timeout=timedelta(seconds=limit_s * _COLLECTIVE_SHARE),
        )
        self._meeting = meeting


def _on_own_gpu(case: Case, rank: int) -> Case:
    return replace(case, device=f"cuda:{rank}") if case.device.startswith("cuda") else case
