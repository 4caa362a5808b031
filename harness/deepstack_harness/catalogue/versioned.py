"""Data files with a schema version, read as typed dataclasses."""

from collections.abc import Callable, Iterator
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Protocol, TypeVar

import msgspec

from deepstack_harness.errors import UsageError


class Versioned(Protocol):
    """A dataclass of a whole file."""

    @property
    def schema_version(self) -> int:
        """The version of the file's form."""
        ...


V = TypeVar("V", bound=Versioned)


def load_toml(path: Path, kind: type[V], what: str, version: int) -> V:
    """Read a TOML file as `kind`; `what` names its content in messages.

    Raises `UsageError` that says which entry is wrong and where, or which version the file has.  A key
    that `kind` does not have is wrong too: a misspelt one would silently change nothing.
    """
    return _checked(path, what, version, lambda text: _decoded_toml(text, kind))


def load_json(path: Path, kind: type[V], what: str, version: int) -> V:
    """Read a JSON file as `load_toml` reads a TOML file."""
    return _checked(path, what, version, lambda text: msgspec.json.decode(text, type=kind))


def _decoded_toml(text: bytes, kind: type[V]) -> V:
    found = msgspec.toml.decode(text, type=kind)
    for unknown in _unknown_keys(msgspec.toml.decode(text), found, "$"):
        raise msgspec.ValidationError(unknown)
    return found


def _unknown_keys(written: object, read: object, place: str) -> Iterator[str]:
    """Yield a sentence for each key that the dataclass in its place lacks; msgspec ignores such keys."""
    if isinstance(written, dict) and is_dataclass(read):
        known = [field.name for field in fields(read)]
        for key, value in written.items():
            if key not in known:
                yield f"unknown key '{key}', known are {', '.join(known)} - at `{place}`"
            else:
                yield from _unknown_keys(value, getattr(read, key), f"{place}.{key}")
    elif isinstance(written, list) and isinstance(read, tuple):
        for number, (one, other) in enumerate(zip(written, read, strict=True)):
            yield from _unknown_keys(one, other, f"{place}[{number}]")


def _checked(path: Path, what: str, version: int, decode: Callable[[bytes], V]) -> V:
    try:
        found = decode(path.read_bytes())
    except (OSError, msgspec.MsgspecError) as error:
        raise UsageError(f"{path} is not {what}: {error}") from None
    if found.schema_version != version:
        raise UsageError(f"{path} has schema_version {found.schema_version}, this harness reads {version}")
    return found
