"""Bind engines that store no payload between calls, so that cases can be played on them.

There are two kinds:

- An engine whose payload is an argument of its text model (`ArgumentClass`). It has no storage: `set`
  holds the arguments of one step, `get` runs that step, and `clear` ends it. It has no get either, so that
  the payload is read by its effect: the text model's own forward runs over hidden states of zeros, with
  layers that record their input and return zeros. What was added after layer i is level i, whatever its
  layout was.
- An engine that splits the payload over ranks (`PayloadSplitter`).

`ReplayedClass` emulates FULL CUDA graphs on any device.  An engine wraps the outer forward in a FULL graph,
so that the Python of get and clear runs at capture only, while the payload is set outside of the graph.  A
replay repeats the recorded operations on the storage that they were captured with
(vllm/compilation/cuda_graph.py; torch's graphs do not copy inputs).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol, TypeVar, runtime_checkable

import torch
from torch import Tensor

from deepstack_harness.compile.graphs import Recordings
from deepstack_harness.contract.case import BufferRef
from deepstack_harness.contract.protocols import Buffer, BufferFactory, begin_step
from deepstack_harness.engines.argument_parts import ArgumentParts
from deepstack_harness.engines.bound_class import (
    ForwardModels,
    MethodsClass,
    misses_package,
    rehearsing,
)
from deepstack_harness.engines.discover import FoundClass
from deepstack_harness.engines.model_class import reason_at
from deepstack_harness.engines.stand_ins import UNBOUNDED, ForwardBuffer
from deepstack_harness.engines.text_decoder import TextFamily
from deepstack_harness.errors import Reason, SourceError, StepUnavailable, UsageError, reason_of
from deepstack_harness.sources.source import Source, buffer_of


class ArgumentEngine(Protocol):
    """The steps of an engine whose payload is an argument; by default it has no storage and no graphs.

    `written` has the names of the tensors that the writer of a step's payload made, and `captured` those of
    the tensors that a graph was captured with. `no_graphs` is the reason why none can be captured.
    """

    written: set[str]
    captured: set[str]
    no_graphs: str = "no graph of the engine's has a payload"

    @property
    def capacity(self) -> int:
        """Rows that there is room for."""
        return UNBOUNDED

    def check(self, payload: Tensor) -> None:
        """Run a step of N visual tokens with a payload (levels, N, hidden); raise what the engine raises."""
        self.eager(payload.size(1), payload)

    def eager(self, tokens: int, payload: Tensor | None) -> tuple[Tensor, ...]:
        """Run a step of P tokens; return what was added, one (P, hidden) per level."""
        ...

    def capture(self, tokens: int) -> None:
        """Capture a graph for steps of P tokens, as the engine does before it serves."""
        raise StepUnavailable(self.no_graphs)

    def replay(self, size: int, tokens: int, payload: Tensor | None) -> tuple[Tensor, ...]:
        """Replay the graph of `size` tokens for a step of P; return what was added, (P, hidden) per level."""
        raise StepUnavailable(self.no_graphs)


class ArgumentBuffer:
    """The payload of the step that comes next; see `deepstack_harness.contract.protocols.Buffer`."""

    def __init__(self, engine: ArgumentEngine, *, takes_empty: bool = False) -> None:
        """Start with a text-only step.

        With `takes_empty` a payload of N = 0 rows is that of a step with only audio, and no step of text.
        """
        self._engine, self._takes_empty = engine, takes_empty
        self._payload: Tensor | None = None

    @property
    def capacity(self) -> int:
        """Rows that the engine has room for."""
        return self._engine.capacity

    def set(self, payload: Tensor, /) -> None:
        """Take the payload (levels, N, hidden) of the next step; N = 0 is a text-only one."""
        if payload.size(1) == 0 and not self._takes_empty:
            self._payload = None
            return
        self._engine.check(payload)
        self._payload = payload.clone()

    def get(self, tokens: int, /) -> tuple[Tensor, ...]:
        """Run a step of P tokens, the first N of them visual; return what it adds, (P, hidden) per level.

        Raises `StepUnavailable` for a step of fewer tokens than it has visual ones.
        """
        self._check_tokens(tokens)
        return self._engine.eager(tokens, self._payload)

    def clear(self, tokens: int, /) -> None:
        """End the step; its arguments leave scope whatever the count."""
        self._payload = None

    def resize(self, tokens: int, /) -> None:
        """Raise `StepUnavailable`: there is no storage."""
        raise StepUnavailable("the payload is an argument: there is no storage to resize")

    def _check_tokens(self, tokens: int) -> None:
        visual = 0 if self._payload is None else self._payload.size(1)
        if tokens < visual:
            raise StepUnavailable(f"no step of {tokens} tokens has {visual} visual ones")


class ReplayedArgument(ArgumentBuffer):
    """The same engine with graphs: a dummy step captures its size, and later steps replay it.

    A step is padded to the smallest captured size; above the largest one it runs eagerly.
    """

    def __init__(self, engine: ArgumentEngine, *, takes_empty: bool = False) -> None:
        """Start with nothing captured."""
        super().__init__(engine, takes_empty=takes_empty)
        self._sizes: set[int] = set()
        self._profile = False

    def begin_step(self, tokens: int, *, profile: bool) -> None:
        """Announce a step of P tokens; a dummy one is captured."""
        self._profile = profile

    def get(self, tokens: int, /) -> tuple[Tensor, ...]:
        """Capture a dummy step of P tokens, or replay a step -> (P, hidden) per level."""
        self._check_tokens(tokens)
        if self._profile:
            self._profile = False
            self._engine.capture(tokens)
            self._sizes.add(tokens)
        size = min((size for size in self._sizes if size >= tokens), default=None)
        if size is None:
            return self._engine.eager(tokens, self._payload)
        return self._engine.replay(size, tokens, self._payload)


MakeEngine = Callable[..., ArgumentEngine]
"""Makes an engine of its parts, and of the arguments of a `BufferFactory`."""


@dataclass(frozen=True)
class Rehearsal:
    """The end of a rehearsal: whether graphs were replayed.

    `lost` is what graphs lose that were replayed, and `no_graphs` is the reason why none were.
    """

    replays: bool = False
    lost: str = ""
    no_graphs: Reason | None = None


@dataclass(frozen=True)
class ArgumentClass:
    """A text model of one source, with the engine around it that `make` makes.

    `kinds` are classes of the harness: an attribute that one of them does not have is no fault of the engine.
    """

    parts: ArgumentParts
    make: MakeEngine
    kinds: tuple[type, ...] = ()
    replays: bool = False

    def __call__(
        self, capacity: int, hidden: int, levels: int, *, dtype: torch.dtype, device: torch.device
    ) -> ArgumentBuffer:
        """Make the engine; raise `UsageError` for what needs the whole package."""
        engine = self.make(self.parts, capacity, hidden, levels, dtype=dtype, device=device)
        return ReplayedArgument(engine) if self.replays else ArgumentBuffer(engine)

    def under_graphs(self) -> "ArgumentClass":
        """Return the class with steps that the engine's own runner replays."""
        return replace(self, replays=True)

    @property
    def model_class(self) -> str:
        """The text model's own name."""
        return self.parts.found.text.class_name

    @property
    def filename(self) -> str:
        """The file of the text model, as tracebacks show it."""
        return self.parts.known.filename

    def rehearse(self) -> Rehearsal:
        """Run a text step and a visual one, with graphs where there are any.

        Raises `UsageError` where a step needs what only the whole package has.
        """
        try:
            engine = self.make(self.parts, 4, 5, 3, dtype=torch.float32, device=torch.device("cpu"))
        except Exception as error:
            raise self._refusal(error, ".__init__") from error
        visual = torch.ones(3, 3, 5)
        try:
            engine.eager(4, None)
        except Exception as error:  # every release serves text: what fails here is around the text model
            raise self._refusal(error) from error
        with rehearsing(self._refusal, self._misses):
            engine.eager(4, visual)
        if isinstance(self.parts.runner, Reason):
            return Rehearsal(no_graphs=self.parts.runner)
        try:
            with rehearsing(self._refusal, self._misses):
                engine.capture(4)
            with rehearsing(self._refusal, self._misses):
                engine.replay(4, 4, visual)
        except UsageError as error:
            return Rehearsal(no_graphs=reason_of(error))
        names, captured = (
            ", ".join(sorted(inputs)) for inputs in (engine.written - engine.captured, engine.captured)
        )
        lost = f"{names} has no static slot: a graph is captured with {captured} alone" if names else ""
        return Rehearsal(replays=True, lost=lost)

    def _misses(self, error: Exception) -> bool:
        return misses_package(error) or isinstance(getattr(error, "obj", None), self.kinds)

    def _refusal(self, error: Exception, method: str = "") -> UsageError:
        text = f"{self.model_class}{method} cannot be run without the rest of its package: {error}"
        return SourceError(reason_at(error, self.filename, text))


