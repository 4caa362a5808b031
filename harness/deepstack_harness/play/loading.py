"""Classes and functions of the user, imported by name, and the results of the worker that plays them."""

import importlib
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import cast

from deepstack_harness.contract.adapter import Adapter
from deepstack_harness.contract.case import BufferRef, user_buffer
from deepstack_harness.contract.observation import Observation
from deepstack_harness.contract.protocols import BufferFactory
from deepstack_harness.errors import UsageError, passes_through, text_of
from deepstack_harness.play import clock


@dataclass(frozen=True)
class Played:
    """A case that was played: its observation without the steps that were sent as facts.

    `device_works` is False for a GPU that no longer works: after some errors every later call of a process
    fails there, so that the worker must not be used again.
    """

    observation: Observation
    device_works: bool


@dataclass(frozen=True)
class BoundBuffer:
    """A buffer that a worker has found, and the version of torch there."""

    buffer: BufferRef
    torch: str


@dataclass(frozen=True)
class Loaded:
    """A class of the user that fits: its name, and what it states of its rows."""

    name: str
    adapter: Adapter | None = None


def load_buffer(text: str) -> BufferFactory:
    """Import a class or a function, from the current folder too, and make one buffer to see that it fits.

    Raises `UsageError` with the name of what is missing.
    """
    return check_fit(cast(BufferFactory, load_class(text)), text)


def load_class(text: str) -> Callable[..., object]:
    """Import a class or a function as `load_buffer` does, whatever it makes."""
    clock.install()  # before `from time import monotonic` of the module
    return load_named(user_buffer(text).name)


def load_named(text: str) -> Callable[..., object]:
    """Import what `MODULE:NAME` leads to, from the current folder too, or `FILE.py:NAME`.

    Raises `UsageError` for no callable, for a file that is not there, and for one with the name of another
    module, such as `torch.py`.
    """
    path, _, name = text.partition(":")
    if path.endswith(".py"):  # under its own name, with its folder first on the path
        file = Path(path).resolve()
        if not file.is_file():
            raise UsageError(f"there is no file '{path}'")
        sys.path.insert(0, str(file.parent))
        module = _imported(file.stem)
        if getattr(module, "__file__", None) != str(file):
            raise UsageError(f"'{path}' has the name of another module, '{file.stem}': rename the file")
    else:
        module = _imported(path)
    thing = getattr(module, name, None)
    if not callable(thing):
        what = "no" if thing is None else "no class or function, but another object,"
        raise UsageError(f"module '{path}' has {what} '{name}'")
    return cast(Callable[..., object], thing)


def _imported(name: str) -> object:
    folder = str(Path.cwd())
    if folder not in sys.path:
        sys.path.insert(0, folder)
    try:
        return importlib.import_module(name)
    except BaseException as error:
        if passes_through(error):
            raise
        # A module may raise anything while it is imported, SystemExit too.
        raise UsageError(
            f"module '{name}' cannot be imported: {type(error).__name__}: {text_of(error)}"
        ) from None


def check_fit(make: BufferFactory, text: str) -> BufferFactory:
    """Return what makes buffers of `make`, named `text`; raises `UsageError` where it does not fit."""
    from deepstack_harness.models.adapted import check_interface

    return check_interface(make, text)
