"""Callers with one fault each, as engines had them, and the fixes of some.

The faults: the payload is lost on its way to the decoder, or wrong rows of it are read or written; ranks add
wrong rows; halves of a step share one buffer; the payload is added in another order; inputs lie in storage
that outlives the step; the buffer is made in another dtype or on another device; a compiled decoder reads a
count or the payload from an attribute; the profile run passes token ids, and later steps embeddings.

A class that states whether it is `faulty` is a caller by its name; `list callers` shows the first line of its
docstring.
"""

import inspect
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import ClassVar, cast

import torch
from torch import Tensor, nn
from typing_extensions import override

from deepstack_harness.contract.protocols import Buffer, BufferFactory, Inputs, Lane, Profile, follow
from deepstack_harness.contract.trace import Step
from deepstack_harness.errors import UsageError
from deepstack_harness.models.engine import Engine, Payload, SequenceParallel, WrapsDecoder, shared_copy
from deepstack_harness.models.qwen3_vl import ADDITIONS, PayloadOrder, QwenDecoderLayer


class SkipsSet(Engine):
    """An engine that computes the payload and never sets it (vllm 26626)."""

    faulty = True

    @override
    def set(self, buffer: Buffer, payload: Tensor) -> None:
        """Drop a payload (levels, N, hidden)."""


class OverwritesPayload(Engine):
    """An engine that reads the payload and then gives the decoder None (mlx-vlm 1635)."""

    faulty = True

    @override
    def _with_payload(self, lane: Lane, inputs: Inputs, tokens: int) -> Inputs:
        """Read the payload, and return the inputs without it."""
        lane.get(tokens)
        return inputs


class AsksByBatchSize(Engine):
    """An engine that takes the batch size, 1, for the number of tokens (vllm-omni 198)."""

    faulty = True

    @override
    def _with_payload(self, lane: Lane, inputs: Inputs, tokens: int) -> Inputs:
        """Return the inputs with a payload of one row, (1, h) per level."""
        return super()._with_payload(lane, inputs, 1)


class TakesOneSpan(Engine):
    """An engine that takes the visual tokens of a step for one contiguous span (mlx-vlm 2296).

    In a step of several requests, visual tokens after the first gap get the rows of others.
    """

    faulty = True

    @override
    def set(self, buffer: Buffer, payload: Tensor) -> None:
        """Set a payload (levels, N, hidden) whose k-th visual row is the k-th row after the first one."""
        visual = payload.abs().sum((0, 2)).nonzero().flatten()  # rows of text are zero
        mixed = torch.zeros_like(payload)
        if len(visual):
            first = int(visual[0])
            mixed[:, visual] = payload[:, first : first + len(visual)]
        buffer.set(mixed)


class NeverClears(Engine):
    """An engine that ends no payload: a step without visual tokens reads that of the step before it.

    Nothing erases the tensors that tpu-inference stores on Qwen3-Omni.
    """

    faulty = True

    @override
    def forward(self, lane: Lane, inputs: Inputs, step: Step) -> Tensor:
        """Run get and decode over P tokens, and no clear, hidden (P, h) -> (P, h)."""
        return lane.run(self._with_payload(lane, inputs, step.tokens))


class FixedLevelRange(Engine):
    """An engine that adds a fixed number of levels, whatever the model has (`range(3)` in sglang)."""

    faulty = True
    levels: ClassVar[int] = 3

    @override
    def _with_payload(self, lane: Lane, inputs: Inputs, tokens: int) -> Inputs:
        """Return the inputs with zeros (P, h) in place of the levels after the range."""
        levels = lane.get(tokens) or ()
        kept, others = levels[: self.levels], map(torch.zeros_like, levels[self.levels :])
        return replace(inputs, payload=(*kept, *others) or None)


class PayloadNotSharded(SequenceParallel):
    """An engine whose ranks each add the whole payload (sglang 18098, vllm-ascend 7565 and 7897)."""

    faulty = True

    @override
    def payload_rows(self, payload: Payload, own: slice) -> Payload:
        """Return all P rows of each level (P, h)."""
        return payload


