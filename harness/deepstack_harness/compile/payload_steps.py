"""Time steps of a decoder with a payload and without one; for a worker, on a CPU or on CUDA.

A step is what an engine does for one batch: `set` copies the payload of an image, `get` hands rows to the
decoder, `clear` zeroes them.  A step of text sets nothing, and adds the zeros that lie in the buffer.  The
control decodes without a payload, and calls no buffer.

The steps take turns, so that a clock that drifts moves them all, and the median of each is told.  Nothing is
told of a payload that does not show in the output, or of one tensor whose output is not that of the list.
"""

import gc
import statistics
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from typing_extensions import override

from deepstack_harness.compile.captured import CpuGraphs, CudaGraphs, Graph, Graphs
from deepstack_harness.compile.payload_costs import LIST, PAYLOAD, TENSOR, TENSOR_AGAINST_LIST, PayloadWork
from deepstack_harness.compile.torch_compat import dynamo
from deepstack_harness.contract.arm import Capture
from deepstack_harness.contract.facts import Measured
from deepstack_harness.errors import NotMeasured
from deepstack_harness.models.family import parse_device, tiny_family_named
from deepstack_harness.models.layers import give_storage
from deepstack_harness.models.reference import ReferenceBuffer

_MODES = (Capture.NONE, Capture.FULL, Capture.PIECEWISE, Capture.BREAKABLE)
_SPARE_ROWS = 8
"""Rows of a buffer above the largest step: a slice of it is never contiguous by chance.

Compiled without guards, a graph would take the stride between the levels of a contiguous tensor for their
size, and read the wrong rows of every shorter step.
"""
_WARM_UPS = 3
_AT_A_TIME = 5
"""Steps between two events of a CUDA stream: an event is good to half a microsecond."""
_LIMITS = {torch.bfloat16: 0.1, torch.float32: 1e-4}
"""By how much the outputs of two forms of one payload may differ, for their largest value."""


def time_payload(work: PayloadWork) -> list[Measured]:
    """Time every step of a piece of work; raises `NotMeasured` where a payload did not show."""
    device = parse_device(work.target)
    gc.collect()  # graphs of the work before, which hold memory of the GPU
    gc.freeze()  # torch collects garbage at each capture, and what was imported stays
    with torch.no_grad(), ExitStack() as stack:
        if device.type == "cuda":
            stack.enter_context(torch.cuda.device(device))
            stack.callback(torch.cuda.empty_cache)
        decoder = _Decoder.build(work, device)
        stack.callback(dynamo.start_counting)
        decoder.compile(max(work.tokens))  # a graph that is traced for one token would be for that alone
        graphs: dict[Capture, Graphs] = {mode: _graphs(device, mode) for mode in _MODES[1:]}
        series = [
            step
            for tokens in work.tokens
            for mode in _MODES
            for step in _steps(decoder, graphs.get(mode), mode, tokens)
        ]
        _sample(series, work.repetitions, _Clock.of(device))
    return list(_rows(decoder, series))


class _Clock(ABC):
    """A clock for steps that may run on a device of their own."""

    name: str

    @staticmethod
    def of(device: torch.device) -> "_Clock":
        return _CudaClock() if device.type == "cuda" else _CpuClock()

    @abstractmethod
    def seconds(self, run: Callable[[], object]) -> float:
        """Return the time of one step."""


class _CpuClock(_Clock):
    name = "time.perf_counter"

    @override
    def seconds(self, run: Callable[[], object]) -> float:
        started = time.perf_counter()
        run()
        return time.perf_counter() - started


class _CudaClock(_Clock):
    """Events on the current stream: they see the work of the GPU and the gaps while it waits for the CPU."""

    name = "CUDA events"

    @override
    def seconds(self, run: Callable[[], object]) -> float:
        make: Callable[..., Any] = torch.cuda.Event
        begin, end = make(enable_timing=True), make(enable_timing=True)
        torch.cuda.synchronize()
        begin.record()
        for _ in range(_AT_A_TIME):
            run()
        end.record()
        end.synchronize()
        milliseconds = float(begin.elapsed_time(end))
        return milliseconds / 1000 / _AT_A_TIME


