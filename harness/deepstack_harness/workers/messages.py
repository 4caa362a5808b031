"""The parent's half of the messages between a worker and the process that calls it: JSON, one per line."""

import json
import os
import selectors
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from deepstack_harness.workers.supervised import GRACE_S, Supervised, read_now

_KINDS = frozenset({"ready", "phase", "fact", "answered", "raised"})


@dataclass(frozen=True)
class Message:
    """A message of a worker: `call` is the number of the call that it belongs to, 0 for the start."""

    call: int
    kind: str
    value: Any


class NotAMessage(Exception):
    """Something else came out of the answer pipe."""


class MessagePipes:
    """The pipe for requests and the pipe for answers; the child inherits the other ends."""

    def __init__(self) -> None:
        """Open both."""
        self.for_requests, self._requests = os.pipe()
        self._answers, self.for_answers = os.pipe()
        self.received = 0
        """Bytes that came since the last request."""
        self.closes_at: float | None = None
        """Set at the end of the answers: time (`time.monotonic()`) to give up a child that does not end."""
        self._outbox, self._inbox, self._searched = memoryview(b""), bytearray(), 0
        self._process: Supervised | None = None
        self._closed = False

    def attach(self, process: Supervised) -> None:
        """Be served by the loop of `process`, which has inherited the other ends."""
        self._process = process
        for stream in (self._requests, self._answers):
            os.set_blocking(stream, False)
        process.register(self._answers, self._read)
        self.close_theirs()

    def close_theirs(self) -> None:
        """Close the ends for the child: only with them closed here, its end is the end of the stream."""
        os.close(self.for_requests)
        os.close(self.for_answers)

    def send(self, request: Mapping[str, Any]) -> None:
        """Send a request; what the pipe does not take now follows while `Supervised.listen` runs."""
        assert self._process is not None  # attached
        self._outbox = memoryview(json.dumps(request).encode() + b"\n")
        self.received = len(self._inbox)
        self._process.register(self._requests, self._write, selectors.EVENT_WRITE)

    def receive(self) -> Message | None:
        """Return the next message, None where it is not complete; raises `NotAMessage`."""
        end = self._inbox.find(b"\n", self._searched)
        if end < 0:
            self._searched = len(self._inbox)
            return None
        line = bytes(self._inbox[:end])
        del self._inbox[: end + 1]
        self._searched = 0
        return _parse(line)

    def close(self) -> None:
        """Close our ends; closing them again does nothing."""
        if not self._closed:
            os.close(self._requests)
            os.close(self._answers)
        self._closed = True

    def _write(self) -> None:
        assert self._process is not None  # attached
        try:
            self._outbox = self._outbox[os.write(self._requests, self._outbox) :]
        except BlockingIOError:
            return
        except BrokenPipeError:  # it has ended, and its answer will be missing
            self._outbox = memoryview(b"")
        if not self._outbox:
            self._process.unregister(self._requests)

    def _read(self) -> None:
        assert self._process is not None  # attached
        chunk = read_now(self._answers)
        if chunk == b"":
            self._process.unregister(self._answers)
            self.closes_at = time.monotonic() + GRACE_S
        self._inbox += chunk or b""
        self.received += len(chunk or b"")


def _parse(line: bytes) -> Message:
    try:
        found = json.loads(line)
        message = Message(found["call"], found["kind"], found["value"])
    except (ValueError, TypeError, KeyError, RecursionError):
        raise NotAMessage(f"{line[:80]!r}") from None
    if message.kind not in _KINDS or not isinstance(message.call, int):
        raise NotAMessage(f"{line[:80]!r}")
    return message
