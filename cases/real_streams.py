"""Projections on real CUDA streams, with random delays, compared bit for bit with sequential ones.

`observe_on_gpu` starts a worker process that calls `play`; a worker that hangs or dies is a fact.
On the device `cpu` the same repetitions run on one stream without delays, and nothing is timed.
"""

import random
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import Any

import msgspec
import torch
from torch import Tensor
from torch.nn.functional import linear
from torch.overrides import TorchFunctionMode
from typing_extensions import override

from deepstack_harness.audit.streams.device import Lanes, Project, sequential
from deepstack_harness.audit.streams.projections import DualStream, dual_stream_named, dual_streams_of
from deepstack_harness.audit.streams.recording import different_bits, run_layers
from deepstack_harness.audit.streams.subgraphs import one_stream
from deepstack_harness.compile.torch_compat.modes import spin
from deepstack_harness.contract.facts import OnDevice
from deepstack_harness.engines.known import open_source
from deepstack_harness.errors import NotMeasured, UsageError
from deepstack_harness.models.family import parse_device
from deepstack_harness.workers.limits import Limits
from deepstack_harness.workers.outcomes import Answered, RaisedInWorker, WorkerEnd
from deepstack_harness.workers.remote import Remote
from deepstack_harness.workers.worker import Worker

REPETITIONS = 1000
SECONDS = 120.0
_HIDDEN, _TOKENS, _INPUTS = 256, 64, 8
_CYCLES = (0, 0, 20_000, 200_000)

_WIDE = {"hidden": 2048, "one": 12288, "other": 64}
"""Qwen3-Next's two input projections (qkvz and ba), and the tokens of a step of 16 requests."""
_STEP, _TIMED = 16, 200

TARGET = "cases.real_streams:play"

_EVENT: Callable[..., Any] = torch.cuda.Event


def observe_on_gpu(
    variant: str,
    *,
    source: str | None = None,
    device: str = "cuda",
    repetitions: int = REPETITIONS,
    timeout_s: float = SECONDS,
    target: str = TARGET,
) -> OnDevice:
    """Play a variant of ours, or a helper (`variant`) of a `source`, on a GPU, in a worker of its own.

    Raises `NotMeasured` where the worker raised an exception: then nothing is known of the variant.
    """
    arguments = {"variant": variant, "source": source, "device": device, "repetitions": repetitions}
    with Worker(Limits(call_s=timeout_s)) as worker:
        result = worker.call(Remote(target, OnDevice), arguments)
    match result:
        case Answered(value=on_device):
            return on_device
        case WorkerEnd() as end:
            return OnDevice(device, repetitions, 0, ended=end.sentence)
        case RaisedInWorker() as raised:
            raise NotMeasured(f"{variant} on {device}: {raised.sentence}")


def play(variant: str, source: str | None, device: str, repetitions: int) -> dict[str, Any]:
    """Return an `OnDevice` as plain data; raise `UsageError` for a bad name, `MachineError` without a GPU."""
    where = parse_device(device)
    way = way_of(variant, source)
    with torch.no_grad(), where:
        if where.type == "cpu":
            different, first = repeat(way.project, one_stream(), where, repetitions, lambda _: None)
            seen = OnDevice(str(where), repetitions, different, first)
        else:
            lanes = real_lanes()
            different, first = repeat(way.project, lanes, where, repetitions, spin)
            times = _microseconds(way.project, lanes), _microseconds(sequential, lanes)
            seen = OnDevice(str(where), repetitions, different, first, "", *times)
    return msgspec.to_builtins(seen)  # type: ignore[no-any-return]


def real_lanes() -> Lanes:
    """Return one CUDA stream in addition to the current one."""
    stream: Callable[[], Any] = torch.cuda.Stream
    return Lanes(_EVENT(), (_EVENT(),), (stream(),), torch.cuda.stream, Tensor.record_stream)


def repeat(
    project: Project, lanes: Lanes, device: torch.device, repetitions: int, spin: Callable[[int], None]
) -> tuple[int, str]:
    """Return how many repetitions differ from sequential, and the delays of the first that does.

    Every one has another input than the one before, so that a result that was read
    too early is the wrong one, and other delays before its operations.
    """
    generator = torch.Generator().manual_seed(0)
    inputs = [torch.randn(_TOKENS, _HIDDEN, generator=generator).to(device) for _ in range(_INPUTS)]
    drawn = [torch.randn(_HIDDEN, _HIDDEN, generator=generator) / _HIDDEN for _ in range(2)]
    weights = tuple(weight.to(device) for weight in drawn)
    rights = [run_layers(sequential, lanes, x, weights) for x in inputs]
    _check_distinct(rights)
    draw = random.Random(0)
    wrong = []
    for number in range(repetitions):
        x, right = inputs[number % _INPUTS], rights[number % _INPUTS]
        delays = Delays(draw, spin)
        with delays:
            answer = run_layers(project, lanes, x, weights)
        if different_bits(answer, right):
            wrong.append(f"repetition {number}, cycles before each operation: {delays.spent}")
    return len(wrong), wrong[0] if wrong else ""


class Delays(TorchFunctionMode):
    """Before every addition and projection, a delay on the stream that it goes to."""

    def __init__(self, draw: random.Random, spin: Callable[[int], None]) -> None:
        super().__init__()
        self.spent: list[int] = []
        self._draw = draw
        self._spin = spin

    @override
    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: object,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        if func in _DELAYED:
            cycles = _CYCLES[int(self._draw.random() * len(_CYCLES))]
            self.spent.append(cycles)
            self._spin(cycles)
        return func(*args, **(kwargs or {}))


_DELAYED = {linear, torch.add, Tensor.add, Tensor.clone}


def way_of(variant: str, source: str | None) -> DualStream:
    """Return a variant of ours, or a helper of a source by its function's name; else raise `UsageError`."""
    if source is None:
        return dual_stream_named(variant)
    found = dual_streams_of(open_source(source))
    if variant not in found:
        raise UsageError(f"{source} has no '{variant}'; it has {', '.join(found)}")
    return found[variant]


def _check_distinct(rights: Sequence[Tensor]) -> None:
    if any(not different_bits(first, other) for first, other in pairwise(rights)):
        raise NotMeasured("two inputs give one result: an old result would go unseen")


def _microseconds(project: Project, lanes: Lanes) -> float:
    """Return the time of one call at Qwen3-Next's sizes in bfloat16, on the default device."""
    weights = tuple(
        torch.randn(_WIDE[name], _WIDE["hidden"], dtype=torch.bfloat16) for name in ("one", "other")
    )
    x = torch.randn(_STEP, _WIDE["hidden"], dtype=torch.bfloat16)
    for _ in range(_TIMED):
        project(x, weights, lanes)
    begin, end = _EVENT(enable_timing=True), _EVENT(enable_timing=True)
    begin.record()
    for _ in range(_TIMED):
        project(x, weights, lanes)
    end.record()
    end.synchronize()
    return float(begin.elapsed_time(end)) * 1000 / _TIMED
