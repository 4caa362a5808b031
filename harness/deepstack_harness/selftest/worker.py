"""A worker of `deepstack_harness.selftest.pool`: hunts for one subject after the other in this process."""

import sys
import time
from functools import cache
from typing import cast

import msgspec
from typing_extensions import override

from deepstack_harness.catalogue.registry import FAMILIES, MUTANTS, ORACLES, REVISIONS, resolve
from deepstack_harness.contract.arm_spec import ArmSpec
from deepstack_harness.contract.buffer_ref import registered
from deepstack_harness.contract.protocols import BufferFactory
from deepstack_harness.contract.rules import Rule
from deepstack_harness.fuzzing.finding import Finding
from deepstack_harness.fuzzing.hunt import Enough, Progress, Watch, hunt
from deepstack_harness.fuzzing.target import Target
from deepstack_harness.selftest.pool import Order, Proof


def prove_one(order: Order) -> Proof:
    """Hunt until a while after the first finding, and state what was found; R0 is broken besides."""
    _import_all()
    make = cast(BufferFactory, resolve("buffer", {**REVISIONS, **MUTANTS}, order.subject))
    watch, start = _Patience(order.patience), time.perf_counter()
    result = hunt(
        Target(registered(order.subject), make, ArmSpec.parse(order.arm)),
        examples=order.examples, seed=order.seed, watch=watch,
    )  # fmt: skip
    found = [finding for finding in result.findings if finding.rule is not Rule.R0]
    return Proof(
        order,
        found=tuple(sorted({finding.name for finding in found})),
        examples=found[0].examples if found else result.progress.examples,
        seconds=time.perf_counter() - start,
        trace=min((finding.trace for finding in found), key=len, default=""),
        detail=found[0].detail if found else "",
    )


class _Patience(Watch):
    """Ends a hunt so many examples after its first finding: time enough for another rule to be found."""

    def __init__(self, examples: int) -> None:
        self._patience = examples
        self._played = 0
        self._last: int | None = None

    @override
    def begins(self) -> None:
        if self._last is not None and self._played >= self._last:
            raise Enough

    @override
    def example(self, progress: Progress) -> None:
        self._played = progress.examples

    @override
    def found(self, finding: Finding) -> None:
        if self._last is None and finding.rule is not Rule.R0:
            self._last = finding.examples + self._patience


@cache
def _import_all() -> None:
    """Import what hunts would import as they go.

    hypothesis draws some numbers from the sources of the modules that are imported, where they
    are not installed ones: equal seeds would draw other traces in the second hunt than in the first.
    """
    for names in (MUTANTS, REVISIONS, ORACLES, FAMILIES):
        for name in names:
            resolve("name", names, name)


def _serve() -> None:
    answers, sys.stdout = sys.stdout, sys.stderr  # what a hunt prints must not stand between answers
    for line in sys.stdin:
        proof = prove_one(msgspec.json.decode(line, type=Order))
        answers.write(msgspec.json.encode(proof).decode() + "\n")
        answers.flush()


if __name__ == "__main__":
    _serve()
