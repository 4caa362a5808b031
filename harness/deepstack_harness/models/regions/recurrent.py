"""A recurrent layer whose state is kept for each request, and mutants of it.

A step has one row for each request; `requests` are their rows of the state, of which row 0 is for padding.
`fresh` requests begin with a state of zeros.
"""

from typing import Any

import torch
from torch import Tensor, nn

from deepstack_harness.models.regions.program import H, RegionProgram, Steps, at, halves, rows

REQUESTS = 6


class RecurrentLayer(RegionProgram):
    """State that decays, takes the row of its request, and is written back in place."""

    right = True
    state: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.take, self.give = nn.Linear(H, H), nn.Linear(H, H)
        self.register_buffer("state", torch.zeros(REQUESTS, H))

    def forward(self, hidden: Tensor, requests: Tensor, fresh: Tensor) -> Tensor:
        state = self.begin(self.state[requests], fresh) * 0.5 + self.take(hidden)
        self.keep(requests, state)
        return self.give(state)

    def begin(self, state: Tensor, fresh: Tensor) -> Tensor:
        return state.masked_fill(fresh.unsqueeze(1), 0.0)

    def keep(self, requests: Tensor, state: Tensor) -> None:
        self.state[requests] = state

    @classmethod
    def steps(cls) -> Steps:
        fresh, resumed = torch.tensor([True] * 4), torch.tensor([True, True, False, False])
        return [
            {"hidden": rows(4), "requests": at(1, 2, 3, 5), "fresh": fresh},
            {"hidden": rows(4, 1), "requests": at(5, 4, 2, 1), "fresh": resumed},
            {"hidden": rows(6, 2), "requests": at(3, 4, 0, 5, 2, 1), "fresh": torch.tensor([False] * 6)},
        ]

    @staticmethod
    def neutral(requests: Tensor, fresh: Tensor, region: "RecurrentLayer", **_: object) -> list[Tensor]:
        """States of requests that are fresh, or not in the step."""
        kept = {*requests[~fresh].tolist()}
        return [region.state[row] for row in range(REQUESTS) if row not in kept]

    @staticmethod
    def split(hidden: Tensor, **others: Tensor) -> list[dict[str, Any]]:
        """Two micro-batches."""
        return halves(count=len(hidden), hidden=hidden, **others)


class FirstStateLater(RecurrentLayer):
    """States to begin from, of a prefix cache, that no call of the warm-up has."""

    promise = "I1"
    arms = "eager/drop_all aot_eager/drop_all"

    def forward(
        self, hidden: Tensor, requests: Tensor, fresh: Tensor, initial: Tensor | None = None
    ) -> Tensor:
        answer = super().forward(hidden, requests, fresh)
        return answer if initial is None else answer + self.give(initial) * fresh.unsqueeze(1)

    @classmethod
    def steps(cls) -> Steps:
        first, second, third = super().steps()
        return [first, {**second, "initial": rows(4, 5)}, third]


class HasInitialStates(RecurrentLayer):
    """A Python flag for whether any request goes on from its state (vLLM #53051)."""

    promise = "I1"
    arms = "eager/drop_all aot_eager/drop_all"

    def forward(self, hidden: Tensor, requests: Tensor, fresh: Tensor, resumed: bool = False) -> Tensor:
        if resumed:
            return super().forward(hidden, requests, fresh)
        state = self.take(hidden)
        self.keep(requests, state)
        return self.give(state)

    @classmethod
    def steps(cls) -> Steps:
        first, second, third = super().steps()
        return [first, {**second, "resumed": True}, {**third, "resumed": True}]


class DecaySchedule(RecurrentLayer):
    """A decay in Python that the caller changes between steps."""

    promise = "I1"

    def __init__(self) -> None:
        super().__init__()
        self.decay = 1.0

    def forward(self, hidden: Tensor, requests: Tensor, fresh: Tensor) -> Tensor:
        return super().forward(hidden, requests, fresh) * self.decay

    @classmethod
    def steps(cls) -> Steps:
        first, *rest = super().steps()
        return [first, lambda region: setattr(region, "decay", 0.25), *rest]


class StatesByLayer(RecurrentLayer):
    """States of the layers before, of which a pipeline's first stage has none."""

    promise = "I1"

    def forward(
        self, hidden: Tensor, requests: Tensor, fresh: Tensor, before: tuple[Tensor, ...] = ()
    ) -> Tensor:
        for state in before:
            hidden = hidden + state[requests]
        return super().forward(hidden, requests, fresh)

    @classmethod
    def steps(cls) -> Steps:
        first, second, third = super().steps()
        return [first, {**second, "before": (rows(REQUESTS, 4), rows(REQUESTS, 5))}, third]


class RebindsItsState(RecurrentLayer):
    """The state is replaced by a new tensor in each step, which a replay never reads."""

    promise = "I2"
    arms = "eager/full"

    def keep(self, requests: Tensor, state: Tensor) -> None:
        self.state = self.state.index_copy(0, requests, state)

    @classmethod
    def steps(cls) -> Steps:
        call = {"hidden": rows(2), "requests": at(1, 2), "fresh": torch.tensor([False, False])}
        return [call, call, call]


