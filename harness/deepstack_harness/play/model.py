"""Decoders of families, drawn once for all cases of this process, and the distances between their outputs.

`NumericsProbe` measures how far an output is from eager, from the controls without a payload, and from fp64;
it caches outputs of inputs that it has run (`OutputCache`). `factory_of` finds the class of a buffer.
"""

import copy
import functools
import hashlib
import math
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from types import MappingProxyType

import torch
from torch import Tensor

from deepstack_harness.catalogue.buffers import buffer_named
from deepstack_harness.catalogue.registry import family_named
from deepstack_harness.compile.distances import apart
from deepstack_harness.compile.torch_compat.modes import OtherLastBits, at_random
from deepstack_harness.contract.case import BufferKind, BufferRef
from deepstack_harness.contract.observation import NOT_FINITE, Distances
from deepstack_harness.contract.protocols import BufferFactory, Family, Inputs, Profile, payload_width
from deepstack_harness.contract.trace import Trace
from deepstack_harness.errors import HarnessError, NotMeasured
from deepstack_harness.models.family import parse_buffer_dtype, parse_device, parse_dtype
from deepstack_harness.play.loading import load_buffer
from deepstack_harness.play.state import DecoderState, apart_at

_ENTRIES, _ELEMENTS = 256, 2**16
"""The number of cached outputs, and the most elements of one: at most 64 MB in fp32."""


class OutputCache:
    """Outputs (n, hidden) of one decoder by the content of its inputs; the least recently used is dropped.

    A hunt draws the hidden states of a step from its seed, so two of three controls have been run before.
    """

    def __init__(self) -> None:
        """Begin empty."""
        self._known: OrderedDict[tuple[bytes, torch.Size], Tensor] = OrderedDict()

    def get(self, inputs: Inputs, run: Callable[[Inputs], Tensor]) -> Tensor:
        """Return the output (n, hidden) for hidden states (n, hidden), positions (3, n); run what is new.

        The payload of the inputs is not part of the key.
        """
        if inputs.hidden.numel() > _ELEMENTS:
            return run(inputs)
        digest = hashlib.blake2b(digest_size=16)
        for tensor in (inputs.hidden, inputs.positions):
            digest.update(f"{tensor.dtype} {tuple(tensor.shape)} ".encode())
            digest.update(tensor.detach().cpu().contiguous().view(torch.uint8).numpy().tobytes())
        key = (digest.digest(), inputs.hidden.shape)
        if key not in self._known:
            self._known[key] = run(inputs)
        self._known.move_to_end(key)
        if len(self._known) > _ENTRIES:
            self._known.popitem(last=False)
        return self._known[key]


_WORDS = 512
"""Words of the drawn vocabulary in which greedy choices are compared."""
_NOISY_RUNS = 2
"""Eager runs with results moved at random; the larger distance counts. A single draw may cancel itself."""


