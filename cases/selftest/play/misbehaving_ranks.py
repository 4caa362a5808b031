"""Callers for ranks that a world has to survive; rank 1 is always the one at fault."""

import os
import signal
import subprocess
import sys
import time
from dataclasses import replace

from torch import Tensor

from deepstack_harness.contract.protocols import Buffer, Inputs, Lane
from deepstack_harness.contract.trace import Op, Step
from deepstack_harness.models.engine import Payload, SequenceParallel


class Misbehaves(SequenceParallel):
    def forward(self, lane: Lane, inputs: Inputs, step: Step) -> Tensor:
        if self.rank == 1 and step.op is Op.FORWARD:
            print("printed before", flush=True)
            self.misbehave()
        return super().forward(lane, inputs, step)

    def misbehave(self) -> None:
        """Something no engine should do."""


class Dies(Misbehaves):
    def misbehave(self) -> None:
        os.kill(os.getpid(), signal.SIGSEGV)


class Hangs(Misbehaves):
    def misbehave(self) -> None:
        grandchild = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
        print(f"grandchild {grandchild.pid}", flush=True)
        time.sleep(600)


class Exits(Misbehaves):
    def misbehave(self) -> None:
        raise SystemExit(7)


class Floods(Misbehaves):
    def misbehave(self) -> None:
        while True:
            sys.stdout.write("x" * 2**20)


class JoinsTheWitness(SequenceParallel):
    """Writes its rank to the FIFO of a test, and hangs; every rank does."""

    def forward(self, lane: Lane, inputs: Inputs, step: Step) -> Tensor:
        witness = os.open(os.environ["WITNESS"], os.O_WRONLY)
        os.write(witness, f"rank {self.rank}\n".encode())
        time.sleep(600)
        return super().forward(lane, inputs, step)


class RefusesOnce(SequenceParallel):
    """Raises in the decoder's arguments of the first step, after the others have gone on."""

    refused = False

    def payload_rows(self, payload: Payload, own: slice) -> Payload:
        if self.rank == 1 and not self.refused:
            self.refused = True
            raise ValueError("not this time")
        return super().payload_rows(payload, own)


class BringsFewerRows(SequenceParallel):
    """Drops a row of everything in rank 1, once: no all-gather can join what the ranks have."""

    dropped = False

    def forward(self, lane: Lane, inputs: Inputs, step: Step) -> Tensor:
        own = self._rows(step.tokens, self.rank)
        if self.rank == 1 and not self.dropped:
            self.dropped = True
            own = slice(own.start, own.stop - 1)
        payload = lane.get(step.tokens)
        rows = None if payload is None else self.payload_rows(payload, own)
        out = lane.run(replace(inputs, hidden=inputs.hidden[own], payload=rows))
        lane.clear(step.tokens)
        return out


class SetsElsewhere(SequenceParallel):
    def set(self, buffer: Buffer, payload: Tensor) -> None:
        super().set(buffer, payload if self.rank == 0 else payload.flip(1))
