"""Gathering the rows of all ranks of a step, by a real collective of torch.distributed.

The collective is inside a custom op, which the compiler cannot look into, as vLLM's own
`torch.ops.vllm.all_gather` is.  Before any row moves, each rank says how many it brings, or that it
failed.  Otherwise the others would wait until their timeout for a rank that raised.  The default process
group is used; it needs a backend for CPU tensors besides that of the rows.
"""

import torch
import torch.distributed as dist
from torch import Tensor

from deepstack_harness.errors import NotMeasured

_FAILED = -1


class ToldToAll(Exception):
    """An error that every rank of the step has noticed in the same exchange."""


class PeerFailed(ToldToAll):
    """Error of a rank whose peer raised, so that the peer's rows will not come."""


class UnequalRows(ToldToAll):
    """Error of ranks that bring different numbers of rows, which no all-gather can join."""


class WaitedInVain(NotMeasured):
    """Error of a collective that timed out: a rank hangs or is dead."""


@torch.library.custom_op("deepstack_harness::gather_rows", mutates_args=())
def gather_rows(rows: Tensor, ranks: int) -> Tensor:
    """Gather the rows (n, ..) of all `ranks` in their order: (ranks * n, ..), on every rank.

    Raises `PeerFailed` or `UnequalRows` on all ranks that come here, `WaitedInVain` if a rank neither
    comes nor fails.
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
    """Take part in the next exchange of the others, and tell them that this rank raised."""
    _exchange(_FAILED, ranks)


def _exchange(count: int, ranks: int) -> list[int]:
    """Return for each rank how many rows it brings, or that it failed."""
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
