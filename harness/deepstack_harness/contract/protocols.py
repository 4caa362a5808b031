"""Interfaces: Buffer, Decoder, Family, Session, Probe, and the optional members of some of them.

The docstrings of `Buffer` and `Decoder` are the contract; `contract_text` and `quoted` show them in help and
in messages. Optional members are looked up by name, each by one function below the protocols, so that a
user's class needs to import nothing.

Shapes: h hidden size, n tokens of a step, N tokens set, P tokens of a get. torch is imported by type checkers
only.
"""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from textwrap import indent
from types import TracebackType
from typing import TYPE_CHECKING, Protocol, TypeVar

from deepstack_harness.contract.rules import PayloadKind, Rule
from deepstack_harness.errors import StepUnavailable

if TYPE_CHECKING:
    from collections.abc import Callable

    import torch
    from torch import Tensor, nn

    from deepstack_harness.contract.facts import AccessFacts


Facts_co = TypeVar("Facts_co", covariant=True)


class Buffer(Protocol):
    """The thing under test: per level a (capacity, hidden) tensor, outside of the decoder.

    It is made with capacity, hidden, levels >= 1, and is empty. A class with `capacity`, `get`, `set` and
    `clear` is complete; `resize` is optional, and so are the members of `AnnouncesMoves`, `ReleasesStorage`,
    `StatesVision`, `BeginsSteps` and `FollowsTensors`.

    get, set, clear and resize are called outside of compiled code and are never traced with the model.
    They are called by one thread, under `torch.no_grad()` or under `torch.inference_mode()`, one of the two
    for the whole life of a buffer, its construction included. Two buffers never share state.

    Counts are Python ints. A negative count, and a payload of another shape than (levels, N, hidden), raise
    any Exception and change nothing. A payload of integers may do so too. A call above the capacity grows,
    or raises and changes nothing; the same holds if an allocation fails in the middle of a growth, but room
    that was made may stay.
    Nothing else may raise.

    In the captured regime (CUDA graphs) an owner captures get(P), the decoder and clear(P) once for each size
    P, the largest first, with nothing set, and then replays the recorded tensor operations: their Python does
    not run again. Steps without a graph may come between replays. In addition to the above: get(P) returns
    the same addresses while the generation stays; get and clear allocate nothing while they are captured; set
    writes into the storage that get returns; and the recorded clear(P) zeroes P rows whatever values Python
    counters had at capture. A buffer that fulfils all but this paragraph is right in live use, and only
    there.

    Counts that are bool, numpy or torch integers may be refused; `check` reports that, and does not fail.

    >>> buffer = ReferenceBuffer(4, 2, 1, dtype=torch.float32, device=torch.device("cpu"))
    >>> buffer.set(torch.ones(1, 3, 2))
    >>> buffer.get(4)
    (tensor([[1., 1.],
            [1., 1.],
            [1., 1.],
            [0., 0.]]),)
    """

    @property
    def capacity(self) -> int:
        """Rows that get has to return now, an int: attribute or property.

        Right after construction it is at least the capacity given. It grows with every growth, and shrinks
        only in resize.
        """
        ...

    def get(self, tokens: int, /) -> tuple[Tensor, ...] | None:
        """Return P = `tokens` rows of every level: a tuple of `levels` tensors (P, hidden).

        0 <= P <= capacity never raises. Rows [0, min(N, P)) are the payload that was set last, rows after it
        are exact zeros; if nothing is set, all rows are zeros, and the result is never None. The tensors have
        the dtype and the device of construction. Container type, tensor type, strides and requires_grad=False
        are the same at every call, because compiled decoders guard on them; for P of 0 or 1, which torch
        compiles by themselves, the stride between rows at every call with that P.

        The tensors may be views of the storage or copies. Their rows hold until the next set, clear or
        resize: another get does not change them, however many gets there are and however late they come. The
        caller does not write into them. Above the capacity: grows with the payload unchanged, or raises and
        changes nothing.
        """
        ...

    def set(self, payload: Tensor, /) -> None:
        """Take a payload (levels, N, hidden), N >= 0, in place of all earlier rows.

        The payload is on the buffer's device, has any floating dtype, any strides (permuted, expanded over
        rows or levels, gaps between rows or columns, a slice of a longer tensor) and any values, and may
        require a gradient. It is copied: the caller may overwrite its tensor at once, and set leaves it
        unchanged: its bytes, shape, strides, requires_grad and version. Rows are equal after the cast to the
        buffer's dtype, those of integers that were not refused too; NaN counts as equal to NaN, and -0.0 to
        0. Above the capacity: grows and holds the new payload, or raises and changes nothing.
        """
        ...

    def clear(self, tokens: int, /) -> None:
        """End the payload: from now on no row of it is read, and all rows read as zeros.

        `tokens` is the padded count of the step, usually >= N; 0 <= tokens <= capacity never raises. For
        tokens < N, 0 included, it does the same. One exception: if the get before it returned just these
        `tokens` rows (`set 8; get 4; clear 4`), the step is shared by micro-batches. Then rows [tokens, N)
        may still be read at their place, or be zeros, until as many rows were cleared as set. Above the
        capacity: clears everything, or raises and changes nothing.
        """
        ...

    def resize(self, tokens: int, /) -> None:
        """Make room with the payload unchanged; afterwards the capacity is at least `tokens`.

        Below N it raises and changes nothing, or retains all N rows. The capacity may stay larger than
        `tokens`, and a resize above the capacity may raise. A buffer without this step has no such method, or
        raises `deepstack_harness.errors.StepUnavailable`.
        """
        ...


