"""Time steps of a decoder with a payload and without one; for a worker, on a CPU or on CUDA.

A step is what an engine does for one batch: `set` copies the payload of an image, `get` returns rows for the
decoder, `clear` zeroes them. A step of text sets nothing, and adds the zeros of the buffer. The control
decodes without a payload, and calls no buffer. `torch.utils.benchmark` takes the times, which synchronizes
with CUDA; the steps take turns, so that a clock that drifts moves all of them.
"""

import gc
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.utils.benchmark import Measurement, Timer

from deepstack_harness.compile.graphs import Graphs, graphs_on
from deepstack_harness.compile.payload_costs import LIST, PAYLOAD, TENSOR, TENSOR_AGAINST_LIST, PayloadWork
from deepstack_harness.compile.torch_compat import dynamo
from deepstack_harness.contract.arm import Capture
from deepstack_harness.contract.facts import Measured
from deepstack_harness.contract.tolerances import FORMS_OF_A_PAYLOAD
from deepstack_harness.errors import NotMeasured
from deepstack_harness.models.family import TinyFamily, parse_device, tiny_family_named
from deepstack_harness.models.layers import give_storage
from deepstack_harness.models.reference import ReferenceBuffer

_MODES = (Capture.NONE, Capture.FULL, Capture.PIECEWISE, Capture.BREAKABLE)
_SPARE_ROWS = 8  # without them all levels of the largest step are contiguous, and a graph takes that stride
_WARM_UPS = 3  # the first call compiles, the second may capture
_AT_A_TIME = 5  # steps between two readings of the clock: on a GPU, both wait for the stream


def time_payload(work: PayloadWork) -> list[Measured]:
    """Time every step of a piece of work; raises `NotMeasured` where a payload did not show."""
    device = parse_device(work.target)
    gc.collect()  # graphs of the work before, which hold memory of the GPU
    gc.freeze()  # torch collects garbage at each capture
    with torch.no_grad(), ExitStack() as stack:
        if device.type == "cuda":
            stack.enter_context(torch.cuda.device(device))
            stack.callback(torch.cuda.empty_cache)
        dynamo.start_counting()  # drops what the work before has compiled
        stack.callback(dynamo.start_counting)
        subject = _subject_of(work, device)
        subject.compile(max(work.tokens))
        # They share a stream and a pool, as an engine's do.
        graphs: dict[Capture, Graphs] = {
            mode: graphs_on(device, broken_at_attention=mode is not Capture.FULL)
            for mode in _MODES
            if mode is not Capture.NONE
        }
        return [
            row
            for tokens in work.tokens
            for mode in _MODES
            for row in _time_place(subject, graphs.get(mode), mode, tokens)
        ]


class _OneTensor:
    """A buffer of one tensor (levels, capacity, hidden): one kernel where a list has one for each level."""

    def __init__(self, levels: int, capacity: int, hidden: int, like: Tensor) -> None:
        self.rows = like.new_zeros(levels, capacity, hidden)

    def get(self, tokens: int) -> Tensor:
        return self.rows[:, :tokens]

    def set(self, payload: Tensor) -> None:
        self.rows[:, : payload.size(1)].copy_(payload)

    def clear(self, tokens: int) -> None:
        self.rows[:, :tokens].zero_()


class _NoBuffer:
    """What a control has in place of a buffer."""

    def get(self, tokens: int) -> None:
        return None

    def set(self, payload: Tensor) -> None:
        pass

    clear = get


_Buffer = ReferenceBuffer | _OneTensor | _NoBuffer


