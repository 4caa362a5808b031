"""The work of a worker that proves trials: hunt in one subject after the other."""

import time
from collections.abc import Mapping
from functools import cache
from typing import Any

import msgspec
from typing_extensions import override

from deepstack_harness.catalogue.mutants import BUFFERS
from deepstack_harness.catalogue.names import imported
from deepstack_harness.catalogue.registry import FAMILIES, ORACLES
from deepstack_harness.contract.arm_spec import ArmSpec
from deepstack_harness.contract.rules import Rule
from deepstack_harness.fuzzing.finding import Finding
from deepstack_harness.fuzzing.hunt import Enough, Progress, Watch, hunt
from deepstack_harness.fuzzing.target import Target
from deepstack_harness.mutants.by_name import buffer_named
from deepstack_harness.selftest.trials import Proof, Trial


def prove(trial: Mapping[str, Any]) -> dict[str, Any]:
    """Prove a `Trial` and return the `Proof`; both as JSON."""
    return msgspec.to_builtins(prove_one(msgspec.convert(trial, Trial)))  # type: ignore[no-any-return]


def prove_one(trial: Trial) -> Proof:
    """Hunt until a few examples after the first finding.  R0 is left out: other faults break it too."""
    _import_all()
    make = buffer_named(trial.subject)
    watch, start = _StopsAfterFinding(trial.extra), time.perf_counter()
    result = hunt(
        Target(trial.subject, make, ArmSpec.parse(trial.arm)),
        examples=trial.examples, seed=trial.seed, watch=watch,
    )  # fmt: skip
    found = [finding for finding in result.findings if finding.rule is not Rule.R0]
    return Proof(
        trial,
        found=tuple(sorted({finding.name for finding in found})),
        examples=found[0].examples if found else result.progress.examples,
        seconds=time.perf_counter() - start,
        trace=min((finding.trace for finding in found), key=len, default=""),
        detail=found[0].detail if found else "",
    )


class _StopsAfterFinding(Watch):
    """Watch that ends a hunt `extra` examples after its first finding, in which another rule may be found."""

    def __init__(self, extra: int) -> None:
        self._extra = extra
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
            self._last = finding.examples + self._extra


@cache
def _import_all() -> None:
    """Import all modules that a hunt imports, before the first hunt.

    hypothesis takes some numbers from the sources of imported modules that are not installed ones: with
    equal seeds the second hunt would draw other traces than the first.
    """
    for names in (BUFFERS, ORACLES, FAMILIES):
        for entry in names.own.values():
            imported(entry.target)
