"""Rows of all ranks of a step, gathered by a real collective of torch.distributed.

The collective stands in an op that the compiler cannot look into, as vLLM's own
`torch.ops.vllm.all_gather` does.  Before any row moves, each rank says how many it
brings, or that it failed: else the others would wait for ever for a rank that raised,
which is how an engine dies.  The default process group is used; it needs a backend
for CPU tensors besides that of the rows.
"""

import torch
import torch.distributed as dist
from torch import Tensor

from deepstack_harness.errors import NotMeasured

_FAILED = -1


class ToldToAll(Exception):
    """An error that every rank of the step has noticed in one and the same exchange."""


class PeerFailed(ToldToAll):
    """Another rank raised, so that its rows will not come."""


class UnequalRows(ToldToAll):
    """The ranks bring different numbers of rows, which no all-gather can join."""


class WaitedInVain(NotMeasured):
    """A rank did not come to a collective, and did not say why: it hangs, or it is dead."""


@torch.library.custom_op("deepstack_harness::gather_rows", mutates_args=())
def gather_rows(rows: Tensor, ranks: int) -> Tensor:
    """The rows (n, ..) of all `ranks`, in their order: (ranks * n, ..), on every rank.

    Raises `PeerFailed` or `UnequalRows` on all ranks that come here, `WaitedInVain`
    where one neither comes nor fails.
    """
    counts = _exchange(rows.size(0), ranks)
    if _FAILED in counts:
        raise PeerFailed(f"rank {counts.index(_FAILED)} of {ranks} failed")
    if len(set(counts)) > 1:
        raise UnequalRows(f"the ranks bring {', '.join(map(str, counts))} rows, and must bring equally many")
    gathered = rows.new_empty((ranks * rows.size(0), *rows.shape[1:]))
    if gathered.numel():
        _all_gather(list(gathered.chunk(ranks)), rows.contiguous())
    return gathered


@gather_rows.register_fake
def _(rows: Tensor, ranks: int) -> Tensor:
    return rows.new_empty((ranks * rows.size(0), *rows.shape[1:]))


def tell_failure(ranks: int) -> None:
    """Meet the others in their next exchange, and tell them that this rank raised."""
    _exchange(_FAILED, ranks)


def _exchange(count: int, ranks: int) -> list[int]:
    """What each rank says: how many rows it brings, or that it failed."""
    told = torch.empty(ranks, dtype=torch.int64, device="cpu")
    _all_gather(list(told.chunk(ranks)), torch.tensor([count], device="cpu"))
    counts: list[int] = told.tolist()
    return counts


def _all_gather(into: list[Tensor], own: Tensor) -> None:
    try:
        # Not all_gather_into_tensor: torch 2.13 deprecates it for a name that 2.12 does not have.
        dist.all_gather(into, own)
    except RuntimeError as error:
        waiting = f"rank {dist.get_rank()} of {len(into)} waited in vain for the others"
        raise WaitedInVain(f"{waiting}: {str(error).splitlines()[0]}") from error
