"""The work of a worker that plays many cases on one session, which is compiled once."""

from collections.abc import Mapping
from typing import Any

import msgspec
import torch

from deepstack_harness.contract.buffer_ref import BufferRef
from deepstack_harness.contract.case import Case
from deepstack_harness.contract.observation import Observation
from deepstack_harness.contract.protocols import BufferFactory
from deepstack_harness.contract.trace import Step
from deepstack_harness.play.in_process import factory_of
from deepstack_harness.play.play_case import play_case
from deepstack_harness.play.shared_session import SharedSession
from deepstack_harness.workers.child import Channel

_bound: dict[BufferRef, BufferFactory] = {}
_shared = SharedSession()


def bind(buffer: Mapping[str, Any] | None, source: str | None, family: str) -> dict[str, Any]:
    """Find a buffer before it is played: a `BufferRef`, or the class of a source for a family.

    Return its `BufferRef` and the version of torch.  Raises `UsageError` for what does not exist, and
    `MachineError` for a source that cannot be fetched.
    """
    torch.set_num_threads(1)
    if source is None:
        found = msgspec.convert(buffer, BufferRef)
        _bound[found] = factory_of(found)
    else:
        from deepstack_harness.engines.classes import methods_of
        from deepstack_harness.engines.known import open_source

        factory = methods_of(open_source(source), family)
        found = factory.ref
        _bound[found] = factory
    return {"buffer": msgspec.to_builtins(found), "torch": str(torch.__version__)}


def bind_live(buffer: BufferRef, factory: BufferFactory) -> None:
    """Have a reference stand for a class that is alive in this process."""
    _bound[buffer] = factory


def play_shared(case: Mapping[str, Any], new_session: bool, channel: Channel) -> dict[str, Any]:
    """Play a `Case` on the session of the cases before it, or on a new one; return the `Observation`.

    Each step is announced as a phase, which begins with its number.
    """

    def announce(number: int, step: Step) -> None:
        channel.phase(f"step {number} '{step}'")

    seen = play_on_shared_session(msgspec.convert(case, Case), new_session=new_session, announce=announce)
    return msgspec.to_builtins(seen)  # type: ignore[no-any-return]


def play_on_its_own(case: Mapping[str, Any]) -> dict[str, Any]:
    """Play a `Case` as `check` does, on a session of its own and with the sizes of its family."""
    return msgspec.to_builtins(play_case(msgspec.convert(case, Case), _bound))  # type: ignore[no-any-return]


def play_on_shared_session(case: Case, *, new_session: bool, **announce: Any) -> Observation:
    """Play a case in this process on the session that such cases share; see `SharedSession.play`."""
    if new_session:
        _shared.close()
    if case.buffer not in _bound:
        _bound[case.buffer] = factory_of(case.buffer)
    return _shared.play(case, _bound[case.buffer], **announce)
