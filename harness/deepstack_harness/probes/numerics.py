"""Measure how far a run is from eager, from its controls, and from fp64."""

import copy
import math
from collections.abc import Sequence

import torch
from torch import Tensor

from deepstack_harness.contract.observation import NOT_FINITE, Distances
from deepstack_harness.contract.protocols import Inputs
from deepstack_harness.errors import NotMeasured
from deepstack_harness.probes.output_cache import OutputCache

_WORDS = 512


class NumericsProbe:
    """Probe that compares outputs of one decoder; it runs the references uncompiled, in the case's dtype."""

    def __init__(self, decoder: torch.nn.Module, levels: int, hidden: int, *, thorough: bool = True) -> None:
        """Keep the decoder (see `protocols.Decoder`), a copy of it in fp64, and draw a head.

        The head (hidden, words) stands for the language model's, so that a greedy
        choice of words exists as in an evaluation.  Not `thorough`, no copy is made:
        some decoders cannot be copied, and only thorough comparisons need it.
        """
        self._decoder = decoder
        self._exact = copy.deepcopy(decoder).double() if thorough else decoder
        self._levels = levels
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
        return self._run(part, tuple(torch.zeros_like(part.hidden) for _ in range(self._levels)))

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
