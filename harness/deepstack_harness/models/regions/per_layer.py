"""A stack of layers with embeddings of their own for each token, as Gemma's, and mutants of it.

The caller looks the rows of all layers up and copies them into a buffer, (capacity, layers, H); a step reads
those of its tokens.
"""

from typing import Any

import torch
from torch import Tensor, nn

from deepstack_harness.models.regions.program import H, RegionProgram, Steps, at, halves, rows

CAPACITY, LAYERS = 10, 2


class PerLayerStack(RegionProgram):
    """Layers that add the row of their token, from a buffer at the places `taken` (n,)."""

    right = True
    per_layer: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(H, H) for _ in range(LAYERS))
        self.register_buffer("per_layer", rows(CAPACITY * LAYERS, 8).view(CAPACITY, LAYERS, H))

    def forward(self, hidden: Tensor, taken: Tensor) -> Tensor:
        return self.stack(hidden, self.rows_of(hidden, taken))

    def rows_of(self, hidden: Tensor, taken: Tensor) -> Tensor:
        """Return the rows of this step, (n, layers, H)."""
        return self.per_layer[taken]

    def stack(self, hidden: Tensor, embedded: Tensor) -> Tensor:
        for number, layer in enumerate(self.layers):
            hidden = layer(hidden) * embedded[:, number]
        return hidden

    @classmethod
    def steps(cls) -> Steps:
        return [
            {"hidden": rows(4), "taken": at(0, 1, 2, 3)},
            {"hidden": rows(6, 1), "taken": at(2, 3, 4, 5, 6, 7)},
            {"hidden": rows(2, 2), "taken": at(0, 1)},
        ]

    @staticmethod
    def neutral(taken: Tensor, region: "PerLayerStack", **_: object) -> list[Tensor]:
        """Rows of the buffer that are not of this step."""
        return [region.per_layer[row] for row in {*range(CAPACITY)} - {*taken.tolist()}]

    @staticmethod
    def split(hidden: Tensor, **others: Tensor) -> list[dict[str, Any]]:
        """Two micro-batches."""
        return halves(count=len(hidden), hidden=hidden, **others)


class EmbeddingsLater(PerLayerStack):
    """Embeddings as an argument that is None in the warm-up."""

    promise = "I1"
    arms = "eager/drop_all aot_eager/drop_all"

    def forward(self, hidden: Tensor, taken: Tensor, given: Tensor | None = None) -> Tensor:
        return self.stack(hidden, self.rows_of(hidden, taken) if given is None else given)

    @classmethod
    def steps(cls) -> Steps:
        first, second, *_ = super().steps()
        return [first, {**second, "given": rows(12, 5).view(6, LAYERS, H)}]


class LayersOfTheStage(PerLayerStack):
    """How many layers of the stage run is a Python number of the caller."""

    promise = "I1"

    def forward(self, hidden: Tensor, taken: Tensor, until: int = 1) -> Tensor:
        embedded = self.rows_of(hidden, taken)
        for number in range(until):
            hidden = self.layers[number](hidden) * embedded[:, number]
        return hidden

    @classmethod
    def steps(cls) -> Steps:
        first, second, *_ = super().steps()
        return [first, {**second, "until": 2}]


class BufferMadeLater(PerLayerStack):
    """A buffer that is made with the first request, and None in the warm-up."""

    promise = "I1"
    arms = "eager/drop_all aot_eager/drop_all"

    def __init__(self) -> None:
        super().__init__()
        self.scales: Tensor | None = None

    def stack(self, hidden: Tensor, embedded: Tensor) -> Tensor:
        return super().stack(hidden, embedded if self.scales is None else embedded * self.scales)

    @classmethod
    def steps(cls) -> Steps:
        first, *rest = super().steps()
        return [first, lambda region: setattr(region, "scales", torch.full((H,), 3.0)), *rest]


class OneTensorForEachLayer(PerLayerStack):
    """Embeddings as a tuple with one tensor for each layer, () in the warm-up."""

    promise = "I1"
    unasked = "split"  # a tuple is not cut

    def forward(self, hidden: Tensor, taken: Tensor, levels: tuple[Tensor, ...] = ()) -> Tensor:
        answer = super().forward(hidden, taken)
        return answer + sum(levels) if levels else answer

    @classmethod
    def steps(cls) -> Steps:
        first, second, *_ = super().steps()
        return [first, {**second, "levels": (rows(6, 3), rows(6, 4))}]


class FreshEmbeddings(EmbeddingsLater):
    """Embeddings in new memory in each step, while tokens are static (SGLang #25284)."""

    promise = "I2"
    arms = "eager/full"

    @classmethod
    def steps(cls) -> Steps:
        first, *_ = PerLayerStack.steps()
        return [{**first, "given": rows(8, seed).view(4, LAYERS, H)} for seed in (1, 2)]


class GrownBuffer(PerLayerStack):
    """A buffer that grows between two replays."""

    promise = "I2"
    arms = "eager/full"

    @classmethod
    def steps(cls) -> Steps:
        first, *_ = super().steps()

        def grow(region: PerLayerStack) -> None:
            region.per_layer = torch.cat([region.per_layer, region.per_layer]) * 2

        return [first, grow, first]


