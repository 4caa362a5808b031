"""The facts that the child half sends: answers, steps, starts; checked when they come."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import msgspec

from deepstack_harness.errors import MachineError

T = TypeVar("T")


@dataclass(frozen=True)
class EngineAnswer:
    """The answer to one request: its tokens, and the log-probabilities of each by token id."""

    tokens: tuple[int, ...]
    logprobs: tuple[tuple[float | None, ...], ...]


@dataclass(frozen=True)
class LiveStep:
    """One read of the buffer.

    `asked` rows were asked for, `tokens` were embedded in this step (None: nothing was, as in a profile
    run), `visual` rows of them, in `spans`, have a payload.  `rows` came; `wrong` of them belong to tokens
    and are not this step's, and `padding` rows lie behind them and are no zeros.  `origins` has (row, step
    whose payload it is) of the first wrong ones, `requests` has (name, tokens in this step, in prefill).
    `mode` is the answer of the emulated dispatcher, `padded` its number of rows.
    """

    asked: int
    answered: bool
    tokens: int | None = None
    visual: int = 0
    spans: tuple[tuple[int, int], ...] = ()
    rows: int = 0
    wrong: int = 0
    padding: int = 0
    origins: tuple[tuple[int, int | None], ...] = ()
    requests: tuple[tuple[str, int, bool], ...] = ()
    uniform: bool = False
    replayed: bool = False
    mode: str = ""
    padded: int | None = None

    @property
    def is_visual_decode(self) -> bool:
        """True for a visual step that counts as a decode: every request has as many tokens as one."""
        return self.uniform and self.visual > 0


@dataclass(frozen=True)
class ServedSchedule:
    """The facts of one schedule."""

    answers: Mapping[str, EngineAnswer]
    steps: tuple[LiveStep, ...]
    calls: tuple[tuple[str, int], ...]
    counts: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class StartFacts:
    """A running engine: versions, settings, the number of payload levels, and the calls of its start.

    `deciding` has the SHA-256 of each function that dispatches a step.
    """

    vllm: str
    torch: str = ""
    runner: str = ""
    compile_mode: str = ""
    backend: str = ""
    cudagraph_mode: str = ""
    capacity: int = 0
    levels: int = 0
    start_calls: tuple[tuple[str, int], ...] = ()
    start_steps: tuple[LiveStep, ...] = ()
    deciding: Mapping[str, str] = field(default_factory=dict)
    missing: str | None = None


def checked(value: object, kind: type[T]) -> T:
    """Return a value of the child as a typed fact; raise `MachineError` for one that is none."""
    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        raise MachineError(f"the engine's process sent no {kind.__name__}: {error}") from None


def prompts_of(requests: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return the parts of requests that transformers is given."""
    return [{"text": each["text"], "images": each["images"]} for each in requests]
