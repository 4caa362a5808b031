"""A stack of layers with embeddings of their own for each token, as Gemma's, and mutants of it.

The caller looks the rows of all layers up and copies them into a buffer, (capacity, layers, H); a step reads
those of its tokens.
"""

import torch
from torch import Tensor, nn

from deepstack_harness.models.regions.program import (
    H,
    RegionProgram,
    Steps,
    after,
    again,
    before,
    between,
    between_all,
    changed,
    count,
    halves,
    indices,
    rows,
    then,
)

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
            {"hidden": rows(4), "taken": indices(0, 1, 2, 3)},
            {"hidden": rows(6, 1), "taken": indices(2, 3, 4, 5, 6, 7)},
            {"hidden": rows(2, 2), "taken": indices(0, 1)},
        ]

    @staticmethod
    def neutral(taken: Tensor, region: "PerLayerStack", **_: object) -> list[Tensor]:
        """Rows of the buffer that are not of this step."""
        return [region.per_layer[row] for row in {*range(CAPACITY)} - {*taken.tolist()}]

    split = staticmethod(halves)


def _stack_given(self: PerLayerStack, hidden: Tensor, taken: Tensor, given: Tensor | None = None) -> Tensor:
    return self.stack(hidden, self.rows_of(hidden, taken) if given is None else given)


EmbeddingsLater = changed(
    PerLayerStack, "EmbeddingsLater", "I1",
    "Embeddings as an argument that is None in the warm-up.",
    lambda first, second, _: [first, {**second, "given": rows(12, 5).view(6, LAYERS, H)}],
    arms="eager/drop_all aot_eager/drop_all",
    forward=_stack_given,
)  # fmt: skip


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


BufferMadeLater = changed(
    PerLayerStack, "BufferMadeLater", "I1",
    "A buffer that is made with the first request, and None in the warm-up.",
    then(scales=torch.full((H,), 3.0)),
    arms="eager/drop_all aot_eager/drop_all",
    starts={"scales": None},
    stack=lambda self, hidden, embedded: PerLayerStack.stack(
        self, hidden, embedded if self.scales is None else embedded * self.scales
    ),
)  # fmt: skip

OneTensorForEachLayer = changed(
    PerLayerStack, "OneTensorForEachLayer", "I1",
    "Embeddings as a tuple with one tensor for each layer, () in the warm-up.",
    lambda first, second, _: [first, {**second, "levels": (rows(6, 3), rows(6, 4))}],
    unfit_options="split",
    forward=lambda self, hidden, taken, levels=(): PerLayerStack.forward(self, hidden, taken) + sum(levels),
)  # fmt: skip

FreshEmbeddings = changed(
    PerLayerStack, "FreshEmbeddings", "I2",
    "Embeddings in new memory in each step, while tokens are static (SGLang #25284).",
    lambda first, *_: [{**first, "given": rows(8, seed).view(4, LAYERS, H)} for seed in (1, 2)],
    arms="eager/full",
    forward=_stack_given,
)  # fmt: skip

GrownBuffer = changed(
    PerLayerStack, "GrownBuffer", "I2",
    "A buffer that grows between two replays.",
    between(lambda region: setattr(region, "per_layer", torch.cat([region.per_layer] * 2) * 2)),
    arms="eager/full",
)  # fmt: skip

LevelsFirst = changed(
    PerLayerStack, "LevelsFirst", "I2",
    "Embeddings whose strides say whether layers or tokens come first in memory.",
    lambda first, *_: [
        {**first, "given": rows(8, 1).view(4, LAYERS, H)},
        {**first, "given": rows(8, 2).view(LAYERS, 4, H).transpose(0, 1)},
    ],
    arms="eager/drop_all",
    forward=_stack_given,
    stack=lambda self, hidden, embedded: PerLayerStack.stack(
        self, hidden, embedded if embedded.is_contiguous() else embedded.flip(1)
    ),
)  # fmt: skip

