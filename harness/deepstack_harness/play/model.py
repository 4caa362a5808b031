"""Decoders of families, drawn once for all cases of this process, and the distances between their outputs.

`NumericsProbe` measures how far an output is from eager, from the controls without a payload, and from fp64;
it keeps outputs for inputs that it has run (`OutputCache`).  `factory_of` finds the class of a buffer.
"""

import copy
import functools
import hashlib
import math
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

import torch
from torch import Tensor

from deepstack_harness.catalogue.buffers import buffer_named
from deepstack_harness.catalogue.registry import family_named
from deepstack_harness.contract.case import BufferKind, BufferRef
from deepstack_harness.contract.observation import NOT_FINITE, Distances
from deepstack_harness.contract.protocols import BufferFactory, Family, Inputs, Profile, payload_width
from deepstack_harness.contract.trace import Trace
from deepstack_harness.errors import HarnessError, NotMeasured
from deepstack_harness.models.family import parse_device, parse_dtype
from deepstack_harness.play.case_worker import load_buffer

_ENTRIES, _ELEMENTS = 256, 2**16
"""The outputs that are kept, and how long one may be: at most 64 MB in fp32."""


class OutputCache:
    """Outputs (n, hidden) of one decoder by the content of its inputs; the least recently used goes first.

    A hunt draws the hidden states of a step from its seed, so that two of three controls were run before.
    """

    def __init__(self) -> None:
        """Begin empty."""
        self._known: OrderedDict[tuple[bytes, torch.Size], Tensor] = OrderedDict()

    def get(self, inputs: Inputs, run: Callable[[Inputs], Tensor]) -> Tensor:
        """Return the output (n, hidden) for hidden states (n, hidden), positions (3, n); run what is new.

        The payload of the inputs is not looked at.
        """
        if inputs.hidden.numel() > _ELEMENTS:
            return run(inputs)
        key = (_digest(inputs), inputs.hidden.shape)
        if key not in self._known:
            self._known[key] = run(inputs)
        self._known.move_to_end(key)
        if len(self._known) > _ENTRIES:
            self._known.popitem(last=False)
        return self._known[key]


def _digest(inputs: Inputs) -> bytes:
    digest = hashlib.blake2b(digest_size=16)
    for tensor in (inputs.hidden, inputs.positions):
        digest.update(f"{tensor.dtype} {tuple(tensor.shape)} ".encode())
        digest.update(tensor.detach().cpu().contiguous().view(torch.uint8).numpy().tobytes())
    return digest.digest()


_WORDS = 512


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
    ) -> None:
        """Keep the decoder (see `protocols.Decoder`), a copy of it in fp64, and draw a head.

        A level of the payload is `width` wide, by default as wide as the hidden states.

        The head (hidden, words) stands for the language model's, so that a greedy
        choice of words exists as in an evaluation.  Not `thorough`, no copy is made:
        some decoders cannot be copied, and only thorough comparisons need it.
        """
        self._decoder = decoder
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

    def distances(
        self, out: Tensor, parts: Sequence[Inputs], eager: Tensor, *, thorough: bool = True
    ) -> Distances:
        """Compare `out` with `eager`, both (n, h), which used `parts`; max absolute differences.

        Without `thorough` the model without deepstack and the one in fp64 are not run.
        """
        zeroed = torch.cat([self._zeroed.get(part, self._without_values) for part in parts])
        without = torch.cat([self._run(part, None) for part in parts]) if thorough else None
        return Distances(
            eager=distance(out, eager),
            no_deepstack=None if without is None else distance(out, without),
            zero_deepstack=distance(out, zeroed),
            effect=distance(eager, zeroed),
            rounding=distance(eager, self._in_fp64(parts)) if thorough else 0.0,
            greedy=self._agreement(out, eager),
        )

    def _agreement(self, out: Tensor, eager: Tensor) -> float:
        """Share of tokens for which both would choose the same word of the random vocabulary."""
        if out.shape != eager.shape:
            return 0.0
        chosen, wanted = ((hidden.float() @ self._head).argmax(-1) for hidden in (out, eager))
        return (chosen == wanted).double().mean().item()

    def _without_values(self, part: Inputs) -> Tensor:
        shape = (part.hidden.size(0), self._width)
        return self._run(part, tuple(part.hidden.new_zeros(shape) for _ in range(self._levels)))

    def _run(self, part: Inputs, payload: tuple[Tensor, ...] | None) -> Tensor:
        out: Tensor = self._decoder(part.hidden, part.positions, payload)
        return out

    def _in_fp64(self, parts: Sequence[Inputs]) -> Tensor:
        return torch.cat([self._exact_run(part) for part in parts])

    def _exact_run(self, part: Inputs) -> Tensor:
        payload = None if part.payload is None else tuple(level.double() for level in part.payload)
        out: Tensor = self._exact(part.hidden.double(), part.positions, payload)
        return out


def distance(one: Tensor, other: Tensor) -> float:
    """Return the largest absolute difference in fp64 of two tensors of one shape.

    `NOT_FINITE` stands for NaN, infinity or another shape.

    Raises `NotMeasured` where both are empty: nothing was compared.
    """
    if one.shape != other.shape:
        return NOT_FINITE
    if not one.numel():
        raise NotMeasured("compared outputs of 0 tokens, which shows nothing")
    value = (one.double() - other.double()).abs().max().item()
    return value if math.isfinite(value) else NOT_FINITE


@dataclass(frozen=True)
class Model:
    """A family's decoder, made once and shared by all cases of one dtype, device and seed."""

    family: Family
    decoder: torch.nn.Module
    numerics: NumericsProbe
    dtype: torch.dtype
    device: torch.device

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
            parse_dtype(trace.dtype) if trace.dtype else self.dtype,
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