class PayloadShardedUnpadded(SequenceParallel):
    """An engine that splits the payload by the N tokens set, and the hidden states by the padded P."""

    faulty = True
    _set_tokens: int | None = None

    @override
    def set(self, buffer: Buffer, payload: Tensor) -> None:
        """Set a payload (levels, N, hidden), and remember N."""
        self._set_tokens = payload.size(1)
        super().set(buffer, payload)

    @override
    def payload_rows(self, payload: Payload, own: slice) -> Payload:
        """Return the rank's part of the first N rows of each level (P, h).

        The first ranks have one row more where N does not divide evenly.
        """
        return tuple(level[: self._set_tokens].tensor_split(self.ranks)[self.rank] for level in payload)


class PayloadChunkedUnpadded(PayloadShardedUnpadded):
    """An engine that cuts the N tokens set with `chunk`, whose last part is short or missing (vllm-ascend).

    Ten rows for four ranks are parts of 3, 3, 3 and 1; nine rows for eight ranks are five parts.
    """

    faulty = True

    @override
    def payload_rows(self, payload: Payload, own: slice) -> Payload:
        """Return the rank's chunk of the first N rows of each level (P, h); no rows where there is none."""
        cut = [level[: self._set_tokens].chunk(self.ranks) for level in payload]
        return tuple(parts[self.rank] if self.rank < len(parts) else parts[0][:0] for parts in cut)


class WrongRanksRows(SequenceParallel):
    """An engine whose ranks each add their neighbour's payload, whose shape fits, so that nothing raises."""

    faulty = True

    @override
    def payload_rows(self, payload: Payload, own: slice) -> Payload:
        """Return the rows of the next rank of each level (P, h); the last rank has those of the first."""
        neighbour = self._rows(payload[0].size(0), (self.rank + 1) % self.ranks)
        return tuple(level[neighbour] for level in payload)


class MicroBatches(Engine):
    """An engine whose halves each get, decode and clear: the second half reads the rows of the first.

    Engines that overlap micro-batches split a step so, and run the outer forward once for each half
    (vllm/v1/worker/gpu_ubatch_wrapper.py). Each half gets as many rows as it has and clears them, and
    both read from row 0 on.
    """

    faulty = True

    @override
    def parts(self, tokens: int) -> Sequence[slice]:
        """Return the first half, rounded up, and the rest."""
        half = (tokens + 1) // 2
        return (slice(0, half), slice(half, tokens))

    @override
    def forward(self, lane: Lane, inputs: Inputs, step: Step) -> Tensor:
        """Run two outer forwards over P tokens, hidden (P, h) -> (P, h)."""
        outs = []
        for rows in self.parts(step.tokens):
            part = replace(step, tokens=rows.stop - rows.start)
            outs.append(super().forward(lane, rows_of(inputs, rows), part))
        return torch.cat(outs)


class MicroBatchesSliced(MicroBatches):
    """An engine that reads the payload once, cuts it for each half, and clears it after both."""

    faulty = False

    @override
    def forward(self, lane: Lane, inputs: Inputs, step: Step) -> Tensor:
        """Run one get and one clear around two decodes, hidden (P, h) -> (P, h)."""
        whole = self._with_payload(lane, inputs, step.tokens)
        out = torch.cat([lane.run(rows_of(whole, rows)) for rows in self.parts(step.tokens)])
        lane.clear(step.tokens)
        return out


def rows_of(inputs: Inputs, rows: slice) -> Inputs:
    """Cut every argument to these rows: hidden (n, h), positions (3, n), one (n, h) per level."""
    payload = inputs.payload
    cut = None if payload is None else tuple(level[rows] for level in payload)
    return Inputs(inputs.hidden[rows], inputs.positions[:, rows], cut)


