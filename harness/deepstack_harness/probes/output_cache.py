"""A cache of a decoder's outputs for inputs that were seen before."""

import hashlib
from collections import OrderedDict
from collections.abc import Callable

import torch
from torch import Tensor

from deepstack_harness.contract.protocols import Inputs

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
