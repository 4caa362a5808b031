"""The contract of buffers and decoders as text, for messages and help; it is written in `protocols`."""

import inspect

from deepstack_harness.contract.protocols import (
    AnnouncesMoves,
    Buffer,
    BufferFactory,
    Decoder,
    ReleasesStorage,
)
from deepstack_harness.contract.rules import Rule

_CALLS = ("get", "set", "clear", "resize", "capacity")
_ABOUT: dict[Rule, tuple[str, ...]] = {
    Rule.R1: ("get",),
    Rule.R2: ("get", "set"),
    Rule.R3: ("set",),
    Rule.R4: ("resize", "capacity"),
    Rule.R5: ("clear",),
    Rule.R7: ("get",),
    Rule.R11: ("get",),
}
"""The calls whose text says what a rule promises; the others are in the text of the whole class."""
WHERE = "the whole contract: pytest --fixtures -v, or deepstack_harness.contract.protocols.Buffer"


def text_of_call(call: str) -> str:
    """Return the contract of `get`, `set`, `clear`, `resize` or `capacity`, as paragraphs."""
    return inspect.getdoc(getattr(Buffer, call)) or ""


def contract_text() -> str:
    """Return the whole contract of a buffer and its decoder."""
    classes = (Buffer, BufferFactory, AnnouncesMoves, ReleasesStorage, Decoder)
    texts = {one.__name__: inspect.getdoc(one) or "" for one in classes}
    calls = {f"Buffer.{call}": text_of_call(call) for call in _CALLS}
    parts = {"Buffer": texts.pop("Buffer"), **calls, **texts}
    return "\n\n".join(f"{name}\n{_indented(text)}" for name, text in parts.items())


def quoted(rule: Rule) -> str:
    """Return the promise of a rule, and where the contract says more about it."""
    calls = " and ".join(f"Buffer.{call}" for call in _ABOUT.get(rule, ()))
    return f"{rule} {rule.word}: {rule.promise}" + (f" (see {calls})" if calls else "")


def _indented(text: str) -> str:
    return "\n".join(f"    {line}" if line else "" for line in text.splitlines())