class NumericsProbe:
    """Probe that compares outputs of one decoder; it runs the references uncompiled, in the case's dtype."""

    def __init__(
        self,
        decoder: torch.nn.Module,
        levels: int,
        hidden: int,
        *,
        width: int | None = None,
        thorough: bool = True,
        state: DecoderState | None = None,
        each_level: bool = False,
    ) -> None:
        """Take the decoder (see `protocols.Decoder`), copy it in fp64, and draw a head.

        A level of the payload is `width` wide, by default as wide as the hidden states.

        The head (hidden, words) takes the place of the language model's, so that there is a greedy choice of
        words as in an evaluation. Without `thorough` no copy is made: some decoders cannot be copied, and
        only thorough comparisons need it.

        With `state` every run but `eager` leaves the decoder's state as it was, and the rounding is measured
        in two ways. With `each_level` the effect of every level of the payload is measured separately.
        """
        self._decoder = decoder
        self._state = state
        self._each_level = each_level
        self.noise: Mapping[str, float] = {}
        """How far another rounding moves the state that the last step left, by place."""
        self._exact = copy.deepcopy(decoder).double() if thorough else decoder
        self._levels = levels
        self._width = hidden if width is None else width
        self._zeroed = OutputCache()
        head = torch.randn(hidden, _WORDS, generator=torch.Generator().manual_seed(0))
        held = next(decoder.parameters(), head)
        self._head = head.to(held.device)

    def eager(self, parts: Sequence[Inputs]) -> Tensor:
        """Return the reference output (n, hidden) of a step whose sequences are `parts`."""
        return torch.cat([self._run(part, part.payload) for part in parts])

    def effects(self, parts: Sequence[Inputs], *, thorough: bool) -> Distances:
        """Return the distances of the uncompiled output to its controls, and leave the state as it was."""
        with self._preserved():
            eager = self.eager(parts)
        return self.distances(eager, parts, eager, thorough=thorough)

    def distances(
        self, out: Tensor, parts: Sequence[Inputs], eager: Tensor, *, thorough: bool = True
    ) -> Distances:
        """Compare `out` with `eager`, both (n, h), which used `parts`; max absolute differences.

        Without `thorough` the model without deepstack and the one in fp64 are not run.
        """
        with self._preserved():  # from the cache, where no state could change the output
            run = self._zeroed_run
            zeroed = torch.cat(
                [self._zeroed.get(part, run) if self._state is None else run(part) for part in parts]
            )
        without, rounding, repeated = None, 0.0, 0.0
        if thorough:
            with self._preserved():
                without = torch.cat([self._run(part, None) for part in parts])
            with self._preserved():
                rounding = distance(eager, self._in_fp64(parts))
        if self._state is not None:
            rounding = max(rounding, self._noise(parts, eager, self._state))
            with self._preserved():
                repeated = distance(self.eager(parts), eager)
        scale = eager.double().abs().max().item() if eager.numel() else 0.0
        return Distances(
            eager=distance(out, eager),
            no_deepstack=None if without is None else distance(out, without),
            zero_deepstack=distance(out, zeroed),
            effect=distance(eager, zeroed),
            rounding=rounding,
            greedy=self._agreement(out, eager),
            scale=scale if math.isfinite(scale) else NOT_FINITE,
            repeated=repeated,
            levels=tuple(self._effects_of_levels(parts, eager)) if self._each_level else (),
        )

    def _effects_of_levels(self, parts: Sequence[Inputs], eager: Tensor) -> Iterator[float]:
        """Yield how far the output is moved by zeroing one level; nothing where a part has no payload."""
        payloads = [part.payload for part in parts if part.payload is not None]
        for number in range(self._levels if len(payloads) == len(parts) else 0):
            without = [
                tuple(torch.zeros_like(rows) if at == number else rows for at, rows in enumerate(levels))
                for levels in payloads
            ]
            with self._preserved():
                runs = [self._run(part, levels) for part, levels in zip(parts, without, strict=True)]
            yield distance(eager, torch.cat(runs))

    def _preserved(self) -> AbstractContextManager[None]:
        return nullcontext() if self._state is None else self._state.preserved()

    def _noise(self, parts: Sequence[Inputs], eager: Tensor, state: DecoderState) -> float:
        """Return how far the output is moved by other last bits of every operation, as another order gives.

        Where no state is watched the distance to fp64 is the rounding.
        """
        with self._preserved():
            self.eager(parts)
            after = state.take().values
        largest, noise = 0.0, dict[str, float]()
        for seed in range(_NOISY_RUNS):
            generator = torch.Generator().manual_seed(seed)
            with self._preserved():
                with OtherLastBits(functools.partial(at_random, generator)):
                    out = self.eager(parts)
                largest = max(largest, distance(out, eager))
                moved = state.take().values
            for place in moved.keys() & after.keys():
                noise[place] = max(noise.get(place, 0.0), apart_at(place, moved, after))
        self.noise = noise
        return largest

    def _in_fp64(self, parts: Sequence[Inputs]) -> Tensor:
        """Return the output (n, hidden) of a copy in fp64, in the state that the decoder has now."""
        if self._state is not None:
            self._exact = copy.deepcopy(self._decoder).double()
        outputs = []
        for part in parts:
            payload = None if part.payload is None else tuple(level.double() for level in part.payload)
            outputs.append(self._exact(part.hidden.double(), part.positions, payload))
        return torch.cat(outputs)

    def _agreement(self, out: Tensor, eager: Tensor) -> float:
        """Share of tokens for which both would choose the same word of the random vocabulary."""
        if out.shape != eager.shape:
            return 0.0
        chosen, wanted = ((hidden.float() @ self._head).argmax(-1) for hidden in (out, eager))
        return (chosen == wanted).double().mean().item()

    def _zeroed_run(self, part: Inputs) -> Tensor:
        shape = (part.hidden.size(0), self._width)
        return self._run(part, tuple(part.hidden.new_zeros(shape) for _ in range(self._levels)))

    def _run(self, part: Inputs, payload: tuple[Tensor, ...] | None) -> Tensor:
        out: Tensor = self._decoder(part.hidden, part.positions, payload)
        return out


