"""Hunts whose outcome is known: each mutant must be caught by its rule alone, `reference` by none.

Worker processes (spawned, one thread each) take orders and answer with proofs, one
JSON object per line; each imports torch once.
"""

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from queue import SimpleQueue
from types import MappingProxyType
from typing import IO

import msgspec

from deepstack_harness.catalogue.data_files import hypothesis_storage
from deepstack_harness.catalogue.mutants import MUTANTS

CONTROL = "reference"
"""The buffer in which nothing may be found."""


@dataclass(frozen=True)
class Effort:
    """How far a hunt under an arm goes: examples in all, and how many more behind the first finding."""

    examples: int
    patience: int


EFFORTS: Mapping[str, Effort] = MappingProxyType(
    {"eager/stock": Effort(10, 0), "eager/full": Effort(200, 10), "eager": Effort(1000, 30)}
)
"""Arms that mutants are hunted under, dear ones first: what starts last must not take long.

Every mutant is caught within so many examples, and on the control all of them find nothing.
"""


@dataclass(frozen=True)
class Order:
    """A hunt: the buffer's name, the rule it breaks (None for the control), the arm, and how far to go."""

    subject: str
    rule: str | None
    arm: str
    examples: int
    patience: int
    seed: int


@dataclass(frozen=True)
class Proof:
    """What came of a hunt: every rule it found broken, and of the first finding the shrunk trace.

    `examples` is how many were played until the first finding, or in all where there is none.
    """

    order: Order
    found: tuple[str, ...]
    examples: int
    seconds: float
    trace: str = ""
    detail: str = ""

    @property
    def holds(self) -> bool:
        """Whether exactly the stated rule was found; for the control, none."""
        return not self.failed and self.found == ((self.order.rule,) if self.order.rule else ())

    @property
    def failed(self) -> bool:
        """Whether the worker ended without an answer; `detail` says how."""
        return self.examples == 0


def orders_for(mutants: Iterable[str], seed: int) -> list[Order]:
    """The control under every arm that takes part, and the mutants."""
    named = [(name, str(MUTANTS[name].rule), MUTANTS[name].arm) for name in mutants]
    arms = {arm for _, _, arm in named}
    controls = [(CONTROL, None, arm) for arm in arms]
    return [
        Order(subject, rule, arm, effort.examples, effort.patience, seed)
        for arm, effort in EFFORTS.items()
        for subject, rule, its_arm in [*controls, *named]
        if its_arm == arm
    ]


def prove(orders: Iterable[Order], workers: int) -> Iterator[Proof]:
    """Proofs as they come; without workers from this process, in order."""
    if not workers:
        from deepstack_harness.selftest.worker import prove_one

        yield from map(prove_one, orders)
        return
    idle: SimpleQueue[_Worker] = SimpleQueue()
    pool, children = ThreadPoolExecutor(workers), [_Worker() for _ in range(workers)]
    try:
        for child in children:
            idle.put(child)
        asked = [pool.submit(_ask, idle, order) for order in orders]
        yield from (done.result() for done in as_completed(asked))
    finally:
        pool.shutdown(wait=False, cancel_futures=True)
        for child in children:
            child.end()


def _ask(idle: "SimpleQueue[_Worker]", order: Order) -> Proof:
    worker = idle.get()
    try:
        return worker.ask(order)
    finally:
        idle.put(worker)


class _Worker:
    """A child that proves one order after the other; after one that died another is started."""

    def __init__(self) -> None:
        self._printed: IO[str] = tempfile.TemporaryFile("w+", encoding="utf-8")  # noqa: SIM115  # ends with us
        self._child = self._start()

    def ask(self, order: Order) -> Proof:
        """Wait for the proof; where the child died instead, it says how."""
        if self._child.poll() is not None:
            self._end_child()
            self._child = self._start()
        answer = self._exchange(msgspec.json.encode(order).decode() + "\n")
        if not answer:
            return Proof(
                order, (), 0, 0.0, detail=f"the worker ended with {self._child.wait()}: {self._last_words}"
            )
        return msgspec.json.decode(answer, type=Proof)

    def end(self) -> None:
        """End the child, whatever it does."""
        self._end_child()
        self._printed.close()

    def _exchange(self, line: str) -> str:
        """The child's answer to a line; nothing where it died."""
        given, answers = self._child.stdin, self._child.stdout
        assert given is not None  # both are pipes
        assert answers is not None
        try:
            given.write(line)
            given.flush()
            return answers.readline()
        except BrokenPipeError:
            return ""

    def _end_child(self) -> None:
        self._child.kill()
        self._child.communicate()  # which closes its pipes

    def _start(self) -> "subprocess.Popen[str]":
        return subprocess.Popen(
            [sys.executable, "-m", "deepstack_harness.selftest.worker"],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            stderr=self._printed, text=True,
            env={**hypothesis_storage(), **os.environ, "OMP_NUM_THREADS": "1"},
        )  # fmt: skip

    @property
    def _last_words(self) -> str:
        self._printed.seek(0)
        return self._printed.read().strip().rpartition("\n")[2]
