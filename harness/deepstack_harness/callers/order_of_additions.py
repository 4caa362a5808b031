"""The same weights, and a payload that is added in another order than in the reference.

In exact arithmetic both are one sum; rounded, they are not.  sglang moved the
addition into the residual stream, as transformers has it, away from where its
inference had it, into the feed-forward's answer, and FP8 grounding drifted by 150
pixels and more (sglang 34690).
"""

from typing import ClassVar

from torch import nn
from typing_extensions import override

from deepstack_harness.callers.engine import Engine
from deepstack_harness.callers.shared_weights import shared_copy
from deepstack_harness.errors import UsageError
from deepstack_harness.families.qwen3_vl import ADDITIONS, DecoderLayer, PayloadOrder


class OrderOfAdditions(Engine):
    """Adds each level to the feed-forward's answer first, where the reference adds it to the whole."""

    order: ClassVar[PayloadOrder] = "into_mlp"

    @override
    def decoder(self, decoder: nn.Module) -> nn.Module:
        """The decoder around the same weights, reordered.

        Raises `UsageError` for one whose layers do not add the payload themselves.
        """
        reordered = shared_copy(decoder)
        layers = [layer for layer in reordered.modules() if isinstance(layer, DecoderLayer)]
        if not layers:
            raise UsageError(
                f"caller order_of_additions knows no other order for {type(decoder).__name__}: "
                "take a family built on Qwen3-VL's layers, such as qwen3_vl"
            )
        for layer in layers:
            layer.add = ADDITIONS[self.order]
        return reordered
