"""What goes between a runner and the process of a group: JSON lines, never pickle."""

import msgspec

from deepstack_harness.runs.task_result import Done
from deepstack_harness.runs.tasks import Task


class Ready(msgspec.Struct, frozen=True, tag=True):
    """Everything is imported: tasks can come."""


class Finished(msgspec.Struct, frozen=True, tag=True):
    """A task came to an end; `fit` is False where the process must not be used again."""

    done: Done
    fit: bool


Reply = Ready | Finished


def encode(message: Task | Reply) -> bytes:
    """One line."""
    return msgspec.json.encode(message) + b"\n"


def decode_task(line: bytes | str) -> Task:
    """Read a task; raises `msgspec.MsgspecError` for anything else."""
    return msgspec.json.decode(line, type=Task)


def decode_reply(line: bytes) -> Reply:
    """Read a reply; raises `msgspec.MsgspecError` for anything else."""
    reply: Reply = msgspec.json.decode(line, type=Reply)
    return reply
