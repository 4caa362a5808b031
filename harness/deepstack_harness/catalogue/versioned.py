"""Data files with a schema version, read as typed dataclasses."""

from collections.abc import Callable
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

    Raises `UsageError` that says which entry is wrong and where, or which version the file has.
    """
    return _checked(path, what, version, lambda text: msgspec.toml.decode(text, type=kind))


def load_json(path: Path, kind: type[V], what: str, version: int) -> V:
    """Read a JSON file as `load_toml` reads a TOML file."""
    return _checked(path, what, version, lambda text: msgspec.json.decode(text, type=kind))


def _checked(path: Path, what: str, version: int, decode: Callable[[bytes], V]) -> V:
    try:
        found = decode(path.read_bytes())
    except (OSError, msgspec.MsgspecError) as error:
        raise UsageError(f"{path} is not {what}: {error}") from None
    if found.schema_version != version:
        raise UsageError(f"{path} has schema_version {found.schema_version}, this harness reads {version}")
    return found