@dataclass(frozen=True)
class _Subject:
    """A decoder in all forms, compiled or not: by form, how it is called and the buffer of its payload."""

    work: PayloadWork
    family: TinyFamily[Any]
    like: Tensor
    forms: Mapping[str, tuple[Callable[..., Tensor], _Buffer]]

    def conditions(self, mode: Capture) -> dict[str, str | int | float]:
        """Return what the rows of one mode have in common."""
        work, device = self.work, self.like.device
        runs = "eager" if work.backend == "none" else f"{work.backend}/drop_all"
        return {
            "model": work.model, "arm": runs if mode is Capture.NONE else f"{runs}/{mode}",
            "hidden": self.family.hidden, "levels": self.family.levels, "layers": self.family.config.layers,
            "dtype": str(self.like.dtype).removeprefix("torch."), "clock": "torch.utils.benchmark",
            "device": torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu",
            "samples": work.repetitions, "torch": str(torch.__version__),
        }  # fmt: skip

    def inputs(self, tokens: int) -> tuple[Tensor, Tensor, Tensor]:
        """Return hidden (N, H), positions (3, N) and the payload of an image (levels, N, H)."""
        family, dtype, device = self.family, self.like.dtype, self.like.device
        hidden = torch.randn(tokens, family.hidden, dtype=dtype, device=device)
        payload = torch.randn(family.levels, tokens, family.width, dtype=dtype, device=device)
        return hidden, family.positions(tokens, device), payload

    def compile(self, tokens: int) -> None:
        """Call each form with sizes that are marked as dynamic; one token would be compiled in."""
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


def _subject_of(work: PayloadWork, device: torch.device) -> _Subject:
    """Make the decoder with weights drawn on its device: a billion of them from a CPU take a minute."""
    family = tiny_family_named(work.family)
    like = torch.empty(0, dtype=torch.bfloat16 if device.type == "cuda" else torch.float32, device=device)
    with torch.device("meta"):
        decoder = family.decoder()
    give_storage(decoder, like.dtype, device)
    torch.manual_seed(0)
    for parameter in decoder.parameters():
        parameter.fill_(1) if parameter.ndim == 1 else parameter.normal_(std=parameter.size(-1) ** -0.5)
    decoder.eval()

    # Three functions: compiled graphs belong to the code that was compiled.
    def without(hidden: Tensor, positions: Tensor, payload: None) -> Tensor:  # noqa: ARG001  # called as the others
        out: Tensor = decoder(hidden, positions, None)
        return out

    def with_list(hidden: Tensor, positions: Tensor, payload: tuple[Tensor, ...]) -> Tensor:
        out: Tensor = decoder(hidden, positions, payload)
        return out

    def with_tensor(hidden: Tensor, positions: Tensor, payload: Tensor) -> Tensor:
        out: Tensor = decoder(hidden, positions, payload.unbind(0))
        return out

    def compiled(forward: Callable[..., Tensor]) -> Callable[..., Tensor]:
        """Compile as engines do: one graph, all guards dropped."""
        if work.backend == "none":
            return forward
        options: dict[str, Any] = {"guard_filter_fn": torch.compiler.skip_all_guards_unsafe}
        return torch.compile(forward, fullgraph=True, dynamic=False, backend=work.backend, options=options)

    capacity, levels, width = max(work.tokens) + _SPARE_ROWS, family.levels, family.width
    as_list = ReferenceBuffer(capacity, width, levels, dtype=like.dtype, device=device)
    forms: dict[str, tuple[Callable[..., Tensor], _Buffer]] = {
        "": (compiled(without), _NoBuffer()),
        LIST: (compiled(with_list), as_list),
        TENSOR: (compiled(with_tensor), _OneTensor(levels, capacity, width, like)),
    }
    return _Subject(work, family, like, forms)


@dataclass
class _Step:
    """One kind of step: how it is run, where its output (N, H) is then, and its times."""

    form: str
    kind: str
    run: Callable[[], object]
    out: Callable[[], Tensor]
    times: list[Measurement] = field(default_factory=list)

    @property
    def microseconds(self) -> float:
        return float(Measurement.merge(self.times)[0].median) * 1e6