class EffectReader:
    """Record of one forward: the hidden states (n, hidden) that each layer was given, and last the norm."""

    def __init__(self) -> None:
        """Start with an empty record."""
        self._inputs: list[Tensor] = []

    def begin(self) -> None:
        """Forget the forward before."""
        self._inputs = []

    def layer(self, *parts: Tensor | None) -> Tensor:
        """Record the sum of `parts`, each (n, hidden); return zeros like it, as the layer's own output."""
        total = torch.stack([part for part in parts if part is not None]).sum(0)
        self._inputs.append(total)
        return torch.zeros_like(total)

    def take(self) -> tuple[Tensor, ...]:
        """Return what was recorded, one (n, hidden) per layer and one for the norm."""
        return tuple(self._inputs)


def split_levels(inputs: tuple[Tensor, ...], levels: int) -> tuple[Tensor, ...]:
    """Return a copy (n, hidden) of each level; `inputs` is what `EffectReader.take` returned.

    Raises `RuntimeError` for rows that were added before the first layer or after the last level.
    """
    first, *after = inputs
    places = {"before the first layer": first}
    for number, rows in enumerate(after[levels:], levels):
        places[f"after layer {number}, where no level belongs"] = rows
    for place, rows in places.items():
        if count := int((rows != 0).any(dim=-1).sum()):
            raise RuntimeError(f"the text model adds {count} rows {place}")
    return tuple(rows.clone() for rows in after[:levels])


