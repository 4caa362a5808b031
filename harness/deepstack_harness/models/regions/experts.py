"""A mixture of experts with top-k routing, padded to a size, and mutants of it.

Rows from `count` on are padding.  The load of each expert is counted in a buffer.
"""

from typing import Any

import torch
from torch import Tensor, nn

from deepstack_harness.models.regions.program import H, RegionProgram, Steps, halves, rows

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
        parts = halves(count=int(count), **live)
        return [{**part, "count": torch.tensor(len(part["hidden"]))} for part in parts]


class ExpertMapLater(RoutedExperts):
    """A map of experts that is absent in the warm-up."""

    promise = "I1"
    arms = "eager/drop_all aot_eager/drop_all"

    def forward(self, hidden: Tensor, count: Tensor, order: Tensor | None = None) -> Tensor:
        answer = super().forward(hidden, count)
        if order is not None:
            answer = self.experts(answer, self.route(hidden)[:, order])
        return answer

    @classmethod
    def steps(cls) -> Steps:
        late = {"hidden": rows(8, 3), "count": torch.tensor(8), "order": torch.tensor([2, 0, 3, 1])}
        return [*super().steps(), late]


class OtherTopK(RoutedExperts):
    """Fewer experts for each row than in the warm-up."""

    promise = "I1"
    arms = "eager/drop_all aot_eager/drop_all"

    def count_load(self, weights: Tensor, padding: Tensor) -> None:
        pass

    @classmethod
    def steps(cls) -> Steps:
        first, *rest = super().steps()
        return [first, lambda region: setattr(region, "top_k", 1), *rest]


class SharedExpertByKey(RoutedExperts):
    """A shared expert that a dict has later."""

    promise = "I1"

    def forward(self, hidden: Tensor, count: Tensor, extra: dict[str, Tensor]) -> Tensor:  # type: ignore[override]
        answer = super().forward(hidden, count)
        return answer + hidden @ extra["shared"] if "shared" in extra else answer

    @classmethod
    def steps(cls) -> Steps:
        first, second, *_ = super().steps()
        return [{**first, "extra": {}}, {**second, "extra": {"shared": rows(H, 4)}}]


class FlagOfTheCall(RoutedExperts):
    """A Python flag of the call by which the answer is scaled."""

    promise = "I1"

    def forward(self, hidden: Tensor, count: Tensor, reduce: bool = True) -> Tensor:
        answer = super().forward(hidden, count)
        return answer / self.top_k if reduce else answer

    @classmethod
    def steps(cls) -> Steps:
        first, second, *_ = super().steps()
        return [first, {**second, "reduce": False}]


class LayoutOfWeights(RoutedExperts):
    """Weights of a shared expert, read as they lie in memory where they were contiguous in the warm-up."""

    promise = "I2"
    unasked = "split"  # its weights have as many rows as the step

    def forward(self, hidden: Tensor, count: Tensor, shared: Tensor) -> Tensor:  # type: ignore[override]
        if shared.is_contiguous():
            weight = shared.as_strided((H, H), (H, 1))
        else:
            weight = shared.as_strided((H, H), (1, H))
        return super().forward(hidden, count) + hidden @ weight

    @classmethod
    def steps(cls) -> Steps:
        first, second, *_ = super().steps()
        return [{**first, "shared": rows(H)}, {**second, "shared": rows(H).t()}]


class HalfOfTheRouter(RoutedExperts):
    """Scores of the caller, whose dtype chooses how they are scaled."""

    promise = "I2"

    def forward(self, hidden: Tensor, count: Tensor, scores: Tensor) -> Tensor:  # type: ignore[override]
        scale = 4.0 if scores.dtype is torch.float32 else 0.25
        return super().forward(hidden, count) + (scores.float() * scale).sum(-1, keepdim=True)

    @classmethod
    def steps(cls) -> Steps:
        first, second, *_ = super().steps()
        return [
            {**first, "scores": rows(8, 5, EXPERTS)},
            {**second, "scores": rows(8, 6, EXPERTS).bfloat16()},
        ]


