"""Members that a buffer, a buffer factory or a session may have, each read in one place.

They are looked up by name, so that a user's class needs to import nothing.  The protocols in
`deepstack_harness.contract.protocols` say what each of them means.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from deepstack_harness.errors import StepUnavailable

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor, nn

    from deepstack_harness.contract.facts.accesses import AccessFacts
    from deepstack_harness.contract.protocols import Buffer, BufferFactory, Session


def generation_of(buffer: Buffer) -> int | None:
    """Return the generation of a `protocols.AnnouncesMoves`, None for other buffers."""
    generation: int | None = getattr(buffer, "generation", None)
    return generation


def has_vision(buffer: Buffer) -> bool:
    """Return what a `protocols.StatesVision` states; True for other buffers."""
    return bool(getattr(buffer, "vision", True))


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
