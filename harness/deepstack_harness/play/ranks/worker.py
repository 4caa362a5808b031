"""One rank of a world: plays its part of every case that it is sent.

Started by `deepstack_harness.play.ranks.pool` with its rank and the number of a socket it
inherits; ends when that is closed, whatever it is doing.
"""

import faulthandler
import os
import sys
import traceback
from dataclasses import replace
from datetime import timedelta
from multiprocessing.connection import Connection
from queue import SimpleQueue
from threading import Thread

import torch
import torch.distributed as dist

from deepstack_harness.contract.case import Case
from deepstack_harness.errors import HarnessError
from deepstack_harness.play.in_process import play_here
from deepstack_harness.play.ranks.messages import Failed, Order, Played, Ready, Reply, decode_order, encode

_PATIENCE = 0.4
"""Share of the time limit after which a rank stops waiting for another, and says so."""
_DUMP = 0.9
"""Share of the time limit after which a rank writes down where it hangs."""


class Member:
    """This process as a rank of one process group after another."""

    def __init__(self, rank: int) -> None:
        """In no group yet."""
        self._rank = rank
        self._meeting = ""

    def answer(self, order: Order) -> Reply:
        """Play; what the harness itself raises becomes an answer."""
        faulthandler.dump_traceback_later(order.limit_s * _DUMP, file=sys.stderr)
        try:
            case = self._placed(order.case)
            self._join(order)
            return Played(play_here(case))
        except Exception as error:  # noqa: BLE001  # the world is told, and ends
            if not isinstance(error, HarnessError):
                traceback.print_exc()
            return Failed(type(error).__name__, str(error))
        finally:
            faulthandler.cancel_dump_traceback_later()

    def _placed(self, case: Case) -> Case:
        """The case on this rank's own GPU."""
        return replace(case, device=f"cuda:{self._rank}") if case.device.startswith("cuda") else case

    def _join(self, order: Order) -> None:
        if order.meeting == self._meeting:
            return
        if dist.is_initialized():
            dist.destroy_process_group()
        gpu = order.case.device.startswith("cuda")
        if gpu:
            torch.cuda.set_device(self._rank)
        dist.init_process_group(
            "cpu:gloo,cuda:nccl" if gpu else "gloo",
            init_method=order.meeting,
            rank=self._rank,
            world_size=order.case.arm.ranks,
            timeout=timedelta(seconds=order.limit_s * _PATIENCE),
        )
        self._meeting = order.meeting


def main(rank: int, socket: int) -> None:
    """Serve until the other side hangs up."""
    torch.set_num_threads(1)
    os.set_inheritable(socket, False)
    orders: SimpleQueue[Order] = SimpleQueue()
    with Connection(socket) as connection:
        connection.send_bytes(encode(Ready()))
        Thread(target=_listen, args=(connection, orders), daemon=True).start()
        member = Member(rank)
        while True:
            connection.send_bytes(encode(member.answer(orders.get())))


def _listen(connection: Connection, orders: "SimpleQueue[Order]") -> None:
    """In a thread of its own: a rank that hangs in a collective ends too when its parent has ended."""
    while True:
        try:
            orders.put(decode_order(connection.recv_bytes()))
        except (EOFError, OSError):
            os._exit(0)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