def _time_place(subject: _Subject, graphs: Graphs | None, mode: Capture, tokens: int) -> Iterator[Measured]:
    """Yield the rows of one mode and size: for each kind of step the list, the tensor, and both compared."""
    steps = {(step.form, step.kind): step for step in _steps(subject, graphs, mode, tokens)}
    _check(steps, f"{mode}, {tokens} tokens")
    timers = [(step, Timer("run()", globals={"run": step.run})) for step in steps.values()]
    for _, timer in timers:
        timer.timeit(_WARM_UPS)
    for _ in range(subject.work.repetitions):
        for step, timer in timers:
            step.times.append(timer.timeit(_AT_A_TIME))
    control = steps["", ""]
    for kind in ("text", "image"):
        as_list, one = steps[LIST, kind], steps[TENSOR, kind]
        for measure, step, against in (
            (PAYLOAD, as_list, control), (PAYLOAD, one, control), (TENSOR_AGAINST_LIST, one, as_list),
        ):  # fmt: skip
            conditions = {**subject.conditions(mode), "tokens": tokens, "step": kind, "form": step.form}
            spread = float(Measurement.merge(step.times)[0].iqr) * 1e6
            yield Measured(
                measure, step.microseconds, "us", against.microseconds, conditions,
                f"the middle half of the samples is {spread:.1f} us wide",
            )  # fmt: skip


def _steps(subject: _Subject, graphs: Graphs | None, mode: Capture, tokens: int) -> Iterator[_Step]:
    """Yield the control, and text and image steps of both forms, in one mode; captures them in `graphs`."""
    hidden, positions, image = subject.inputs(tokens)
    for form, (call, buffer) in subject.forms.items():
        run, out = _runnable(partial(call, hidden, positions), buffer, tokens, graphs, mode)

        def with_image(buffer: _Buffer = buffer, run: Callable[[], object] = run) -> None:
            buffer.set(image)
            run()

        yield _Step(form, "text" if form else "", run, out)
        if form:
            yield _Step(form, "image", with_image, out)


def _runnable(
    decode: Callable[..., Tensor], buffer: _Buffer, tokens: int, graphs: Graphs | None, mode: Capture
) -> tuple[Callable[[], object], Callable[[], Tensor]]:
    """Return a step that gets, decodes and clears, as a replay where there are `graphs`, and its output.

    PIECEWISE leaves get and clear outside the graph.
    """

    def once() -> Tensor:
        out = decode(buffer.get(tokens))
        buffer.clear(tokens)
        return out

    outs = [once()]
    if graphs is None:
        return lambda: outs.__setitem__(0, once()), lambda: outs[0]
    with graphs.warming_up():
        for _ in range(_WARM_UPS):
            once()
    static, graph = torch.empty_like(outs[0]), graphs.graph()
    if mode is Capture.PIECEWISE:
        payload = buffer.get(tokens)
        with graph.recording():
            graph.call(lambda: static.copy_(decode(payload)))

        def between() -> None:
            buffer.get(tokens)
            graph.again()
            buffer.clear(tokens)

        return between, lambda: static
    with graph.recording():
        recorded = graph.record(lambda: buffer.get(tokens))
        graph.call(lambda: static.copy_(decode(recorded)))
        graph.record(lambda: buffer.clear(tokens))
    return graph.again, lambda: static


def _check(steps: Mapping[tuple[str, str], _Step], where: str) -> None:
    """Raise `NotMeasured` where an image does not show in the output, or a list and a tensor differ."""
    outs: dict[tuple[str, str], Tensor] = {}
    for name, step in steps.items():
        step.run()
        outs[name] = step.out().clone().float()
    control = outs["", ""]
    dtype = str(steps["", ""].out().dtype).removeprefix("torch.")
    limit = FORMS_OF_A_PAYLOAD[dtype] * max(1.0, float(control.abs().max()))

    def close(one: Tensor, other: Tensor) -> bool:
        return float((one - other).abs().max()) <= limit  # False for nan

    if not all(bool(out.isfinite().all()) for out in outs.values()):
        raise NotMeasured(f"{where}: an output is not finite")
    for form in (LIST, TENSOR):
        if close(outs[form, "image"], control):
            raise NotMeasured(f"{where}: the payload as a {form} does not show in the output")
        if not close(outs[form, "text"], control):
            raise NotMeasured(f"{where}: a cleared payload as a {form} shows in the output")
    if not close(outs[LIST, "image"], outs[TENSOR, "image"]):
        raise NotMeasured(f"{where}: a list and one tensor of the same payload give other outputs")