class _WithoutPayload(nn.Module):
    """The decoder alone; each form has a class of its own, since compiled graphs belong to their code."""

    def __init__(self, decoder: nn.Module) -> None:
        super().__init__()
        self.decoder = decoder

    @override
    def forward(self, hidden: Tensor, positions: Tensor, payload: object) -> Tensor:
        out: Tensor = self.decoder(hidden, positions, None)
        return out


class _OfList(_WithoutPayload):
    """Levels as a tuple, (N, H) each."""

    @override
    def forward(self, hidden: Tensor, positions: Tensor, payload: object) -> Tensor:
        out: Tensor = self.decoder(hidden, positions, payload)
        return out


class _OfTensor(_WithoutPayload):
    """All levels in one tensor (levels, N, H)."""

    @override
    def forward(self, hidden: Tensor, positions: Tensor, payload: object) -> Tensor:
        assert isinstance(payload, Tensor)
        out: Tensor = self.decoder(hidden, positions, payload.unbind(0))
        return out


class _OneTensor:
    """A buffer of one tensor (levels, capacity, hidden): one kernel where a list has one for each level."""

    def __init__(self, levels: int, capacity: int, hidden: int, like: Tensor) -> None:
        self.rows = like.new_zeros(levels, capacity, hidden)

    def get(self, tokens: int) -> Tensor:
        """Return (levels, tokens, hidden)."""
        return self.rows[:, :tokens]

    def set(self, payload: Tensor) -> None:
        """Copy a payload (levels, N, hidden)."""
        self.rows[:, : payload.size(1)].copy_(payload)

    def clear(self, tokens: int) -> None:
        """Zero the first rows of every level."""
        self.rows[:, :tokens].zero_()


class _NoBuffer:
    """What a control has in place of a buffer."""

    def get(self, tokens: int) -> None:
        return None

    def set(self, payload: Tensor) -> None:
        pass

    def clear(self, tokens: int) -> None:
        pass


_Buffer = ReferenceBuffer | _OneTensor | _NoBuffer
_Form = tuple[Callable[..., Tensor], _Buffer]


@dataclass(frozen=True)
class _Decoder:
    """A decoder in all forms, compiled or not, with a buffer for each of them."""

    work: PayloadWork
    device: torch.device
    dtype: torch.dtype
    hidden: int
    levels: int
    layers: int
    forms: dict[str, _Form]

    @classmethod
    def build(cls, work: PayloadWork, device: torch.device) -> "_Decoder":
        """Make the decoder with weights drawn where they lie: a billion of them from a CPU take a minute."""
        family, dtype = (
            tiny_family_named(work.family),
            torch.bfloat16 if device.type == "cuda" else torch.float32,
        )
        with torch.device("meta"):
            decoder = family.decoder()
        give_storage(decoder, dtype, device)
        torch.manual_seed(0)
        for parameter in decoder.parameters():
            if parameter.ndim == 1:
                parameter.fill_(1)
            else:
                parameter.normal_(std=parameter.size(-1) ** -0.5)
        decoder.eval()
        capacity = max(work.tokens) + _SPARE_ROWS
        like = torch.empty(0, dtype=dtype, device=device)
        levels = ReferenceBuffer(capacity, family.width, family.levels, dtype=dtype, device=device)
        buffers: dict[str, tuple[type[_WithoutPayload], _Buffer]] = {
            "": (_WithoutPayload, _NoBuffer()),
            LIST: (_OfList, levels),
            TENSOR: (_OfTensor, _OneTensor(family.levels, capacity, family.width, like)),
        }
        dynamo.start_counting()  # drops what the work before has compiled
        forms: dict[str, _Form] = {
            form: (_compiled(make(decoder), work.backend), buffer) for form, (make, buffer) in buffers.items()
        }
        return cls(work, device, dtype, family.hidden, family.levels, family.config.layers, forms)

    def compile(self, tokens: int) -> None:
        """Call each form once, with sizes that are marked as dynamic; later calls need no marks."""
        hidden, positions, image = self.inputs(tokens)
        dynamo.mark_dynamic(hidden, 0)
        dynamo.mark_dynamic(positions, 1)
        for call, buffer in self.forms.values():
            buffer.set(image)
            payload = buffer.get(tokens)
            if isinstance(payload, Tensor):
                dynamo.mark_dynamic(payload, 1)
            for level in payload if isinstance(payload, tuple) else ():
                dynamo.mark_dynamic(level, 0)
            call(hidden, positions, payload)
            buffer.clear(tokens)

    def inputs(self, tokens: int) -> tuple[Tensor, Tensor, Tensor]:
        """Return hidden (N, H), positions (3, N) and the payload of an image (levels, N, H)."""
        family = tiny_family_named(self.work.family)
        hidden = torch.randn(tokens, self.hidden, dtype=self.dtype, device=self.device)
        payload = torch.randn(self.levels, tokens, family.width, dtype=self.dtype, device=self.device)
        return hidden, family.positions(tokens, self.device), payload


