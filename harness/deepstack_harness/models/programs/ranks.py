"""Two processes of tensor parallelism."""

import datetime as dt
import os
import tempfile
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from deepstack_harness.models.programs.engines import decoder
from deepstack_harness.models.programs.trace import HIDDEN, played


def run_rank(rank: int, folder: str, found: Any) -> None:
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    meeting, limit = f"file://{folder}/meeting", dt.timedelta(seconds=60)
    dist.init_process_group("gloo", meeting, limit, world_size=2, rank=rank)

    def wrong(op: str, hidden: Tensor, rows: Tensor) -> str:
        share = len(hidden) // 2  # each rank has its own rows of the step, as sequence parallelism has
        own = slice(rank * share, (rank + 1) * share)
        payload = rows[:, own]
        parts = [torch.empty(share, HIDDEN) for _ in range(2)]
        dist.all_gather(parts, decoder(hidden[own], tuple(payload)))
        off = float((torch.cat(parts) - decoder(hidden, tuple(rows))).abs().max())
        return f"off from one rank by {off:.3g}" if off > 1e-4 else ""

    for line in played(wrong):
        found.put(f"rank {rank}, {line}")
    dist.destroy_process_group()


def two_ranks() -> list[str]:
    found, lines = torch.multiprocessing.get_context("spawn").SimpleQueue(), []
    with tempfile.TemporaryDirectory() as folder:
        torch.multiprocessing.spawn(run_rank, (folder, found), 2)  # type: ignore[attr-defined,no-untyped-call]
    while not found.empty():
        lines.append(found.get())
    return sorted(lines)
