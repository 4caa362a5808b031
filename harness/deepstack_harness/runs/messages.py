"""What goes between a runner and the process of a group: JSON lines, never pickle."""

import msgspec

from deepstack_harness.contract.case import PlannedCase
from deepstack_harness.results.case_result import CaseResult


class Ready(msgspec.Struct, frozen=True, tag=True):
    """Everything is imported: cases can come."""


class Finished(msgspec.Struct, frozen=True, tag=True):
    """A case came to an end; `fit` is False where the process must not be used again."""

    result: CaseResult
    fit: bool


Reply = Ready | Finished


def encode(message: PlannedCase | Reply) -> bytes:
    """One line."""
    return msgspec.json.encode(message) + b"\n"


def decode_case(line: bytes | str) -> PlannedCase:
    """Read a case to play; raises `msgspec.MsgspecError` for anything else."""
    return msgspec.json.decode(line, type=PlannedCase)


def decode_reply(line: bytes) -> Reply:
    """Read a reply; raises `msgspec.MsgspecError` for anything else."""
    reply: Reply = msgspec.json.decode(line, type=Reply)
    return reply
