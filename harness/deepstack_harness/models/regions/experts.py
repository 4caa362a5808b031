"""A mixture of experts with top-k routing, padded to a size, and mutants of it.

Rows from `count` on are padding. The load of each expert is counted in a buffer.
"""

from typing import Any

import torch
from torch import Tensor, nn

from deepstack_harness.models.regions.program import (
    H,
    RegionProgram,
    Steps,
    again,
    before,
    between,
    changed,
    halves,
    indices,
    rows,
    then,
)

EXPERTS, INNER = 4, 6


class RoutedExperts(RegionProgram):
    """Experts that are computed for all rows and combined by the weights of the router."""

    right = True
    load: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.router = nn.Linear(H, EXPERTS)
        self.up = nn.Parameter(torch.randn(EXPERTS, H, INNER) / 3)
        self.down = nn.Parameter(torch.randn(EXPERTS, INNER, H) / 3)
        self.top_k = 2
        self.register_buffer("load", torch.zeros(EXPERTS))

    def forward(self, hidden: Tensor, count: Tensor) -> Tensor:
        padding = self.padding(hidden, count)
        weights = self.route(hidden)
        self.count_load(weights, padding)
        return self.experts(hidden, weights)

    def padding(self, hidden: Tensor, count: Tensor) -> Tensor:
        return (torch.arange(len(hidden)) >= count).unsqueeze(1)

    def route(self, hidden: Tensor) -> Tensor:
        """Return the weights of all experts (n, EXPERTS), 0 for those that are not chosen."""
        chosen, experts = self.router(hidden).softmax(-1).topk(self.top_k)
        return torch.zeros(len(hidden), EXPERTS).scatter(1, experts, chosen / chosen.sum(-1, keepdim=True))

    def count_load(self, weights: Tensor, padding: Tensor) -> None:
        self.load.add_((weights > 0).masked_fill(padding, False).sum(0))

    def experts(self, hidden: Tensor, weights: Tensor) -> Tensor:
        inner = torch.einsum("nh,ehi->nei", hidden, self.up).relu()
        return torch.einsum("nei,eih,ne->nh", inner, self.down, weights)

    @classmethod
    def steps(cls) -> Steps:
        return [
            {"hidden": rows(8), "count": torch.tensor(8)},
            {"hidden": rows(8, 1), "count": torch.tensor(5)},
            {"hidden": rows(6, 2), "count": torch.tensor(4)},
        ]

    @staticmethod
    def neutral(hidden: Tensor, count: Tensor, **_: object) -> list[Tensor]:
        """Padding."""
        return [hidden[int(count) :]]

    @staticmethod
    def live(answer: Tensor, count: Tensor, **_: object) -> Tensor:
        """Rows of tokens."""
        return answer[: int(count)]

    @staticmethod
    def split(hidden: Tensor, count: Tensor, **others: Tensor) -> list[dict[str, Any]]:
        """Two micro-batches without padding."""
        live = {
            name: value[: int(count)] if name != "order" and isinstance(value, Tensor) else value
            for name, value in {"hidden": hidden, **others}.items()
        }
        return [{**part, "count": torch.tensor(len(part["hidden"]))} for part in halves(**live)]


ExpertMapLater = changed(
    RoutedExperts, "ExpertMapLater", "I1",
    "A map of experts that is absent in the warm-up.",
    lambda first, *rest: [first, *rest, {**first, "hidden": rows(8, 3), "order": indices(2, 0, 3, 1)}],
    arms="eager/drop_all aot_eager/drop_all",
    forward=lambda self, hidden, count, order=None: (
        RoutedExperts.forward(self, hidden, count) if order is None
        else self.experts(RoutedExperts.forward(self, hidden, count), self.route(hidden)[:, order])
    ),
)  # fmt: skip

OtherTopK = changed(
    RoutedExperts, "OtherTopK", "I1",
    "Fewer experts for each row than in the warm-up.",
    then(top_k=1),
    arms="eager/drop_all aot_eager/drop_all",
    count_load=lambda *_: None,
)  # fmt: skip

SharedExpertByKey = changed(
    RoutedExperts, "SharedExpertByKey", "I1",
    "A shared expert that a dict has later.",
    lambda first, second, _: [{**first, "extra": {}}, {**second, "extra": {"shared": rows(H, 4)}}],
    forward=lambda self, hidden, count, extra: (
        RoutedExperts.forward(self, hidden, count) + (hidden @ extra["shared"] if "shared" in extra else 0)
    ),
)  # fmt: skip

FlagOfTheCall = changed(
    RoutedExperts, "FlagOfTheCall", "I1",
    "A Python flag of the call by which the answer is scaled.",
    lambda first, second, _: [first, {**second, "reduce": False}],
    forward=lambda self, hidden, count, reduce=True: (
        RoutedExperts.forward(self, hidden, count) / (self.top_k if reduce else 1)
    ),
)  # fmt: skip