class LevelsFirst(EmbeddingsLater):
    """Embeddings whose strides say whether layers or tokens come first in memory."""

    promise = "I2"
    arms = "eager/drop_all"

    def stack(self, hidden: Tensor, embedded: Tensor) -> Tensor:
        return super().stack(hidden, embedded if embedded.is_contiguous() else embedded.flip(1))

    @classmethod
    def steps(cls) -> Steps:
        first, *_ = PerLayerStack.steps()
        given = rows(8, 1).view(4, LAYERS, H)
        other = rows(8, 2).view(LAYERS, 4, H).transpose(0, 1)
        return [{**first, "given": given}, {**first, "given": other}]


class PackedIds(PerLayerStack):
    """Places that hold a bit of their own in 64 bits and none in 32."""

    promise = "I2"
    unasked = "neutral"

    def rows_of(self, hidden: Tensor, taken: Tensor) -> Tensor:
        return super().rows_of(hidden, taken % 8 if taken.dtype is torch.int64 else taken // 2)

    @classmethod
    def steps(cls) -> Steps:
        first, second, *_ = super().steps()
        return [first, {**second, "taken": second["taken"].int()}]


class ScaledByTheBuffer(PerLayerStack):
    """Rows are scaled by the largest of the whole buffer."""

    promise = "I3"

    def rows_of(self, hidden: Tensor, taken: Tensor) -> Tensor:
        return super().rows_of(hidden, taken) / self.per_layer.abs().amax()

    unasked = "split"


class RowBehind(PerLayerStack):
    """Each token takes the row behind its own as well."""

    promise = "I3"

    def rows_of(self, hidden: Tensor, taken: Tensor) -> Tensor:
        behind = self.per_layer[(taken + 1) % CAPACITY]
        return super().rows_of(hidden, taken) + 0.01 * behind

    unasked = "split"


class SumOfAllRows(PerLayerStack):
    """A product with a one-hot matrix that has ones for the rows of a longer step."""

    promise = "I3"

    def rows_of(self, hidden: Tensor, taken: Tensor) -> Tensor:
        chosen = torch.arange(CAPACITY) == taken.unsqueeze(1)
        chosen = chosen | (torch.arange(CAPACITY) == CAPACITY - 1)
        return torch.einsum("nc,clh->nlh", chosen.float(), self.per_layer)

    unasked = "split"


class FilledInPython(PerLayerStack):
    """How many rows are filled is counted in Python behind each step."""

    promise = "I4"
    arms = "eager/drop_all eager/full"

    def __init__(self) -> None:
        super().__init__()
        self.filled = 0

    def stack(self, hidden: Tensor, embedded: Tensor) -> Tensor:
        self.filled = self.filled + 4
        return super().stack(hidden, embedded)

    @classmethod
    def steps(cls) -> Steps:
        first, *_ = super().steps()
        return [first, first, first]


class ClearsBehind(PerLayerStack):
    """A step clears the rows that it read, if the module says so, which it does behind the warm-up."""

    promise = "I4"
    arms = "eager/drop_all aot_eager/drop_all"

    def __init__(self) -> None:
        super().__init__()
        self.clearing = False

    def forward(self, hidden: Tensor, taken: Tensor) -> Tensor:
        answer = super().forward(hidden, taken)
        if self.clearing:
            self.per_layer[taken] = 0.0
        return answer

    @classmethod
    def steps(cls) -> Steps:
        first, *rest = super().steps()
        return [first, lambda region: setattr(region, "clearing", True), *rest]


@torch.library.custom_op("deepstack_regions::use_up", mutates_args=())
def _use_up(cache: Tensor, by: float) -> Tensor:
    """Write to a buffer without saying so; answer its first row."""
    cache.add_(by)
    return cache[0].clone()


@_use_up.register_fake
def _(cache: Tensor, by: float) -> Tensor:  # noqa: ARG001  # named as those of the operation
    return torch.empty_like(cache[0])


class UsedUpTwice(PerLayerStack):
    """Two equal calls of an operation that writes unsaid: the compiler makes one of them."""

    promise = "I4"
    unasked = "split"  # each part writes
    arms = "aot_eager/stock aot_eager/drop_all"

    def forward(self, hidden: Tensor, taken: Tensor) -> Tensor:
        answer = super().forward(hidden, taken)
        first, second = _use_up(self.per_layer, 0.5), _use_up(self.per_layer, 0.5)
        return answer + 0 * (first + second).sum()

    @classmethod
    def steps(cls) -> Steps:
        first, *_ = super().steps()
        return [first, first]


class RowsFromZero(PerLayerStack):
    """Each micro-batch reads the rows of the buffer from the first one on (Gemma 4 on later stages)."""

    promise = "I5"

    def rows_of(self, hidden: Tensor, taken: Tensor) -> Tensor:
        return self.per_layer[: len(taken)]

    unasked = "neutral"


class ClearsForAll(PerLayerStack):
    """The first micro-batch clears the rows of all."""

    promise = "I5"

    def forward(self, hidden: Tensor, taken: Tensor) -> Tensor:
        answer = super().forward(hidden, taken)
        self.per_layer.zero_()
        return answer

    @classmethod
    def steps(cls) -> Steps:
        def fill(region: PerLayerStack) -> None:
            region.per_layer.copy_(rows(CAPACITY * LAYERS, 8).view(CAPACITY, LAYERS, H))

        first, second, third = super().steps()
        return [first, fill, second, fill, third]

    unasked = "neutral"


class LastRowForAll(PerLayerStack):
    """The last token of a micro-batch says what all of its tokens add."""

    promise = "I5"

    def rows_of(self, hidden: Tensor, taken: Tensor) -> Tensor:
        return super().rows_of(hidden, taken) + self.per_layer[taken[-1:]]

    unasked = "neutral"
