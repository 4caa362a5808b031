"""Gemma's per-layer inputs in engines: the buffer that holds them, and its callers, right and wrong.

The payload is (rows, levels, width) in one tensor. Every step writes the rows of its own tokens, nothing
clears them, and the rows after them are those of a longer step. The first pipeline stage mixes the payload
with the token embeddings, for the layers of all stages, and sends the mix on with the hidden states.
Read in vLLM 0.22.1 to 0.33.0 (`gemma4_mm.py`, `gemma4.py`, `gemma3n_mm.py`), SGLang 0.5.23
(`gemma4_causal.py`) and the pull requests that the classes name.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import ClassVar

import torch
from torch import Tensor, nn
from typing_extensions import override

from deepstack_harness.contract.protocols import Buffer, BufferFactory, Inputs, Lane, Profile
from deepstack_harness.contract.trace import Op, Step
from deepstack_harness.errors import StepUnavailable, UsageError
from deepstack_harness.models.engine import Engine, Payload, WrapsDecoder, layers_of
from deepstack_harness.models.gemma4 import Gemma4Decoder


class PerLayerInputsBuffer:
    """Gemma 3n and Gemma 4 in vLLM up to 0.33.0: each set writes its own rows, and nothing clears any."""

    def __init__(
        self, capacity: int, hidden: int, levels: int, *, dtype: torch.dtype, device: torch.device
    ) -> None:
        """Allocate one zeroed tensor (capacity, levels, hidden), where `hidden` is the width of a level."""
        self._rows = torch.zeros(capacity, levels, hidden, dtype=dtype, device=device)

    @property
    def capacity(self) -> int:
        """Token rows."""
        return self._rows.size(0)

    def get(self, tokens: int) -> tuple[Tensor, ...] | None:
        """Return a slice (min(tokens, capacity), width) of every level.

        Rows after N are those of earlier steps.
        """
        return self._rows[:tokens].unbind(1)

    def set(self, payload: Tensor) -> None:
        """Copy a payload (levels, N, width) into rows [0, N); above the capacity torch raises."""
        self._rows[: payload.size(1)].copy_(payload.transpose(0, 1))

    def clear(self, tokens: int) -> None:
        """Do nothing: upstream has no such call."""

    def resize(self, tokens: int) -> None:
        """Raise `StepUnavailable`: upstream has no such call."""
        raise StepUnavailable(f"{type(self).__name__} has no resize")


class SentTensors:
    """The tensors that one pipeline stage sends to the next, by name; they are read only by `[name]`."""

    def __init__(self, tensors: Mapping[str, Tensor]) -> None:
        """Take hidden states (n, h), and the mixed payload (n, levels, width)."""
        self.tensors = tensors

    def __getitem__(self, name: str) -> Tensor:
        """Return a tensor; raises `KeyError` for a name that was not sent."""
        return self.tensors[name]


class Gemma4Stages(nn.Module):
    """The layers of a Gemma 4 decoder in two stages; the mix is made by the first, the norm by the second."""

    def __init__(self, decoder: nn.Module) -> None:
        """Take a `Gemma4Decoder`; raises `UsageError` for another decoder, whose payload is not mixed."""
        super().__init__()
        if not isinstance(decoder, Gemma4Decoder):
            raise UsageError(
                f"{type(decoder).__name__} takes no per-layer inputs: take a family built on Gemma 4's "
                "decoder, such as gemma4"
            )
        self.decoder = decoder
        self.first_layers = len(layers_of(decoder)) // 2

    @override
    def forward(self, hidden: Tensor, positions: Tensor, payload: Payload | None) -> Tensor:
        """Run both stages -> (n, h).

        Hidden (n, h), positions (3, n) int64, one (n, width) per level or None.
        """
        mixed = self.decoder.mixed(hidden, payload)
        between = self.decoder.run_layers(hidden, positions, mixed, end=self.first_layers)
        sent = SentTensors({"hidden_states": between, "per_layer_inputs": mixed})
        return self.second(positions, sent, None)

    def second(self, positions: Tensor, sent: SentTensors, per_layer_inputs: Tensor | None) -> Tensor:
        """Run the second stage: positions (3, n), what was sent, (n, levels, width) or None -> (n, h).

        `per_layer_inputs` is the argument of the model's own forward, which no caller gives a later stage.
        """
        return self.layers_and_norm(positions, sent["hidden_states"], sent["per_layer_inputs"])

    def layers_and_norm(self, positions: Tensor, hidden: Tensor, mixed: Tensor | None) -> Tensor:
        """Run the layers of the second stage: (3, n), (n, h), (n, levels, width) or None -> (n, h)."""
        out: Tensor = self.decoder.norm(
            self.decoder.run_layers(hidden, positions, mixed, start=self.first_layers)
        )
        return out


class PerLayerPipeline(Engine):
    """An engine of two stages that sends per-layer inputs on with the hidden states."""

    faulty = False
    _wrapper: ClassVar[type[Gemma4Stages]] = Gemma4Stages


class _AsksByGet(Gemma4Stages):
    @override
    def second(self, positions: Tensor, sent: SentTensors, per_layer_inputs: Tensor | None) -> Tensor:
        """Run the second stage: positions (3, n), what was sent, (n, levels, width) or None -> (n, h)."""
        mixed: Tensor | None = sent.get("per_layer_inputs")  # type: ignore[attr-defined]  # the fault
        return self.layers_and_norm(positions, sent["hidden_states"], mixed)


class PerLayerPipelineRaises(PerLayerPipeline):
    """An engine whose later stages read the sent tensors by a missing method (vLLM 0.19, 0.20)."""

    faulty = True
    _wrapper = _AsksByGet


class GraphedStages(Gemma4Stages):
    """Two stages, of which the second one is replayed from static slots while `replays` is set."""

    slots: ClassVar[Sequence[str]] = ("hidden_states", "per_layer_inputs")

    def __init__(self, decoder: nn.Module) -> None:
        """Start without slots: they are made at capture."""
        super().__init__(decoder)
        self.replays = False
        self._held: dict[tuple[str, int], Tensor] = {}

    @override
    def second(self, positions: Tensor, sent: SentTensors, per_layer_inputs: Tensor | None) -> Tensor:
        """Run the second stage: positions (3, n), what was sent, (n, levels, width) or None -> (n, h)."""
        if not self.replays:
            return super().second(positions, sent, per_layer_inputs)
        held = {name: self._copied(name, sent[name]) for name in self.slots if name in sent.tensors}
        return self.layers_and_norm(positions, held["hidden_states"], held.get("per_layer_inputs"))

    def _copied(self, name: str, tensor: Tensor) -> Tensor:
        slot = self._held.setdefault((name, len(tensor)), torch.empty_like(tensor))
        return slot.copy_(tensor)


class PerLayerStageGraphs(PerLayerPipeline):
    """An engine of two stages whose replays copy every tensor that is sent into a static slot."""

    faulty = False
    _wrapper: ClassVar[type[GraphedStages]] = GraphedStages

    @override
    def decoder(self, decoder: nn.Module) -> nn.Module:
        """Return the decoder in two stages."""
        self._made = self._wrapper(decoder)
        return self._made

    @override
    def inputs(self, step: Step, inputs: Inputs) -> Inputs:
        """Return the inputs of a step as they are; note whether a graph runs it."""
        self._made.replays = step.op in {Op.CAPTURE, Op.REPLAY}
        return inputs


class _KeepsTwo(GraphedStages):
    slots = ("hidden_states", "residual")


class PerLayerStageGraphsDrop(PerLayerStageGraphs):
    """An engine whose stage graphs have slots only for hidden_states and residual (sglang 25284).

    What else was sent is dropped at each replay, silently; steps without a graph are right.
    """

    faulty = True
    _wrapper = _KeepsTwo


class StepOfState(WrapsDecoder):
    """A step as a pure function of its arguments and of a state that was read from the model at load.

    torchax's jitted steps are: what Python writes into a plain attribute later is in no state.
    """

    def __init__(self, decoder: nn.Module) -> None:
        """Wrap a `deepstack_harness.contract.protocols.Decoder`."""
        super().__init__(decoder)
        self.state: dict[str, Tensor] = {}

    @override
    def levels(self, hidden: Tensor, payload: Payload | None) -> Payload:
        """Return rows (n, width) per level of the state (capacity, levels, width), for hidden (n, h)."""
        return self.state["per_layer_embeddings"][: hidden.size(0)].unbind(1)


class PerLayerInAttribute(Engine):
    """An engine that copies the payload into an attribute that no jitted step reads (tpu-inference 3406)."""

    faulty = True

    @override
    def decoder(self, decoder: nn.Module) -> nn.Module:
        """Return the decoder as a jitted step."""
        self._step = StepOfState(decoder)
        return self._step

    @override
    def buffer(self, make: BufferFactory, sizes: Profile) -> Buffer:
        """Make the attribute (capacity, levels, width), and the state that is read from it once."""
        shape = (sizes.capacity, sizes.levels, sizes.hidden)
        self.per_layer_embeddings = torch.zeros(shape, dtype=sizes.dtype, device=sizes.device)
        self._step.state = {"per_layer_embeddings": self.per_layer_embeddings.clone()}
        return super().buffer(make, sizes)

    @override
    def _with_payload(self, lane: Lane, inputs: Inputs, tokens: int) -> Inputs:
        """Copy the rows of P tokens into the attribute, and return the inputs without them."""
        for index, rows in enumerate(lane.get(tokens) or ()):
            self.per_layer_embeddings[: len(rows), index].copy_(rows)
        return replace(inputs, payload=None)


class OmitsZeroPayload(Engine):
    """An engine that takes a payload of zeros for none, and writes nothing (TensorRT-LLM 18207).

    A graph's static input then holds what the replay before it was given, in place of its default.
    """

    faulty = True

    @override
    def set(self, buffer: Buffer, payload: Tensor) -> None:
        """Set a payload (levels, N, width) that is not zero; drop another."""
        if payload.any():
            super().set(buffer, payload)


class ScalesByAllRows(WrapsDecoder):
    """A decoder that rounds the payload to 256 steps of its largest value, padding included."""

    @override
    def levels(self, hidden: Tensor, payload: Payload | None) -> Payload | None:
        """Round each level (n, width) to multiples of 1/128 of the largest absolute value in it."""
        rounded = []
        for level in payload or ():
            step = level.abs().amax() / 128 + torch.finfo(level.dtype).tiny
            rounded.append((level / step).round() * step)
        return payload and tuple(rounded)


class PaddingSetsScale(Engine):
    """An engine that quantises the payload by one scale for all rows, so that padding moves real rows."""

    faulty = True
    _wrapper = ScalesByAllRows
