"""Steps of a compiled region: what is measured of each, and how it is held to the promises I1..I5.

A *side input* is what a region reads and a later call may change: an argument, a member of a container, an
attribute, a variable of an enclosing function, a global. All here is plain data without torch.
"""

from dataclasses import dataclass
from typing import Literal

from deepstack_harness.contract.observation import DroppedGuard

STEP_ARMS = ("eager/stock", "eager/drop_all", "aot_eager/drop_all")
"""Arms by default: torch's own guards, and the two fastest arms that drop them."""

Aspect = Literal[
    "presence",
    "type",
    "value",
    "members",
    "size",
    "data",
    "dtype",
    "device",
    "strides",
    "requires_grad",
    "address",
    "identity",
]
"""In what an input differs from the warm-up; `LAYOUT` are its layout (I2). `data` are other numbers in a
tensor: no guard is about them, and a region that reads them shows it. `identity`: whether it is one tensor
with another input."""
LAYOUT: frozenset[Aspect] = frozenset({"dtype", "device", "strides", "requires_grad", "address"})


@dataclass(frozen=True)
class ChangedInput:
    """An input that differs from every step of the warm-up.

    `then` and `now` are its facts in words in the last step of the warm-up and in this one; `other` is the
    input that it was one tensor with, or is now, "" for an aspect that has none. `influence` is the largest
    absolute difference that it makes in the uncompiled code: the output as it is, against the output with the
    warm-up's value in its place; None where that could not be run. `remains` is the distance of the compiled
    output from the latter: 0 shows that the region went on without the change.
    """

    name: str
    aspect: Aspect
    then: str
    now: str
    influence: float | None = None
    remains: float | None = None
    other: str = ""

    @property
    def key(self) -> str:
        """What is varied to measure the influence: an input, its identity with another, its requires_grad."""
        if self.aspect == "requires_grad":
            return f"{self.name}.requires_grad"
        return f"{self.name} is {self.other}" if self.other else self.name

    @property
    def explains(self) -> bool:
        """Return whether the compiled output is that of the uncompiled code without this change."""
        return self.remains == 0 and bool(self.influence)

    def __str__(self) -> str:
        """Return the change in words."""
        if self.other:
            return f"`{self.other}` and `{self.name}` were {self.then} in the warm-up and are {self.now} now"
        return f"`{self.name}` was {self.then} in the warm-up and is {self.now} now"


@dataclass(frozen=True)
class Difference:
    """A difference from the uncompiled code: `place` is `answer[0]`, `argument cache` or `self.calls`.

    `distance` is the largest absolute one of a tensor, None where something else differs (`what` in words);
    `limit` is the tolerance that was measured.
    """

    place: str
    what: str
    distance: float | None = None
    limit: float | None = None

    @property
    def is_answer(self) -> bool:
        """Return whether the output differs; otherwise it is what the region writes."""
        return self.place.startswith("answer")


@dataclass(frozen=True)
class SteppedCall:
    """One call under an arm, compared with the same call of the uncompiled code.

    `step` counts calls from 1. `raised` and `wanted` are the exceptions, "" for none, that the region and the
    uncompiled code ended with; `refused` is True where the compiler raised instead of using a graph.
    `poisoned` is the largest difference of the live output that other neutral rows made, those of the inputs
    `neutral`, and `split` that of the parts from the whole; None where that was not requested. `split_raised`
    is the exception of a part, "" for none. `effects` counts the arguments and values that the uncompiled
    code changed.
    """

    step: int
    warm_up: bool
    raised: str = ""
    refused: bool = False
    wanted: str = ""
    differences: tuple[Difference, ...] = ()
    changed: tuple[ChangedInput, ...] = ()
    guards: tuple[DroppedGuard, ...] = ()
    effects: int = 0
    poisoned: float | None = None
    neutral: tuple[str, ...] = ()
    split: float | None = None
    split_raised: str = ""
    limit: float = 0.0
    replayed: bool = False


@dataclass(frozen=True)
class SteppedArm:
    """All calls under one arm.

    `unjudged` is the reason why nothing could be compared, such as a region that cannot be compiled, and
    `stopped` the reason why calls after the last of `calls` were not run.
    """

    arm: str
    calls: tuple[SteppedCall, ...] = ()
    graphs: int = 0
    unjudged: str = ""
    stopped: str = ""


@dataclass(frozen=True)
class SteppedRegion:
    """A region that was run uncompiled and under each arm.

    `restless` names where two uncompiled runs from equal state differ: nothing can be judged then.
    """

    name: str
    torch: str
    arms: tuple[SteppedArm, ...] = ()
    restless: str = ""


@dataclass(frozen=True)
class SteppedHistory:
    """A history of calls in words, and what was measured over it.

    `chosen` has the numbers of the drawn settings of each call (`SteppedTarget.inputs`); it is empty for the
    steps of the user.
    """

    words: str
    region: SteppedRegion
    chosen: tuple[tuple[int, ...], ...] = ()


@dataclass(frozen=True)
class SteppedTarget:
    """What was measured of a function of the user: over its own steps, or over a history for each setting.

    `inputs` has the input of each drawn setting. `undrawn` are the parameters, with their annotations, for
    which no history has another value.
    """

    histories: tuple[SteppedHistory, ...]
    inputs: tuple[str, ...] = ()
    undrawn: tuple[str, ...] = ()