class RebalancedWeights(RoutedExperts):
    """Weights of experts that are loaded into new memory between two replays."""

    promise = "I2"
    arms = "eager/full"

    @classmethod
    def steps(cls) -> Steps:
        first, *_ = super().steps()

        def rebalance(region: RoutedExperts) -> None:
            region.up = nn.Parameter(region.up.detach().flip(0))

        return [first, rebalance, first]


class ScaleOfAllRows(RoutedExperts):
    """One scale for all rows, padding among them, as of a quantised activation."""

    promise = "I3"

    def experts(self, hidden: Tensor, weights: Tensor) -> Tensor:
        scale = hidden.abs().amax() / 127
        return super().experts((hidden / scale).round() * scale, weights)

    unasked = "split"


class CapacityFromTheEnd(RoutedExperts):
    """Each expert takes three rows at most, and the last ones, padding among them, come first."""

    promise = "I3"

    def route(self, hidden: Tensor) -> Tensor:
        weights = super().route(hidden)
        place = (weights > 0).flip(0).cumsum(0).flip(0)
        return weights * (place <= 3)

    unasked = "split"


class BalancedByTheMean(RoutedExperts):
    """Scores are balanced by their mean over all rows."""

    promise = "I3"

    def route(self, hidden: Tensor) -> Tensor:
        scores = self.router(hidden)
        return (scores - scores.mean(0)).softmax(-1)

    unasked = "split"


class LoadOfProfiling(RoutedExperts):
    """The load is counted while a flag is set, which the warm-up had and steps have not."""

    promise = "I4"
    arms = "eager/drop_all aot_eager/drop_all"

    def __init__(self) -> None:
        super().__init__()
        self.profiling = True

    def count_load(self, weights: Tensor, padding: Tensor) -> None:
        if self.profiling:
            super().count_load(weights, padding)

    @classmethod
    def steps(cls) -> Steps:
        first, *rest = super().steps()
        return [first, lambda region: setattr(region, "profiling", False), *rest]


class LoadThatStarts(LoadOfProfiling):
    """The load is counted from a later step on, and never by a graph of the warm-up."""

    promise = "I4"
    arms = "eager/drop_all"

    def __init__(self) -> None:
        super().__init__()
        self.profiling = False

    @classmethod
    def steps(cls) -> Steps:
        first, *rest = RoutedExperts.steps()
        return [first, lambda region: setattr(region, "profiling", True), *rest]


class StepsInPython(RoutedExperts):
    """The number of steps since the load was read, in Python."""

    promise = "I4"
    arms = "eager/drop_all eager/full"

    def __init__(self) -> None:
        super().__init__()
        self.since = {"read": 0}

    def count_load(self, weights: Tensor, padding: Tensor) -> None:
        super().count_load(weights, padding)
        self.since["read"] += 1

    @classmethod
    def steps(cls) -> Steps:
        first, *_ = super().steps()
        return [first, first, first]


class RoutingBias(RoutedExperts):
    """A bias for each row of a step, which each micro-batch reads from the first row on."""

    promise = "I5"
    bias: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("bias", rows(8, 7, EXPERTS))

    def route(self, hidden: Tensor) -> Tensor:
        return (self.router(hidden) + self.bias[: len(hidden)]).softmax(-1)

    unasked = "neutral"


class RoutesByLoad(RoutedExperts):
    """The load that a micro-batch has counted decides where the next one goes."""

    promise = "I5"

    def route(self, hidden: Tensor) -> Tensor:
        return (self.router(hidden) * (self.load + 1)).softmax(-1)

    unasked = "neutral"


class CapacityOfTheBatch(RoutedExperts):
    """An expert takes two rows, as many of a micro-batch as of the whole."""

    promise = "I5"

    def route(self, hidden: Tensor) -> Tensor:
        weights = super().route(hidden)
        return weights * ((weights > 0).cumsum(0) <= 2)

    unasked = "neutral"