class OrderOfAdditions(Engine):
    """An engine that adds each level to the feed-forward's output first, and the reference to the sum.

    In exact arithmetic both orders give the same sum, rounded they do not.  sglang had added the payload to
    the feed-forward's output, and moved the addition into the residual stream, as in transformers. FP8
    grounding drifted by 150 pixels and more (sglang 34690).
    """

    faulty = True
    order: ClassVar[PayloadOrder] = "into_mlp"

    @override
    def decoder(self, decoder: nn.Module) -> nn.Module:
        """Return a reordered copy of the decoder around the same weights.

        Raises `UsageError` for a decoder whose layers do not add the payload themselves.
        """
        reordered = shared_copy(decoder)
        layers = [layer for layer in reordered.modules() if isinstance(layer, QwenDecoderLayer)]
        if not layers:
            raise UsageError(
                f"caller order_of_additions knows no other order for {type(decoder).__name__}: "
                "take a family built on Qwen3-VL's layers, such as qwen3_vl"
            )
        for layer in layers:
            layer.add = ADDITIONS[self.order]
        return reordered


class StaticInputs(Engine):
    """An engine that copies the inputs of every step of up to `capacity` tokens into the same storage.

    vLLM does (`inputs_embeds` and `mrope_positions` of vllm/v1/worker/gpu_model_runner.py). A graph that
    processes more rows than the step has then reads rows of earlier steps. After tensors of the step's
    own size it would read memory outside them.
    """

    faulty = False

    @override
    def buffer(self, make: BufferFactory, sizes: Profile) -> Buffer:
        """Make the buffer and zeroed storage: hidden (capacity, h), positions (3, capacity + 1)."""
        # As in vLLM, one position too many, so that slices of positions are never contiguous.
        shape, device = (sizes.capacity, sizes.hidden), sizes.device
        self._hidden = torch.zeros(shape, dtype=sizes.dtype, device=device)
        self._positions = torch.zeros((3, sizes.capacity + 1), dtype=torch.int64, device=device)
        return super().buffer(make, sizes)

    @override
    def inputs(self, step: Step, inputs: Inputs) -> Inputs:
        """Copy hidden (P, h) and positions (3, P) into slices; return inputs above the capacity unchanged."""
        if step.tokens > len(self._hidden):
            return inputs
        hidden = self._hidden[: step.tokens].copy_(inputs.hidden)
        positions = self._positions[:, : step.tokens].copy_(inputs.positions)
        return replace(inputs, hidden=hidden, positions=positions)


class MadeElsewhere(Engine):
    """An engine that makes the buffer in `dtype` and on `device`; None means that of the hidden states.

    vLLM states neither when it makes its buffers, so that the ambient ones are used: float32 on the CPU
    before the model's own are in force (vllm 44384), and meta inside the context that prevents the
    allocation of a skipped vision tower (vllm 49384).

    Before each step it shows the hidden states to a `deepstack_harness.contract.protocols.FollowsTensors`,
    such as `deepstack_harness.models.revisions.Pr44384Buffer`.
    """

    dtype: ClassVar[torch.dtype | None] = None
    device: ClassVar[str | None] = None

    @override
    def buffer(self, make: BufferFactory, sizes: Profile) -> Buffer:
        """Make the buffer in the class's dtype and on its device."""
        device = sizes.device if self.device is None else torch.device(self.device)
        self._made = super().buffer(make, replace(sizes, dtype=self.dtype or sizes.dtype, device=device))
        return self._made

    @override
    def forward(self, lane: Lane, inputs: Inputs, step: Step) -> Tensor:
        """Show hidden (P, h) to the buffer, then run the outer forward -> (P, h)."""
        follow(self._made, inputs.hidden)
        return super().forward(lane, inputs, step)


class MadeInFloat32OnCpu(MadeElsewhere):
    """An engine that makes the buffer under torch's defaults, before the model's own are in force."""

    faulty = True
    dtype = torch.float32
    device = "cpu"


class MadeInBfloat16(MadeElsewhere):
    """An engine that makes the buffer in bfloat16."""

    faulty = True
    dtype = torch.bfloat16


class MadeInFloat64(MadeElsewhere):
    """An engine that makes the buffer in float64."""

    faulty = True
    dtype = torch.float64


class MadeOnMeta(MadeElsewhere):
    """An engine that makes the buffer on meta, whose tensors have no storage."""

    faulty = True
    device = "meta"


