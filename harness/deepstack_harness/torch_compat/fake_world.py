"""Being one rank of a world that is not there: torch's fake process group.

Uses `torch.testing._internal.distributed.fake_pg`, whose import registers the
backend `fake`.  Read in torch 2.10 .. 2.15.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import torch.distributed as dist
from torch.testing._internal.distributed.fake_pg import FakeStore


@contextmanager
def fake_world(rank: int, ranks: int) -> Iterator[None]:
    """Make this process `rank` of `ranks` in the default process group, while open.

    Collectives come back at once, with the own rows in the place of every rank's:
    shapes are real, values are not.
    """
    dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=ranks)
    try:
        yield
    finally:
        dist.destroy_process_group()
