"""A recurrent layer with a state for each request, and mutants of it.

A step has one row for each request; `requests` are their rows of the state, of which row 0 is for padding.
`fresh` requests begin with a state of zeros.
"""

import torch
from torch import Tensor, nn

from deepstack_harness.models.regions.program import (
    H,
    RegionProgram,
    Steps,
    before,
    between,
    changed,
    count,
    halves,
    indices,
    rows,
    then,
)

REQUESTS = 6
"""Requests that have a state."""


def _decode() -> dict[str, Tensor]:
    """Return a call with one token for each of two requests that go on."""
    return {"hidden": rows(2), "requests": indices(1, 2), "fresh": torch.tensor([False, False])}


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
            {"hidden": rows(4), "requests": indices(1, 2, 3, 5), "fresh": fresh},
            {"hidden": rows(4, 1), "requests": indices(5, 4, 2, 1), "fresh": resumed},
            {"hidden": rows(6, 2), "requests": indices(3, 4, 0, 5, 2, 1), "fresh": torch.tensor([False] * 6)},
        ]

    @staticmethod
    def neutral(requests: Tensor, fresh: Tensor, region: "RecurrentLayer", **_: object) -> list[Tensor]:
        """States of requests that are fresh, or not in the step."""
        kept = {*requests[~fresh].tolist()}
        return [region.state[row] for row in range(REQUESTS) if row not in kept]

    split = staticmethod(halves)


FirstStateLater = changed(
    RecurrentLayer, "FirstStateLater", "I1",
    "States to begin from, of a prefix cache, that no call of the warm-up has.",
    lambda first, second, third: [first, {**second, "initial": rows(4, 5)}, third],
    arms="eager/drop_all aot_eager/drop_all",
    forward=lambda self, hidden, requests, fresh, initial=None: (
        RecurrentLayer.forward(self, hidden, requests, fresh)
        + (0 if initial is None else self.give(initial) * fresh.unsqueeze(1))
    ),
)  # fmt: skip


HasInitialStates = changed(
    RecurrentLayer, "HasInitialStates", "I1",
    "A Python flag for whether any request goes on from its state (vLLM #53051).",
    lambda first, *rest: [first, *({**step, "resumed": True} for step in rest)],
    arms="eager/drop_all aot_eager/drop_all",
    forward=lambda self, hidden, requests, fresh, resumed=False: RecurrentLayer.forward(
        self, hidden, requests, fresh if resumed else torch.ones_like(fresh)
    ),
)  # fmt: skip

DecaySchedule = changed(
    RecurrentLayer, "DecaySchedule", "I1",
    "A decay in Python that the caller changes between steps.",
    then(decay=0.25),
    starts={"decay": 1.0},
    forward=lambda self, hidden, requests, fresh: (
        RecurrentLayer.forward(self, hidden, requests, fresh) * self.decay
    ),
)  # fmt: skip

StatesByLayer = changed(
    RecurrentLayer, "StatesByLayer", "I1",
    "States of the layers before, of which a pipeline's first stage has none.",
    lambda first, second, third: [
        first, {**second, "before": (rows(REQUESTS, 4), rows(REQUESTS, 5))}, third,
    ],
    forward=lambda self, hidden, requests, fresh, before=(): RecurrentLayer.forward(
        self, sum([state[requests] for state in before], hidden), requests, fresh
    ),
)  # fmt: skip

RebindsItsState = changed(
    RecurrentLayer, "RebindsItsState", "I2",
    "The state is replaced by a new tensor in each step, which a replay never reads.",
    lambda *_: [_decode()] * 3,
    arms="eager/full",
    keep=lambda self, requests, state: setattr(self, "state", self.state.index_copy(0, requests, state)),
)  # fmt: skip

ResizedState = changed(
    RecurrentLayer, "ResizedState", "I2",
    "The caller allocates a larger state between two replays.",
    lambda *_: between(
        lambda region: setattr(region, "state", torch.cat([region.state] * 2) + 1)
    )(_decode()),
    arms="eager/full",
)  # fmt: skip