class WithoutVisionTower(MadeOnMeta):
    """An engine that skips the vision tower, and makes the buffer on meta with it (vllm 49384).

    A factory with a `vision` argument gets that argument instead (vLLM #49397), and makes no buffer that
    could be on meta.
    """

    faulty = False

    @override
    def buffer(self, make: BufferFactory, sizes: Profile) -> Buffer:
        """Make the buffer on meta, or let the factory make none."""
        if "vision" not in inspect.signature(make).parameters:
            return super().buffer(make, sizes)
        without = partial(cast(Callable[..., Buffer], make), vision=False)
        self._made = Engine.buffer(self, without, sizes)
        return self._made


class TokenCounter(WrapsDecoder):
    """A decoder that uses the first `tokens_set` rows of the payload, and zeros after them."""

    def __init__(self, decoder: nn.Module) -> None:
        super().__init__(decoder)
        self.tokens_set = 0
        """N, the rows of the last payload: a plain Python number."""

    @override
    def levels(self, hidden: Tensor, payload: Payload | None) -> Payload | None:
        """Zero the rows after `tokens_set` of one (n, h) per level, for hidden (n, h)."""
        if payload is None:
            return None
        row_n1 = torch.arange(hidden.size(0), device=hidden.device).unsqueeze(1)
        return tuple(level.masked_fill(row_n1 >= self.tokens_set, 0) for level in payload)


class StateInTrace(Engine):
    """An engine that stores the count on its decoder, which reads it while it is traced.

    Tracing reads a Python number once. With its guards, a graph serves one value of it; without them, the
    first value is used for ever. In tpu-inference 2266 deepstack state did not survive jit; with the work
    outside the jitted function, 102 shapes took 1102 compilations (tpu-inference 3181).
    """

    faulty = True

    @override
    def decoder(self, decoder: nn.Module) -> nn.Module:
        """Return the decoder that counts."""
        self._counts = TokenCounter(decoder)
        return self._counts

    @override
    def set(self, buffer: Buffer, payload: Tensor) -> None:
        """Set a payload (levels, N, hidden), and store N."""
        super().set(buffer, payload)
        self._counts.tokens_set = payload.size(1)


class ReadsHeldPayload(WrapsDecoder):
    """Decoder that adds the payload that is stored on it, if there is one, and is given none."""

    def __init__(self, decoder: nn.Module) -> None:
        """Wrap a `deepstack_harness.contract.protocols.Decoder`."""
        super().__init__(decoder)
        self.held: Payload = ()
        """One (n, h) per level; empty in a step without visual tokens."""

    @override
    def levels(self, hidden: Tensor, payload: Payload | None) -> Payload | None:
        """Return the stored payload, one (n, h) per level, for hidden (n, h)."""
        return self.held or payload


class PayloadOnModel(Engine):
    """An engine that stores the payload of a visual step on its decoder, and gives it no argument.

    tpu-inference does so with Qwen3-Omni, and reads the attribute inside a jitted step. What is no argument
    of a trace is fixed when the step is traced: before the first image nothing is stored.
    """

    faulty = True

    @override
    def decoder(self, decoder: nn.Module) -> nn.Module:
        """Return the decoder that reads what is stored on it."""
        self._model, self._visual = ReadsHeldPayload(decoder), False
        return self._model

    @override
    def set(self, buffer: Buffer, payload: Tensor) -> None:
        """Set a payload (levels, N, hidden): the next step is a visual one."""
        super().set(buffer, payload)
        self._visual = True

    @override
    def forward(self, lane: Lane, inputs: Inputs, step: Step) -> Tensor:
        """Store the rows that the buffer returns, decode without an argument, (P, h) -> (P, h)."""
        out = super().forward(lane, inputs, step)
        self._model.held, self._visual = (), False
        return out

    @override
    def _with_payload(self, lane: Lane, inputs: Inputs, tokens: int) -> Inputs:
        """Store the rows (P, h) per level of a visual step, and return the inputs without them."""
        levels = lane.get(tokens) or ()
        self._model.held = levels if self._visual else ()
        return replace(inputs, payload=None)
