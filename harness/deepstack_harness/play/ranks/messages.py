"""What goes between this process and a rank: JSON lines of the cases to play, and of what came of them."""

import msgspec

from deepstack_harness.contract.case import Case
from deepstack_harness.contract.observation import Observation


class Order(msgspec.Struct, frozen=True):
    """Play `case`, in the process group of `case.arm.ranks` ranks that meets at `meeting`.

    `meeting` is a `file://` address, another one for every new group.  `limit_s`: the
    seconds after which nobody waits for the answer any more.
    """

    case: Case
    meeting: str
    limit_s: float


class Ready(msgspec.Struct, frozen=True, tag=True):
    """Everything is imported: orders can come."""


class Played(msgspec.Struct, frozen=True, tag=True):
    """What this rank saw of the case."""

    observation: Observation


class Failed(msgspec.Struct, frozen=True, tag=True):
    """The case could not be played: the exception's class name, and its text."""

    kind: str
    message: str


Reply = Ready | Played | Failed


def encode(message: Order | Reply) -> bytes:
    """The message as JSON."""
    return msgspec.json.encode(message)


def decode_order(text: bytes) -> Order:
    """Read an order; raises `msgspec.ValidationError` for anything else."""
    return msgspec.json.decode(text, type=Order)


def decode_reply(text: bytes) -> Reply:
    """Read a reply; raises `msgspec.ValidationError` for anything else."""
    reply: Reply = msgspec.json.decode(text, type=Reply)
    return reply