class ResizedState(RecurrentLayer):
    """The caller allocates a larger state between two replays."""

    promise = "I2"
    arms = "eager/full"

    @classmethod
    def steps(cls) -> Steps:
        call = {"hidden": rows(2), "requests": at(1, 2), "fresh": torch.tensor([False, False])}

        def resize(region: RecurrentLayer) -> None:
            region.state = torch.cat([region.state, region.state]) + 1

        return [call, resize, call]


class StateLayout(RecurrentLayer):
    """A convolution state whose layout, by its strides, chooses how it is read (width or length first)."""

    promise = "I2"

    def forward(self, hidden: Tensor, requests: Tensor, fresh: Tensor, window: Tensor) -> Tensor:  # type: ignore[override]
        answer = super().forward(hidden, requests, fresh)
        taps = window.as_strided((H, 3), (3, 1) if window.stride(1) == 1 else (1, H))
        return answer + taps.select(1, 0)

    @classmethod
    def steps(cls) -> Steps:
        first, second, _ = super().steps()
        return [{**first, "window": rows(H, 1, 3)}, {**second, "window": rows(3, 1).t()}]


class StateInHalf(RecurrentLayer):
    """A scale of each request whose dtype says whether it is a logarithm."""

    promise = "I2"

    def forward(self, hidden: Tensor, requests: Tensor, fresh: Tensor, scale: Tensor) -> Tensor:  # type: ignore[override]
        factor = scale.exp() if scale.dtype is torch.float32 else scale
        return super().forward(hidden, requests, fresh) * factor.float()

    @classmethod
    def steps(cls) -> Steps:
        first, second, _ = super().steps()
        return [{**first, "scale": torch.zeros(H)}, {**second, "scale": torch.full((H,), 2.0).double()}]


class KeepsTheOldRequest(RecurrentLayer):
    """A fresh request goes on from the state of the request that had its row before."""

    promise = "I3"

    def begin(self, state: Tensor, fresh: Tensor) -> Tensor:
        return state

    unasked = "split"


class NormOfAllStates(RecurrentLayer):
    """Answers are scaled by the norm of all states, those of other requests among them."""

    promise = "I3"

    def forward(self, hidden: Tensor, requests: Tensor, fresh: Tensor) -> Tensor:
        answer = super().forward(hidden, requests, fresh)
        return answer / (1 + self.state.abs().mean())

    unasked = "split"


class ReadsPadding(RecurrentLayer):
    """The row of padding is added where a request is fresh."""

    promise = "I3"

    def begin(self, state: Tensor, fresh: Tensor) -> Tensor:
        return torch.where(fresh.unsqueeze(1), self.state[0], state)

    unasked = "split"


class AgeOfRequests(RecurrentLayer):
    """The age of the layer in Python."""

    promise = "I4"
    arms = "eager/drop_all eager/full"

    def __init__(self) -> None:
        super().__init__()
        self.age = 0

    def keep(self, requests: Tensor, state: Tensor) -> None:
        super().keep(requests, state)
        self.age += 1

    @classmethod
    def steps(cls) -> Steps:
        call = {"hidden": rows(2), "requests": at(1, 2), "fresh": torch.tensor([False, False])}
        return [call, call, call]


class KeepsWhenAsked(RecurrentLayer):
    """Whether a step is kept is a flag of the call, and the profile run keeps nothing."""

    promise = "I4"
    arms = "eager/drop_all aot_eager/drop_all"

    def forward(self, hidden: Tensor, requests: Tensor, fresh: Tensor, keep: bool = False) -> Tensor:
        state = self.begin(self.state[requests], fresh) * 0.5 + self.take(hidden)
        answer = self.give(state)
        if keep:
            self.keep(requests, state)
        return answer

    @classmethod
    def steps(cls) -> Steps:
        first, *rest = super().steps()
        return [first, *({**step, "keep": True} for step in rest)]


class SameStateTwice(RecurrentLayer):
    """Two arguments that are one tensor behind the warm-up, so that the order of writes changes."""

    promise = "I4"
    arms = "aot_eager/drop_all"
    unasked = "neutral split"

    def forward(self, hidden: Tensor, first: Tensor, second: Tensor) -> Tensor:
        first.mul_(0.5)
        second.add_(hidden.sum(0))
        return self.give(hidden)

    @classmethod
    def steps(cls) -> Steps:
        same = torch.ones(H)
        return [
            {"hidden": rows(2), "first": torch.ones(H), "second": torch.ones(H)},
            {"hidden": rows(2, 1), "first": same, "second": same},
        ]


class StateOfTheFirstRows(RecurrentLayer):
    """A step reads and writes the first rows of the state, and not those of its requests."""

    promise = "I5"

    def forward(self, hidden: Tensor, requests: Tensor, fresh: Tensor) -> Tensor:
        return super().forward(hidden, torch.arange(len(hidden)), fresh)

    unasked = "neutral"


class CarriesToTheNextRow(RecurrentLayer):
    """Each row takes the state that the row before has left."""

    promise = "I5"

    def forward(self, hidden: Tensor, requests: Tensor, fresh: Tensor) -> Tensor:
        return super().forward(hidden.cumsum(0), requests, fresh)

    unasked = "neutral"


class LastRequestForAll(RecurrentLayer):
    """A fresh request begins with the state of the step's last one."""

    promise = "I5"

    def begin(self, state: Tensor, fresh: Tensor) -> Tensor:
        return torch.where(fresh.unsqueeze(1), state[-1] + 1 * len(state), state)

    unasked = "neutral"
