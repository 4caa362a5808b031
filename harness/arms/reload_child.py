"""The fresh process: loads artifacts and calls them, and compiles nothing.

Started by `harness.arms.reload` with the number of a socket it inherits, and the id of the process that
starts it; ends when the former is closed, or the latter ends.
"""

import sys
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch

from harness.arms import wire
from harness.isolate import end_with
from harness.torch_compat import artifact, dynamo
from harness.torch_compat.modules import put_together

_TORCH = str(Path(torch.__file__).parent)


class Loaded:
    """The artifacts of this process, by their keys."""

    def __init__(self) -> None:
        """Nothing is loaded."""
        self.calls: dict[int, Callable[..., Any]] = {}

    def answer(self, order: wire.Order) -> wire.Answer:
        """Do what is asked; only what the artifact itself raises becomes an answer."""
        match order:
            case wire.Load():
                return self._load(order)
            case wire.Call():
                return self._call(order)
            case wire.Drop():
                del self.calls[order.key]
                return wire.Done()

    def _load(self, order: wire.Load) -> wire.Answer:
        torch.set_num_threads(order.threads)
        dynamo.start_counting()
        # First, as it imports the decoder's own operators, which the artifact may use.
        decoder = put_together(order.decoder)
        try:
            function = artifact.load(Path(order.path))
        except Exception as error:  # noqa: BLE001  # what torch refuses to load is a fact
            return _failed(error)
        self.calls[order.key] = lambda *inputs: function(decoder, *inputs)
        return wire.Done()

    def _call(self, order: wire.Call) -> wire.Answer:
        function = self.calls[order.key]
        try:
            with torch.set_grad_enabled(order.grad):
                out = function(order.hidden, order.positions, order.payload)
        except Exception as error:  # noqa: BLE001  # what a compiled call raises is a fact
            return _failed(error)
        return wire.Done(out, dynamo.graphs_built())


def _failed(error: Exception) -> wire.Failed:
    # Compiled code keeps the file and line of what was compiled.
    places = [
        f"{frame.filename}:{frame.lineno}"
        for frame in traceback.extract_tb(error.__traceback__)
        if not frame.filename.startswith(_TORCH) and frame.filename != __file__
    ]
    return wire.Failed(type(error).__name__, str(error), places[-1] if places else "")


def main(socket: int, parent: int) -> None:
    """Serve until the other side hangs up; while a call hangs, only the end of `parent` ends this process."""
    end_with(parent)
    loaded = Loaded()
    with Connection(socket) as connection:
        while True:
            try:
                order = wire.decode_order(connection.recv_bytes())
            except EOFError:
                return
            connection.send_bytes(wire.encode(loaded.answer(order)))


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