class BufferFactory(Protocol):
    """A class or function that makes buffers: a class of ours, a user's, or one bound to a source.

    >>> def make(capacity, hidden, levels, *, dtype, device):
    ...     return ReferenceBuffer(capacity, hidden, levels, dtype=dtype, device=device)
    """

    def __call__(
        self, capacity: int, hidden: int, levels: int, *, dtype: torch.dtype, device: torch.device
    ) -> Buffer:
        """Make an empty buffer; `capacity`, `hidden` and `levels` are ints of 1 or more."""
        ...


class AnnouncesMoves(Protocol):
    """A buffer whose `generation` grows before the first get that returns new storage.

    It never goes back. An owner that reads another generation captures its graphs again before it replays
    one; what becomes of the old storage is the buffer's business. A buffer without a generation promises
    that its storage never moves. In live use the generation means nothing.

    >>> buffer = ReferenceBuffer(4, 2, 1, dtype=torch.float32, device=torch.device("cpu"))
    >>> buffer.resize(8)
    >>> buffer.generation
    1
    """

    generation: int


class ReleasesStorage(Protocol):
    """A buffer that holds old storage until `release`: then no captured graph uses it any more.

    >>> buffer = ReferenceBuffer(4, 2, 1, dtype=torch.float32, device=torch.device("cpu"))
    >>> buffer.resize(8)
    >>> buffer.release()
    """

    def release(self) -> None:
        """Free the storage of earlier generations; called after graphs were captured again."""
        ...


class StatesVision(Protocol):
    """A buffer that states whether its model has a vision tower; without one, get always returns None.

    >>> class WithoutVision(ReferenceBuffer):
    ...     vision = False
    ...
    ...     def get(self, tokens):
    ...         return None
    """

    vision: bool


class BeginsSteps(Protocol):
    """A buffer that an engine's own forward calls, and that sees every step, with or without a payload.

    No graph is captured with such a buffer.

    >>> class CountsSteps(ReferenceBuffer):
    ...     steps = 0
    ...
    ...     def begin_step(self, tokens, *, profile):
    ...         self.steps += not profile
    """

    def begin_step(self, tokens: int, *, profile: bool) -> None:
        """Start a step of P tokens; `profile` is True for a dummy step."""
        ...


