"""The work of a worker that times decode steps of one tiny Granite decoder, by turns."""

import os
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, cast

import msgspec
import torch
from torch import Tensor, nn
from typing_extensions import override

from deepstack_harness.arms.open import open_arm
from deepstack_harness.contract.arm_spec import ArmSpec
from deepstack_harness.contract.protocols import Decoder, Inputs, Profile, Session
from deepstack_harness.errors import NotMeasured
from deepstack_harness.families.family import TinyFamily
from deepstack_harness.kernels.costs import Costs, StepCost
from deepstack_harness.kernels.decode import Decode, sized_family
from deepstack_harness.kernels.subject import Subject
from deepstack_harness.revisions.granite import GraniteFullBuffer, GraniteSlicedBuffer

_FAMILY = "granite4_vision"
_CHEAP = 100
_DTYPE, _CPU = torch.float32, torch.device("cpu")


class _WithoutPayload(nn.Module):
    """A decoder that never adds a payload; a class of its own, since compiled graphs belong to their code."""

    def __init__(self, decoder: nn.Module) -> None:
        super().__init__()
        self.decoder = decoder

    @override
    def forward(self, hidden: Tensor, positions: Tensor, payload: tuple[Tensor, ...] | None) -> Tensor:
        out: Tensor = self.decoder(hidden, positions, None)
        return out


@dataclass(frozen=True)
class _Timed:
    """The decoder with its payload and without one, both compiled; `asked` has the capacity."""

    asked: Subject
    family: TinyFamily[Any]
    with_payload: Session
    without: Session

    @classmethod
    def open(cls, asked: Subject, stack: ExitStack) -> "_Timed":
        family = sized_family(asked)
        decoder = family.build(dtype=_DTYPE, device=_CPU, seed=0)
        arm, profile = (
            ArmSpec.parse(asked.arm),
            Profile(asked.capacity, family.hidden, family.levels, _DTYPE, _CPU),
        )
        # Opening a session drops what other sessions have compiled: open both, then run both profile runs.
        with_payload = open_arm(arm, cast(Decoder, decoder), profile)
        stack.callback(with_payload.close)
        without = open_arm(arm, cast(Decoder, _WithoutPayload(decoder)), profile)
        stack.callback(without.close)
        timed = cls(asked, family, with_payload, without)
        for compiles in timed.runs(asked.profile_tokens):
            compiles()
        return timed

    def runs(self, tokens: int) -> list[Callable[[], Tensor]]:
        """Return a step over all rows of the buffer, one over its own rows, and one without a payload."""
        whole = self._inputs(GraniteFullBuffer, tokens)
        step = self._inputs(GraniteSlicedBuffer, tokens)
        return [
            partial(self.with_payload.forward, whole),
            partial(self.with_payload.forward, step),
            partial(self.without.forward, step),
        ]

    def _inputs(self, make: type[GraniteSlicedBuffer], tokens: int) -> Inputs:
        asked, family = self.asked, self.family
        buffer = make(asked.capacity, family.hidden, family.levels, dtype=_DTYPE, device=_CPU)
        return Decode(asked, family, buffer, self.with_payload, _DTYPE, _CPU).inputs(tokens)


def time_steps(
    capacities: Sequence[int], tokens: Sequence[int], repetitions: int, layers: int | None
) -> dict[str, Any]:
    """Return `kernels.costs.Costs` as JSON; raises `NotMeasured` where a step ran other rows."""
    torch.set_num_threads(1)
    # Traced with as many rows as the buffer has: then one graph runs any number of rows.
    asked = Subject(
        _FAMILY, "granite_full", tokens=1, capacity=16, profile_tokens=16, dtype="float32", run=True,
        layers=layers,
    )  # fmt: skip
    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="deepstack-kernels-"))
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = folder
        stack.enter_context(torch.no_grad())
        timed = _Timed.open(asked, stack)
        steps = tuple(
            _step(replace(timed, asked=replace(asked, capacity=capacity)), count, repetitions)
            for capacity in capacities
            for count in tokens
        )
    costs = Costs(
        timed.family.name, asked.arm, asked.dtype, "cpu", str(torch.__version__), repetitions, steps
    )
    return cast(dict[str, Any], msgspec.to_builtins(costs))


def _step(timed: _Timed, tokens: int, repetitions: int) -> StepCost:
    """Time the expensive step once a round, and the two cheap ones by turns."""
    capacity = timed.asked.capacity
    whole, sliced, skipped = timed.runs(tokens)
    taken: dict[str, list[float]] = {"full": [], "sliced": [], "skipped": []}
    for _ in range(repetitions):
        taken["full"].append(_seconds(whole, capacity))
        for _ in range(_CHEAP):
            taken["sliced"].append(_seconds(sliced, tokens))
            taken["skipped"].append(_seconds(skipped, tokens))
    least = {name: min(times) for name, times in taken.items()}
    return StepCost(capacity, tokens, **least)


def _seconds(run: Callable[[], Tensor], rows: int) -> float:
    start = time.perf_counter()
    out = run()
    taken = time.perf_counter() - start
    if out.size(0) != rows:
        raise NotMeasured(f"a step that was to run {rows} rows answered {out.size(0)}")
    return taken
