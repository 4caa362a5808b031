"""The functions of a worker that plays cases on buffers of the registry and of the user; models stay warm.

`play.case_worker` calls them; `play.source_work` has those for classes of a source.  Cases are played on
their own, or many on one session, which is compiled once.
"""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import Any

import msgspec
import torch

from deepstack_harness.contract.adapter import adapter_of
from deepstack_harness.contract.case import BufferKind, BufferRef, Case
from deepstack_harness.contract.observation import Observation, StepFacts
from deepstack_harness.contract.protocols import BufferFactory
from deepstack_harness.contract.trace import Step
from deepstack_harness.models.adapted import UnpackedClass
from deepstack_harness.play.attempt import announcing
from deepstack_harness.play.loading import BoundBuffer, Loaded, Played, load_buffer, load_class
from deepstack_harness.play.model import NOTHING_BOUND, factory_of
from deepstack_harness.play.observe import SharedSession
from deepstack_harness.play.play_case import play_case
from deepstack_harness.workers.child import Channel


def play(channel: Channel, case: Case) -> Played:
    """Play a case on a buffer of the registry or of the user; see `send_steps`."""
    channel.phase("set-up")
    return send_steps(channel, case, lambda send: play_case(case, NOTHING_BOUND, send))


Send = Callable[[Observation | StepFacts], None]


def send_steps(channel: Channel, case: Case, observed: Callable[[Send], Observation]) -> Played:
    """Return what `observed` does of a case, without the steps that it sent before the last one.

    Facts are the observation without steps, and then the `StepFacts` of each step, as JSON; the phase is the
    name of the call that is under way.
    """
    sent: list[object] = []

    def send(fact: Observation | StepFacts) -> None:
        sent.append(fact)
        channel.fact(msgspec.to_builtins(fact))
        channel.phase("")

    with announcing(channel.phase):
        seen = observed(send)
    channel.phase("the end")
    rest = replace(seen, steps=seen.steps[max(0, len(sent) - 1) :])
    return Played(rest, _device_works(case.device))


def load(channel: Channel, target: str) -> Loaded:
    """Import a user's class `MODULE:CLASS` and check that it fits; raises `UsageError` where it does not."""
    channel.phase(f"the import of {target}")
    made = load_buffer(target)
    named = made.make if isinstance(made, UnpackedClass) else made
    return Loaded(str(getattr(named, "__name__", target)), adapter_of(named))


def write_adapter(channel: Channel, target: str) -> str:
    """Return the text of an adapter class for `MODULE:CLASS`; raises `UsageError` where that is not there."""
    from deepstack_harness.models.adapter_text import adapter_text

    channel.phase(f"the import of {target}")
    return adapter_text(load_class(target), target)


def _device_works(device: str) -> bool:
    if not device.startswith("cuda"):
        return True
    with suppress(RuntimeError):
        torch.cuda.synchronize()
        return True
    return False


_bound: dict[BufferRef, BufferFactory] = {}
SHARED_SESSION = SharedSession()
"""The session on which cases of this process are played one after the other."""


def bind_shared(buffer: BufferRef) -> BoundBuffer:
    """Find a buffer before it is played; raises `UsageError` for what does not exist."""
    if buffer.kind is BufferKind.USER:
        buffer = replace(buffer, adapter=adapter_of(load_class(buffer.name)))
    _bound[buffer] = factory_of(buffer)
    return BoundBuffer(buffer, str(torch.__version__))


def bind_live(buffer: BufferRef, factory: BufferFactory) -> None:
    """Put a reference in the place of a class that is in this process."""
    _bound[buffer] = factory


def play_shared(case: Case, new_session: bool, channel: Channel) -> Observation:
    """Play a case on the session of the cases before it, or on a new one.

    Each step is announced: its number is a fact, and the phase names it for readers.
    """

    def announce(number: int, step: Step) -> None:
        channel.fact(number)
        channel.phase(f"step {number} '{step}'")

    return play_on_shared_session(case, new_session=new_session, announce=announce)


def play_alone(case: Case) -> Observation:
    """Play a case as `check` does, on a session of its own and with the sizes of its family."""
    return play_case(case, _bound)


def play_on_shared_session(case: Case, *, new_session: bool, **announce: Any) -> Observation:
    """Play a case in this process on the session that such cases share; see `SharedSession.play`."""
    if new_session:
        SHARED_SESSION.close()
    if case.buffer not in _bound:
        _bound[case.buffer] = factory_of(case.buffer)
    return SHARED_SESSION.play(case, _bound[case.buffer], **announce)