T = TypeVar("T")


@runtime_checkable
class OwnGraphs(Protocol):
    """A class of an engine that captures and replays steps by its own code, or by what emulates it."""

    def under_graphs(self) -> BufferFactory:
        """Return what makes the same buffers, with steps that are replayed."""
        ...


class ReplayedBuffer:
    """A buffer whose get and clear run once for each token count, and are replayed from then on."""

    def __init__(self, buffer: Buffer) -> None:
        """Start with nothing captured."""
        self._buffer = buffer
        self._graphs = Recordings[tuple[str, int]]()

    @property
    def capacity(self) -> int:
        """The capacity of the buffer."""
        return self._buffer.capacity

    def begin_step(self, tokens: int, *, profile: bool) -> None:
        """Announce a step to the buffer: what it embeds is embedded outside of the graph."""
        begin_step(self._buffer, tokens, profile=profile)

    def get(self, tokens: int, /) -> tuple[Tensor, ...] | None:
        """Replay get; return the tensors that it returned at capture, one (P, hidden) per level or None."""
        if isinstance(self._buffer, ForwardBuffer):
            self._buffer.embed_step()
        return self._run("get", tokens, self._buffer.get)

    def set(self, payload: Tensor, /) -> None:
        """Set a payload (levels, N, hidden) outside of the graph: its Python runs every time."""
        self._buffer.set(payload)

    def clear(self, tokens: int, /) -> None:
        """Replay the operations of the clear at capture, which may have been none."""
        self._run("clear", tokens, self._buffer.clear)

    def resize(self, tokens: int, /) -> None:
        """Resize outside of the graph."""
        self._buffer.resize(tokens)

    def _run(self, call: str, tokens: int, work: Callable[[int], T]) -> T:
        if (call, tokens) not in self._graphs:
            return self._graphs.record((call, tokens), lambda: work(tokens))
        return self._graphs[call, tokens].replay()  # type: ignore[no-any-return]  # what `work` returned


@dataclass(frozen=True)
class ReplayedClass:
    """A `BufferFactory` whose buffers are captured and replayed."""

    factory: BufferFactory

    def __call__(
        self, capacity: int, hidden: int, levels: int, *, dtype: torch.dtype, device: torch.device
    ) -> ReplayedBuffer:
        """Make a buffer of the class, with no graph captured."""
        return ReplayedBuffer(self.factory(capacity, hidden, levels, dtype=dtype, device=device))


class PayloadSplitter(Protocol):
    """A splitter that can be called for one rank after the other, without a process group.

    `filename` is its file, as tracebacks show it.
    """

    filename: str

    def rows(
        self, rank: int, ranks: int, marks: Tensor | None, levels: Sequence[Tensor], tokens: int
    ) -> tuple[Tensor, ...]:
        """Return the rows (P / ranks, hidden) that the text model of a rank adds at each level.

        `marks` (N,) is True for the visual tokens of the step, and each level has a row (n, hidden) for
        each of these. In a step of text `marks` is None, and each level is the row of a dummy image.
        `tokens` is P, the least multiple of `ranks` that holds the step.
        """
        ...


NOT_REHEARSED = Rehearsal()


@dataclass(frozen=True)
class DefinedClass:
    """One class of `source` in each way in which it can be called, in the process that runs its code.

    `methods` calls its get, set and clear, or an engine whose payload is an argument, and `forward` its
    `embed_input_ids` and `forward`; `splits` splits a payload over ranks. `refusals` are the reasons why
    these are None. `graphs` has what graphs of an engine lose. `text` is the compiled text model that the
    class calls, or the reason why there is none.
    """

    source: Source
    found: FoundClass
    methods: MethodsClass | ForwardModels | ArgumentClass | None = None
    forward: ForwardModels | None = None
    refusals: tuple[Reason, ...] = ()
    graphs: Rehearsal = NOT_REHEARSED
    splits: PayloadSplitter | None = None
    text: TextFamily | str = ""

    @property
    def buffer(self) -> BufferRef:
        """The reference by which cases and rows name the class."""
        return buffer_of(self.source, self.found.model_class)