StateLayout = changed(
    RecurrentLayer, "StateLayout", "I2",
    "A convolution state whose layout, by its strides, chooses how it is read (width or length first).",
    lambda first, second, _: [{**first, "window": rows(H, 1, 3)}, {**second, "window": rows(3, 1).t()}],
    forward=lambda self, hidden, requests, fresh, window: (
        RecurrentLayer.forward(self, hidden, requests, fresh)
        + window.as_strided((H, 3), (3, 1) if window.stride(1) == 1 else (1, H)).select(1, 0)
    ),
)  # fmt: skip

StateInHalf = changed(
    RecurrentLayer, "StateInHalf", "I2",
    "A scale of each request whose dtype says whether it is a logarithm.",
    lambda first, second, _: [
        {**first, "scale": torch.zeros(H)}, {**second, "scale": torch.full((H,), 2.0).double()},
    ],
    forward=lambda self, hidden, requests, fresh, scale: (
        RecurrentLayer.forward(self, hidden, requests, fresh)
        * (scale.exp() if scale.dtype is torch.float32 else scale).float()
    ),
)  # fmt: skip

KeepsTheOldRequest = changed(
    RecurrentLayer, "KeepsTheOldRequest", "I3",
    "A fresh request goes on from the state of the request that had its row before.",
    unfit_options="split",
    begin=lambda _, state, __: state,
)  # fmt: skip

NormOfAllStates = changed(
    RecurrentLayer, "NormOfAllStates", "I3",
    "Answers are scaled by the norm of all states, those of other requests among them.",
    unfit_options="split",
    forward=lambda self, hidden, requests, fresh: (
        RecurrentLayer.forward(self, hidden, requests, fresh) / (1 + self.state.abs().mean())
    ),
)  # fmt: skip

ReadsPadding = changed(
    RecurrentLayer, "ReadsPadding", "I3",
    "The row of padding is added where a request is fresh.",
    unfit_options="split",
    begin=lambda self, state, fresh: torch.where(fresh.unsqueeze(1), self.state[0], state),
)  # fmt: skip

AgeOfRequests = changed(
    RecurrentLayer, "AgeOfRequests", "I4",
    "The age of the layer in Python.",
    lambda *_: [_decode()] * 3,
    arms="eager/drop_all eager/full",
    starts={"age": 0},
    keep=before(count("age"), RecurrentLayer.keep),
)  # fmt: skip


class KeepsWhenAsked(RecurrentLayer):
    """A flag of the call decides whether a step stores its state, and the profile run stores nothing."""

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
    """Two arguments that are one tensor after the warm-up, so that the order of writes changes."""

    promise = "I4"
    arms = "aot_eager/drop_all"
    unfit_options = "neutral split"

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


StateOfTheFirstRows = changed(
    RecurrentLayer, "StateOfTheFirstRows", "I5",
    "A step reads and writes the first rows of the state, and not those of its requests.",
    unfit_options="neutral",
    forward=lambda self, hidden, requests, fresh: RecurrentLayer.forward(  # noqa: ARG005
        self, hidden, torch.arange(len(hidden)), fresh
    ),
)  # fmt: skip

CarriesToTheNextRow = changed(
    RecurrentLayer, "CarriesToTheNextRow", "I5",
    "Each row takes the state that the row before has left.",
    unfit_options="neutral",
    forward=lambda self, hidden, requests, fresh: RecurrentLayer.forward(
        self, hidden.cumsum(0), requests, fresh
    ),
)  # fmt: skip

LastRequestForAll = changed(
    RecurrentLayer, "LastRequestForAll", "I5",
    "A fresh request begins with the state of the step's last one.",
    unfit_options="neutral",
    begin=lambda _, state, fresh: torch.where(fresh.unsqueeze(1), state[-1] + 1 * len(state), state),
)  # fmt: skip