PackedIds = changed(
    PerLayerStack, "PackedIds", "I2",
    "Places that hold a bit of their own in 64 bits and none in 32.",
    lambda first, second, _: [first, {**second, "taken": second["taken"].int()}],
    unfit_options="neutral",
    rows_of=lambda self, _, taken: self.per_layer[taken % 8 if taken.dtype is torch.int64 else taken // 2],
)  # fmt: skip

ScaledByTheBuffer = changed(
    PerLayerStack, "ScaledByTheBuffer", "I3",
    "Rows are scaled by the largest of the whole buffer.",
    unfit_options="split",
    rows_of=lambda self, _, taken: self.per_layer[taken] / self.per_layer.abs().amax(),
)  # fmt: skip

RowBehind = changed(
    PerLayerStack, "RowBehind", "I3",
    "Each token takes the row behind its own as well.",
    unfit_options="split",
    rows_of=lambda self, _, taken: self.per_layer[taken] + 0.01 * self.per_layer[(taken + 1) % CAPACITY],
)  # fmt: skip

SumOfAllRows = changed(
    PerLayerStack, "SumOfAllRows", "I3",
    "A product with a one-hot matrix that has ones for the rows of a longer step.",
    unfit_options="split",
    rows_of=lambda self, _, taken: torch.einsum(
        "nc,clh->nlh",
        ((torch.arange(CAPACITY) == taken.unsqueeze(1)) | (torch.arange(CAPACITY) == CAPACITY - 1)).float(),
        self.per_layer,
    ),
)  # fmt: skip

FilledInPython = changed(
    PerLayerStack, "FilledInPython", "I4",
    "How many rows are filled is counted in Python behind each step.",
    again(3),
    arms="eager/drop_all eager/full",
    starts={"filled": 0},
    stack=before(count("filled"), PerLayerStack.stack),
)  # fmt: skip


ClearsBehind = changed(
    PerLayerStack, "ClearsBehind", "I4",
    "A step clears the rows that it read, if a flag of the module is set, as it is after the warm-up.",
    then(clearing=True),
    arms="eager/drop_all aot_eager/drop_all",
    starts={"clearing": False},
    rows_of=after(
        PerLayerStack.rows_of,
        lambda self, _, taken: self.clearing and self.per_layer.index_fill_(0, taken, 0.0),
    ),
)  # fmt: skip


@torch.library.custom_op("deepstack_regions::use_up", mutates_args=())
def _use_up(cache: Tensor, by: float) -> Tensor:
    """Write to a buffer without declaring it; return its first row."""
    cache.add_(by)
    return cache[0].clone()


@_use_up.register_fake
def _(cache: Tensor, by: float) -> Tensor:  # noqa: ARG001  # named as those of the operation
    return torch.empty_like(cache[0])


UsedUpTwice = changed(
    PerLayerStack, "UsedUpTwice", "I4",
    "Two equal calls of an operation that writes unsaid: the compiler makes one of them.",
    again(2),
    unfit_options="split",  # each part writes
    arms="aot_eager/stock aot_eager/drop_all",
    forward=lambda self, hidden, taken: (
        PerLayerStack.forward(self, hidden, taken)
        + 0 * (_use_up(self.per_layer, 0.5) + _use_up(self.per_layer, 0.5)).sum()
    ),
)  # fmt: skip

RowsFromZero = changed(
    PerLayerStack, "RowsFromZero", "I5",
    "Each micro-batch reads the rows of the buffer from the first one on (Gemma 4 on later stages).",
    unfit_options="neutral",
    rows_of=lambda self, _, taken: self.per_layer[: len(taken)],
)  # fmt: skip


ClearsForAll = changed(
    PerLayerStack, "ClearsForAll", "I5",
    "The first micro-batch clears the rows of all.",
    between_all(lambda region: region.per_layer.copy_(rows(CAPACITY * LAYERS, 8).view(CAPACITY, LAYERS, H))),
    unfit_options="neutral",
    stack=after(PerLayerStack.stack, lambda self, *_: self.per_layer.zero_()),
)  # fmt: skip

LastRowForAll = changed(
    PerLayerStack, "LastRowForAll", "I5",
    "The last token of a micro-batch says what all of its tokens add.",
    unfit_options="neutral",
    rows_of=lambda self, _, taken: self.per_layer[taken] + self.per_layer[taken[-1:]],
)  # fmt: skip