def _compiled(module: nn.Module, backend: str) -> Callable[..., Tensor]:
    """Return the module, or its forward compiled as engines do: one graph, all guards dropped."""
    if backend == "none":
        return module
    # A new dict for each call: torch.compile takes the filter out of it.
    options: dict[str, str | int | bool | Callable[..., Any]] = {
        "guard_filter_fn": torch.compiler.skip_all_guards_unsafe
    }
    forward: Callable[..., Tensor] = torch.compile(
        module.forward, fullgraph=True, dynamic=False, backend=backend, options=options
    )
    return forward


def _graphs(device: torch.device, mode: Capture) -> Graphs:
    """Return where the graphs of a mode come from; they share a stream and a pool, as an engine's do."""
    if device.type == "cuda":
        return CudaGraphs(device, broken_at_attention=mode is not Capture.FULL)
    return CpuGraphs()


@dataclass
class _Step:
    """One kind of step, its output (N, H), and the seconds of its samples."""

    mode: Capture
    tokens: int
    form: str
    kind: str
    run: Callable[[], object]
    out: Callable[[], Tensor]
    seconds: list[float]

    @property
    def place(self) -> tuple[Capture, int]:
        """Mode and tokens: the steps of one place are held against each other."""
        return self.mode, self.tokens

    @property
    def microseconds(self) -> float:
        """The median of its samples."""
        return statistics.median(self.seconds) * 1e6


def _steps(decoder: _Decoder, graphs: Graphs | None, mode: Capture, tokens: int) -> Iterator[_Step]:
    """Yield the control, and text and image steps of both forms, in one mode; captures them in `graphs`."""
    hidden, positions, image = decoder.inputs(tokens)
    for form, (call, buffer) in decoder.forms.items():
        step = _Runnable(call, buffer, hidden, positions, tokens)
        run, out = step.plain() if graphs is None else step.captured(mode, graphs)
        if not form:
            yield _Step(mode, tokens, form, "", run, out, [])
            continue
        yield _Step(mode, tokens, form, "text", run, out, [])
        yield _Step(mode, tokens, form, "image", partial(_set_and_run, buffer, image, run), out, [])


def _set_and_run(buffer: _Buffer, image: Tensor, run: Callable[[], object]) -> None:
    buffer.set(image)
    run()


@dataclass(frozen=True)
class _Runnable:
    """A step of one form: get, decode from tensors that stay where they are, clear."""

    call: Callable[..., Tensor]
    buffer: _Buffer
    hidden: Tensor
    positions: Tensor
    tokens: int

    def decode(self, payload: object) -> Tensor:
        """Return (N, H)."""
        return self.call(self.hidden, self.positions, payload)

    def plain(self) -> tuple[Callable[[], object], Callable[[], Tensor]]:
        """Return the step without a graph, and what gives its last output."""
        last = [self._once()]

        def run() -> None:
            last[0] = self._once()

        return run, lambda: last[0]

    def captured(self, mode: Capture, graphs: Graphs) -> tuple[Callable[[], object], Callable[[], Tensor]]:
        """Return the step as a replay, and what gives its output; PIECEWISE leaves get and clear outside."""
        with graphs.warming_up():
            for _ in range(_WARM_UPS):
                out = self._once()
        static, graph = torch.empty_like(out), graphs.graph()
        payload = self.buffer.get(self.tokens)
        if mode is Capture.PIECEWISE:
            with graph.recording():
                graph.call(lambda: static.copy_(self.decode(payload)))
            return partial(self._replay_between, graph), lambda: static
        with graph.recording():
            payload = graph.record(lambda: self.buffer.get(self.tokens))
            graph.call(lambda: static.copy_(self.decode(payload)))
            graph.record(lambda: self.buffer.clear(self.tokens))
        return graph.again, lambda: static

    def _once(self) -> Tensor:
        out = self.decode(self.buffer.get(self.tokens))
        self.buffer.clear(self.tokens)
        return out

    def _replay_between(self, graph: Graph) -> None:
        self.buffer.get(self.tokens)
        graph.again()
        self.buffer.clear(self.tokens)