class FollowsTensors(Protocol):
    """A buffer that moves to the dtype and device of a tensor it is shown, as vLLM #44384 proposes.

    >>> class Follows(ReferenceBuffer):
    ...     def follow(self, like):
    ...         self._levels = [level.to(like) for level in self._levels]
    """

    def follow(self, like: Tensor, /) -> None:
        """Make the levels anew unless they have the dtype and device of `like` (n, h)."""
        ...


class Decoder(Protocol):
    """A tiny text decoder, flat over tokens, in eval mode and without gradients.

    It takes hidden (n, h), positions (3, n) int64 and a payload, and returns (n, h) in the dtype of the
    hidden states. The payload is a tuple with one (n, h) per level, or None in a model without deepstack. The
    argument must be called `payload`, because guards are looked up by name. A decoder writes into none of its
    arguments. State of it that lives from call to call is equal before each of the runs that are compared,
    and is compared as their outputs are: attributes, parameters, buffers, containers, closures, globals that
    its code names, random generators, and torch's modes.

    >>> class AddsPayload(torch.nn.Module):
    ...     def forward(self, hidden, positions, payload):
    ...         return hidden if payload is None else hidden + sum(payload)
    """

    def __call__(self, hidden: Tensor, positions: Tensor, payload: tuple[Tensor, ...] | None) -> Tensor:
        """Run all layers and the final norm: (n, h), (3, n), one (n, h) per level or None -> (n, h)."""
        ...


class WorksInGraph(Protocol):
    """A buffer factory with work to do inside the compiled graph, in addition to the decoder's.

    >>> class WithWork(ReferenceBuffer):
    ...     @staticmethod
    ...     def in_graph(decoder):
    ...         return torch.nn.Sequential(decoder)
    """

    def in_graph(self, decoder: torch.nn.Module, /) -> torch.nn.Module:
        """Return a `Decoder` around `decoder` that does the work and gives the same output."""
        ...


class Family(Protocol):
    """Builds the decoders of one model family, randomly initialised.

    >>> family = Qwen3VLFamily(Qwen3VLConfig(layers=2, levels=1))
    >>> decoder = family.build(dtype=torch.float32, device=torch.device("cpu"), seed=0)
    >>> family.name, family.levels, decoder.training
    ('qwen3_vl', 1, False)
    """

    name: str
    hidden: int
    levels: int
    routed: bool
    """Whether tokens are routed to experts, so that rounding may choose another expert."""

    def build(self, *, dtype: torch.dtype, device: torch.device, seed: int) -> torch.nn.Module:
        """Make a `Decoder` in eval mode; equal seeds give equal weights."""
        ...

    def positions(self, tokens: int, device: torch.device) -> Tensor:
        """Return realistic positions (3, n) int64 of a text with images; equal for equal n."""
        ...


class StatesPayload(Protocol):
    """A family that states which payload it has; without these members it is `hidden` wide and visual."""

    width: int
    """Columns of a level of the payload."""
    payload_kind: PayloadKind


class FamilyWithVariants(Family, Protocol):
    """A family that has variants: the same decoder with other sizes or another order of operations."""

    def variant(self, text: str, /) -> Family:
        """Return the family with the variants of `text` (`opaque+2b`); raises `UsageError` for others."""
        ...


@dataclass(frozen=True)
class Profile:
    """The largest sizes, which an arm may prepare for before the first step.

    `capacity` is in token rows; `levels` and `hidden` are those of the payload, whose width is the hidden
    size of most families.
    """

    capacity: int
    hidden: int
    levels: int
    dtype: torch.dtype
    device: torch.device


@dataclass(frozen=True)
class Inputs:
    """Arguments of one decoder call: hidden (n, h), positions (3, n), one (n, h) per level or None.

    A caller whose decoder embeds token ids itself may give None for `hidden`.

    >>> hidden, positions = torch.zeros(2, 8), torch.zeros(3, 2, dtype=torch.int64)
    >>> inputs = Inputs(hidden, positions, payload=(torch.ones(2, 8),))
    >>> len(inputs.payload)
    1
    """

    hidden: Tensor
    positions: Tensor
    payload: tuple[Tensor, ...] | None


