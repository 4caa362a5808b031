"""With which torch and triton code is generated for a GPU that is not here."""

import importlib.metadata
from collections.abc import Callable, Mapping

from deepstack_harness.errors import MachineError

SUPPORTED: Mapping[str, str] = {"2.11": "3.6", "2.13": "3.7", "2.15": "3.9"}
"""torch minor version -> the triton minor version it is released with.

These pairs were run; what is generated rests on private parts of both, so others
are refused until they were.
"""

INTERPRETED: Mapping[str, str] = {"2.13": "3.7"}
"""The pairs with which generated code was interpreted, too: the interpreter's private parts are others."""


def check_interpreter() -> None:
    """Raise `MachineError` unless code was interpreted with this torch and triton; import neither."""
    check_support()
    torch = _minor(_version("torch") or "")
    if torch not in INTERPRETED:
        known = ", ".join(f"torch {one} with triton {other}" for one, other in INTERPRETED.items())
        raise MachineError(
            f"code for a GPU that is not here was never interpreted with torch {torch}; known is {known}"
        )


def check_support() -> None:
    """Raise `MachineError` unless torch and triton fit together; import neither."""
    torch, triton = _version("torch"), _version("triton")
    known = ", ".join(f"torch {one} with triton {other}" for one, other in SUPPORTED.items())
    if torch is None or _minor(torch) not in SUPPORTED:
        raise MachineError(f"torch {torch} has not been tested for a GPU that is not here; known are {known}")
    wanted = SUPPORTED[_minor(torch)]
    if triton is None:
        raise MachineError(
            f"code for a GPU that is not here needs the package triton {wanted}: "
            f"python -m pip install --no-deps 'triton=={wanted}.*'"
        )
    if _minor(triton) != wanted:
        raise MachineError(f"torch {torch} needs triton {wanted}, here is {triton}; known are {known}")


def why_not(check: Callable[[], None] = check_support) -> str:
    """Return the sentence that `check` raises; empty where it raises nothing."""
    try:
        check()
    except MachineError as error:
        return str(error)
    return ""


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _minor(version: str) -> str:
    return ".".join(version.split(".")[:2])