def _sample(series: Sequence[_Step], repetitions: int, clock: _Clock) -> None:
    """Check each step, warm it up, and take its samples by turns with the other steps of its place."""
    for place in dict.fromkeys(step.place for step in series):
        steps = [step for step in series if step.place == place]
        _check(steps)
        for step in steps * _WARM_UPS:
            step.run()
        for _ in range(repetitions):
            for step in steps:
                step.seconds.append(clock.seconds(step.run))


def _check(steps: Sequence[_Step]) -> None:
    """Raise `NotMeasured` where an image does not show in the output, or a list and a tensor differ."""
    outs: dict[tuple[str, str], Tensor] = {}
    for step in steps:
        step.run()
        outs[step.form, step.kind] = step.out().clone().float()
    control = outs["", ""]
    limit = _LIMITS[steps[0].out().dtype] * max(1.0, float(control.abs().max()))

    def close(one: Tensor, other: Tensor) -> bool:
        return float((one - other).abs().max()) <= limit  # False for nan

    where = f"{steps[0].mode}, {steps[0].tokens} tokens"
    if not all(bool(out.isfinite().all()) for out in outs.values()):
        raise NotMeasured(f"{where}: an output is not finite")
    for form in (LIST, TENSOR):
        if close(outs[form, "image"], control):
            raise NotMeasured(f"{where}: the payload as a {form} does not show in the output")
        if not close(outs[form, "text"], control):
            raise NotMeasured(f"{where}: a cleared payload as a {form} shows in the output")
    if not close(outs[LIST, "image"], outs[TENSOR, "image"]):
        raise NotMeasured(f"{where}: a list and one tensor of the same payload give other outputs")


def _rows(decoder: _Decoder, series: Sequence[_Step]) -> Iterator[Measured]:
    """Yield the rows of each place and kind of step: the list, the tensor, and one against the other."""
    steps = {(step.place, step.kind, step.form): step for step in series}
    for (place, kind, form), as_list in steps.items():
        if form != LIST:
            continue
        control, one = steps[place, "", ""], steps[place, kind, TENSOR]
        yield _row(decoder, as_list, PAYLOAD, control)
        yield _row(decoder, one, PAYLOAD, control)
        yield _row(decoder, one, TENSOR_AGAINST_LIST, as_list)


def _row(decoder: _Decoder, step: _Step, measure: str, control: _Step) -> Measured:
    work = decoder.work
    runs = "eager" if work.backend == "none" else f"{work.backend}/drop_all"
    conditions: dict[str, str | int | float] = {
        "model": work.model, "tokens": step.tokens,
        "arm": runs if step.mode is Capture.NONE else f"{runs}/{step.mode}",
        "step": step.kind, "form": step.form, "hidden": decoder.hidden, "levels": decoder.levels,
        "layers": decoder.layers, "dtype": str(decoder.dtype).removeprefix("torch."),
        "device": _device_name(decoder.device), "clock": _Clock.of(decoder.device).name,
        "samples": len(step.seconds), "torch": str(torch.__version__),
    }  # fmt: skip
    first, _, last = statistics.quantiles(step.seconds, n=4)
    spread = f"the middle half of the samples: {first * 1e6:.1f} to {last * 1e6:.1f} us"
    return Measured(measure, step.microseconds, "us", control.microseconds, conditions, spread)


def _device_name(device: torch.device) -> str:
    return torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu"