class Lane(Protocol):
    """One buffer and one session, as callers and capturing sessions use them; each call is recorded."""

    allocated: int
    """Tensors that get and clear allocated while they were captured; the session counts them."""
    mixed: bool
    """Whether the batch has a prompt in it: a visual payload was set that no step has read yet."""

    def get(self, tokens: int, /) -> tuple[Tensor, ...] | None:
        """Return the buffer's rows for P tokens, (P, h) per level or None, and record them."""
        ...

    def call_get(self, tokens: int, /) -> tuple[Tensor, ...] | None:
        """Return the buffer's rows for P tokens, (P, h) per level or None, without a record.

        While a graph is captured, the operations of recording would be captured too.
        """
        ...

    def run(self, inputs: Inputs, /) -> Tensor:
        """Run the session's forward -> (n, h); rows above n are cut off, as engines cut them."""
        ...

    def clear(self, tokens: int, /) -> None:
        """Clear the buffer, and record the call."""
        ...

    def record_graph_input(self, payload: tuple[Tensor, ...] | None, /) -> None:
        """Record the payload, one (P, h) per level or None, that a graph is about to read."""
        ...


class Session(Protocol):
    """An opened arm, which runs one decoder in one way until it is closed.

    A step that the arm does not have raises `deepstack_harness.errors.StepUnavailable`.
    """

    def forward(self, inputs: Inputs) -> Tensor:
        """Run the decoder -> (n, h)."""
        ...

    def capture(self, inputs: Inputs, lane: Lane) -> None:
        """Warm up and capture a graph for as many tokens as `inputs` has, whose payload is not used."""
        ...

    def replay(self, inputs: Inputs, lane: Lane) -> Tensor:
        """Run the graph that was captured for as many tokens as `inputs` has -> (P, h)."""
        ...

    def reload(self) -> None:
        """Save the compiled code, load it back, and run the loaded code from now on."""
        ...

    def close(self) -> None:
        """Drop the compiled code."""
        ...


class WrapsSession(Protocol):
    """A session that captures or replays around another one, which compiles.

    >>> class CountsCalls:
    ...     def __init__(self, inner):
    ...         self.inner, self.calls = inner, 0
    """

    inner: Session


class KnowsAccesses(Protocol):
    """A session whose kernels are interpreted, so that every access of theirs is known."""

    def take_accesses(self) -> AccessFacts | None:
        """Return what kernels touched since the last call, None where none ran."""
        ...


class Probe(Protocol[Facts_co]):
    """A context manager that watches a run and then returns facts about it."""

    def __enter__(self) -> Probe[Facts_co]:
        """Start watching."""
        ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None:
        """Stop watching."""
        ...

    def facts(self) -> Facts_co:
        """Return what was measured; raises `deepstack_harness.errors.NotMeasured` if nothing was."""
        ...


def generation_of(buffer: Buffer) -> int | None:
    """Return the generation of a `protocols.AnnouncesMoves`, None for other buffers."""
    generation: int | None = getattr(buffer, "generation", None)
    return generation


def has_vision(buffer: Buffer) -> bool:
    """Return what a `protocols.StatesVision` states; True for other buffers."""
    return bool(getattr(buffer, "vision", True))


def payload_width(family: Family) -> int:
    """Return the columns of a level: those that a `protocols.StatesPayload` states, else the hidden size."""
    width: int = getattr(family, "width", family.hidden)
    return width


def payload_kind(family: Family) -> PayloadKind:
    """Return the kind of payload that a `protocols.StatesPayload` states; VISUAL for other families."""
    kind: PayloadKind = getattr(family, "payload_kind", PayloadKind.VISUAL)
    return kind