LayoutOfWeights = changed(
    RoutedExperts, "LayoutOfWeights", "I2",
    "Weights of a shared expert, read as they lie in memory where they were contiguous in the warm-up.",
    lambda first, second, _: [{**first, "shared": rows(H)}, {**second, "shared": rows(H).t()}],
    unfit_options="split",
    forward=lambda self, hidden, count, shared: (
        RoutedExperts.forward(self, hidden, count)
        + hidden @ shared.as_strided((H, H), (H, 1) if shared.is_contiguous() else (1, H))
    ),
)  # fmt: skip

HalfOfTheRouter = changed(
    RoutedExperts, "HalfOfTheRouter", "I2",
    "Scores of the caller, whose dtype chooses how they are scaled.",
    lambda first, second, _: [
        {**first, "scores": rows(8, 5, EXPERTS)}, {**second, "scores": rows(8, 6, EXPERTS).bfloat16()},
    ],
    forward=lambda self, hidden, count, scores: (
        RoutedExperts.forward(self, hidden, count)
        + (scores.float() * (4.0 if scores.dtype is torch.float32 else 0.25)).sum(-1, keepdim=True)
    ),
)  # fmt: skip

RebalancedWeights = changed(
    RoutedExperts, "RebalancedWeights", "I2",
    "Weights of experts that are loaded into new memory between two replays.",
    between(lambda region: setattr(region, "up", nn.Parameter(region.up.detach().flip(0)))),
    arms="eager/full",
)  # fmt: skip

ScaleOfAllRows = changed(
    RoutedExperts, "ScaleOfAllRows", "I3",
    "One scale for all rows, padding among them, as of a quantised activation.",
    unfit_options="split",
    experts=lambda self, hidden, weights: RoutedExperts.experts(
        self, (hidden / (scale := hidden.abs().amax() / 127)).round() * scale, weights
    ),
)  # fmt: skip

CapacityFromTheEnd = changed(
    RoutedExperts, "CapacityFromTheEnd", "I3",
    "Each expert takes three rows at most, and the last ones, padding among them, come first.",
    unfit_options="split",
    route=lambda self, hidden: (
        (weights := RoutedExperts.route(self, hidden)) * ((weights > 0).flip(0).cumsum(0).flip(0) <= 3)
    ),
)  # fmt: skip

BalancedByTheMean = changed(
    RoutedExperts, "BalancedByTheMean", "I3",
    "Scores are balanced by their mean over all rows.",
    unfit_options="split",
    route=lambda self, hidden: ((scores := self.router(hidden)) - scores.mean(0)).softmax(-1),
)  # fmt: skip


def _count_when_profiling(self: Any, weights: Tensor, padding: Tensor) -> None:  # noqa: ANN401
    if self.profiling:
        RoutedExperts.count_load(self, weights, padding)


LoadOfProfiling = changed(
    RoutedExperts, "LoadOfProfiling", "I4",
    "The load is counted while a flag is set, which the warm-up had and steps have not.",
    then(profiling=False),
    arms="eager/drop_all aot_eager/drop_all",
    starts={"profiling": True},
    count_load=_count_when_profiling,
)  # fmt: skip

LoadThatStarts = changed(
    RoutedExperts, "LoadThatStarts", "I4",
    "The load is counted from a later step on, and never by a graph of the warm-up.",
    then(profiling=True),
    arms="eager/drop_all",
    starts={"profiling": False},
    count_load=_count_when_profiling,
)  # fmt: skip

StepsInPython = changed(
    RoutedExperts, "StepsInPython", "I4",
    "The number of steps since the load was read, in Python.",
    again(3),
    arms="eager/drop_all eager/full",
    starts={"since": {"read": 0}},
    count_load=before(
        lambda self, *_: self.since.update(read=self.since["read"] + 1), RoutedExperts.count_load
    ),
)  # fmt: skip

RoutingBias = changed(
    RoutedExperts, "RoutingBias", "I5",
    "A bias for each row of a step, which each micro-batch reads from the first row on.",
    unfit_options="neutral",
    starts={"bias": rows(8, 7, EXPERTS)},
    route=lambda self, hidden: (self.router(hidden) + self.bias[: len(hidden)]).softmax(-1),
)  # fmt: skip

RoutesByLoad = changed(
    RoutedExperts, "RoutesByLoad", "I5",
    "The load that a micro-batch has counted decides where the next one goes.",
    unfit_options="neutral",
    route=lambda self, hidden: (self.router(hidden) * (self.load + 1)).softmax(-1),
)  # fmt: skip

CapacityOfTheBatch = changed(
    RoutedExperts, "CapacityOfTheBatch", "I5",
    "An expert takes two rows, as many of a micro-batch as of the whole.",
    unfit_options="neutral",
    route=lambda self, hidden: (
        (weights := RoutedExperts.route(self, hidden)) * ((weights > 0).cumsum(0) <= 2)
    ),
)  # fmt: skip
