"""An engine whose payload is an argument, behind the `Buffer` interface.

There is no storage: `set` keeps the arguments of one step, `get` runs that step and reads its effect, and
`clear` is the end of the step, where the arguments leave scope.
"""

import sys
from typing import Protocol

from torch import Tensor

from deepstack_harness.errors import StepUnavailable

UNBOUNDED = sys.maxsize
"""The capacity of an engine that keeps nothing between steps: nothing limits an argument."""


class ArgumentEngine(Protocol):
    """The steps of an engine whose payload is an argument.

    `given` has the names of the tensors that the writer of a step's payload made, and `captured` those of
    the tensors that a graph was captured with.
    """

    given: set[str]
    captured: set[str]

    @property
    def capacity(self) -> int:
        """Rows that there is room for."""
        ...

    def check(self, payload: Tensor) -> None:
        """Write a payload (levels, N, hidden) for a step of N tokens; raise what the engine raises."""
        ...

    def eager(self, tokens: int, payload: Tensor | None) -> tuple[Tensor, ...]:
        """Run a step of P tokens; return what was added, one (P, hidden) per level."""
        ...

    def capture(self, tokens: int) -> None:
        """Capture a graph for steps of P tokens, as the engine does before it serves."""
        ...

    def replay(self, size: int, tokens: int, payload: Tensor | None) -> tuple[Tensor, ...]:
        """Replay the graph of `size` tokens for a step of P; return what was added, (P, hidden) per level."""
        ...


class ArgumentBuffer:
    """The payload of the step that comes next; see `deepstack_harness.contract.protocols.Buffer`."""

    def __init__(self, engine: ArgumentEngine) -> None:
        """Start with a text-only step."""
        self._engine = engine
        self._payload: Tensor | None = None

    @property
    def capacity(self) -> int:
        """Rows that the engine has room for."""
        return self._engine.capacity

    def set(self, payload: Tensor, /) -> None:
        """Take the payload (levels, N, hidden) of the next step; N = 0 is a text-only one."""
        if payload.size(1) == 0:
            self._payload = None
            return
        self._engine.check(payload)
        self._payload = payload.clone()

    def get(self, tokens: int, /) -> tuple[Tensor, ...]:
        """Run a step of P tokens, the first N of them visual; return what it adds, (P, hidden) per level.

        Raises `StepUnavailable` for a step of fewer tokens than it has visual ones.
        """
        self._refuse(tokens)
        return self._engine.eager(tokens, self._payload)

    def clear(self, tokens: int, /) -> None:
        """End the step; its arguments leave scope whatever the count."""
        self._payload = None

    def resize(self, tokens: int, /) -> None:
        """Raise `StepUnavailable`: there is no storage."""
        raise StepUnavailable("the payload is an argument: there is no storage to resize")

    def _refuse(self, tokens: int) -> None:
        visual = 0 if self._payload is None else self._payload.size(1)
        if tokens < visual:
            raise StepUnavailable(f"no step of {tokens} tokens has {visual} visual ones")


class ReplayedArgument(ArgumentBuffer):
    """The same engine with graphs: a dummy step captures its size, and later steps replay it.

    A step is padded to the smallest captured size; above the largest one it runs eagerly.
    """

    def __init__(self, engine: ArgumentEngine) -> None:
        """Start with nothing captured."""
        super().__init__(engine)
        self._sizes: set[int] = set()
        self._profile = False

    def begin_step(self, tokens: int, *, profile: bool) -> None:
        """Announce a step of P tokens; a dummy one is captured."""
        self._profile = profile

    def get(self, tokens: int, /) -> tuple[Tensor, ...]:
        """Capture a dummy step of P tokens, or replay a step -> (P, hidden) per level."""
        self._refuse(tokens)
        if self._profile:
            self._profile = False
            self._engine.capture(tokens)
            self._sizes.add(tokens)
        size = min((size for size in self._sizes if size >= tokens), default=None)
        if size is None:
            return self._engine.eager(tokens, self._payload)
        return self._engine.replay(size, tokens, self._payload)