def distance(one: Tensor, other: Tensor) -> float:
    """Return how far two outputs are `apart`; raises `NotMeasured` where both are empty."""
    if one.shape == other.shape and not one.numel():
        raise NotMeasured("compared outputs of 0 tokens, which shows nothing")
    return apart(one, other)


@dataclass(frozen=True)
class Model:
    """A family's decoder, made once and shared by all cases of one dtype, device and seed.

    `state` is there for a decoder that may keep some from call to call; families of ours keep none.
    Payloads are drawn with the standard deviation `payload_scale`.
    """

    family: Family
    decoder: torch.nn.Module
    numerics: NumericsProbe
    dtype: torch.dtype
    device: torch.device
    state: DecoderState | None = None
    payload_scale: float = 1.0

    @classmethod
    def build(cls, family: str, dtype: str = "float32", device: str = "cpu", seed: int = 0) -> "Model":
        """Draw the weights.

        Raises `UsageError` for an unknown name, `MachineError` for a device that is not here.
        """
        sizes = family_named(family)
        torch_dtype, torch_device = parse_dtype(dtype), parse_device(device)
        decoder = sizes.build(dtype=torch_dtype, device=torch_device, seed=seed)
        numerics = NumericsProbe(decoder, sizes.levels, sizes.hidden, width=payload_width(sizes))
        return cls(sizes, decoder, numerics, torch_dtype, torch_device)

    def profile(self, capacity: int) -> Profile:
        """Return the largest sizes of a trace with this capacity."""
        return Profile(capacity, payload_width(self.family), self.family.levels, self.dtype, self.device)

    def sizes(self, trace: Trace) -> Profile:
        """Return the sizes of the trace's buffer: the family's, where the trace states no others."""
        return Profile(
            trace.capacity,
            trace.hidden or payload_width(self.family),
            trace.levels or self.family.levels,
            parse_buffer_dtype(trace.dtype) if trace.dtype else self.dtype,
            self.device,
        )


Bound = Mapping[BufferRef, BufferFactory]
"""Factories of the buffers that no name leads to: classes of sources, live objects."""

NOTHING_BOUND: Bound = MappingProxyType({})


def factory_of(buffer: BufferRef, bound: Bound = NOTHING_BOUND) -> BufferFactory:
    """Return what makes a buffer; raises `UsageError` for an unknown name or class."""
    if buffer in bound:
        return bound[buffer]
    if buffer.kind is BufferKind.USER:
        return load_buffer(buffer.name)
    if buffer.kind is BufferKind.REGISTERED:
        return buffer_named(buffer.name)
    raise HarnessError(f"{buffer.kind} buffer '{buffer.name}' was not bound before its case was played")


@functools.cache
def shared_model(family: str, dtype: str, device: str, seed: int) -> Model:
    """Draw the weights once: no run changes them."""
    return Model.build(family, dtype, device, seed)
