"""A caller whose decoder adds the payload in another order than the reference.

In exact arithmetic both orders give the same sum, rounded they do not.  sglang had added the payload to the
feed-forward's answer, and moved the addition into the residual stream, as in transformers.  FP8 grounding
drifted by 150 pixels and more (sglang 34690).
"""

from typing import ClassVar

from torch import nn
from typing_extensions import override

from deepstack_harness.callers.decoder_copies import shared_copy
from deepstack_harness.callers.engine import Engine
from deepstack_harness.errors import UsageError
from deepstack_harness.families.qwen3_vl import ADDITIONS, PayloadOrder, QwenDecoderLayer


class OrderOfAdditions(Engine):
    """An engine that adds each level to the feed-forward's answer first, and the reference to the sum."""

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