def release(buffer: Buffer) -> None:
    """Let a `protocols.ReleasesStorage` free old storage."""
    released: Callable[[], None] | None = getattr(buffer, "release", None)
    if released is not None:
        released()


def resize(buffer: Buffer, tokens: int) -> None:
    """Resize a buffer; raises `StepUnavailable` for one without this method."""
    resized: Callable[[int], None] | None = getattr(buffer, "resize", None)
    if resized is None:
        raise StepUnavailable(f"{type(buffer).__name__} has no resize")
    resized(tokens)


def begins_steps(buffer: Buffer) -> bool:
    """Return whether the buffer is a `protocols.BeginsSteps`."""
    return hasattr(buffer, "begin_step")


def begin_step(buffer: Buffer, tokens: int, *, profile: bool) -> None:
    """Start a step of a `protocols.BeginsSteps`."""
    begin: Callable[..., None] | None = getattr(buffer, "begin_step", None)
    if begin is not None:
        begin(tokens, profile=profile)


def follow(buffer: Buffer, like: Tensor) -> None:
    """Show hidden states (n, h) to a `protocols.FollowsTensors`."""
    followed: Callable[[Tensor], None] | None = getattr(buffer, "follow", None)
    if followed is not None:
        followed(like)


def in_graph(make: BufferFactory, decoder: nn.Module) -> nn.Module:
    """Return the module to run or compile for buffers of `make`: `decoder`, or its wrapper.

    The wrapper is that of a `protocols.WorksInGraph`.
    """
    wrap: Callable[[nn.Module], nn.Module] | None = getattr(make, "in_graph", None)
    return decoder if wrap is None else wrap(decoder)


def take_accesses(session: Session) -> AccessFacts | None:
    """Return what the kernels of a `protocols.KnowsAccesses` touched since the last call, None for others."""
    take: Callable[[], AccessFacts | None] | None = getattr(session, "take_accesses", None)
    return None if take is None else take()


def innermost(session: Session) -> Session:
    """Return the session inside a `protocols.WrapsSession`, or the session itself."""
    inner: Session = getattr(session, "inner", session)
    return inner


CALLS = ("get", "set", "clear", "resize", "capacity")
"""The members of a buffer by name."""
_ABOUT: dict[Rule, tuple[str, ...]] = {
    Rule.STRUCTURE: ("get",),
    Rule.BOUNDARY: ("get", "set"),
    Rule.FRESHNESS: ("set",),
    Rule.CAPACITY: ("resize", "capacity"),
    Rule.CLEAR: ("clear",),
    Rule.PLACEMENT: ("get",),
    Rule.GRAPHS: ("get",),
}
"""The calls whose text states the promise of a rule; the others are in the text of the whole class."""
WHERE = "the whole contract: pytest --fixtures -v, or deepstack_harness.contract.protocols.Buffer"


def text_of_call(call: str) -> str:
    """Return the contract of `get`, `set`, `clear`, `resize` or `capacity`, as paragraphs."""
    return inspect.getdoc(getattr(Buffer, call)) or ""


def contract_text() -> str:
    """Return the whole contract of a buffer and its decoder."""
    classes = (Buffer, BufferFactory, AnnouncesMoves, ReleasesStorage, Decoder)
    texts = {protocol.__name__: inspect.getdoc(protocol) or "" for protocol in classes}
    calls = {f"Buffer.{call}": text_of_call(call) for call in CALLS}
    parts = {"Buffer": texts.pop("Buffer"), **calls, **texts}
    return "\n\n".join(f"{name}\n{indent(text, '    ')}" for name, text in parts.items())


def quoted(rule: Rule) -> str:
    """Return the promise of a rule, and the methods whose contract has the details."""
    calls = " and ".join(f"Buffer.{call}" for call in _ABOUT.get(rule, ()))
    return f"{rule} {rule.word}: {rule.promise}" + (f" (see {calls})" if calls else "")
