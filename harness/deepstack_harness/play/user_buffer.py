"""Load a buffer class of the user by `MODULE:CLASS`, and check that it fits the interface."""

import importlib
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import cast

from deepstack_harness.contract.buffer_ref import user_buffer
from deepstack_harness.contract.contract_text import WHERE
from deepstack_harness.contract.protocols import BufferFactory
from deepstack_harness.errors import UsageError, passes_through
from deepstack_harness.workers.child import Channel
from deepstack_harness.workers.foreign import FOREIGN_LIMITS, foreign_worker
from deepstack_harness.workers.outcomes import RaisedInWorker, WorkerEnd, value_of
from deepstack_harness.workers.profiles import COMPILE

_SIGNATURE = "(capacity, hidden, levels, *, dtype, device)"
_METHODS = {"get": "get(tokens)", "set": "set(payload)", "clear": "clear(tokens)"}
_IMPORTING_S = 300.0
"""Seconds for torch and our own modules."""
_LOADING_S = 120.0
"""Seconds for the modules of the user."""


def load_buffer(text: str) -> BufferFactory:
    """Import a class or a function, from the current folder too, and make one buffer to see that it fits.

    Raises `UsageError` that says what is missing.
    """
    module, _, name = user_buffer(text).name.partition(":")
    found = getattr(_module(module), name, None)
    if not callable(found):
        what = "no" if found is None else "no class or function, but another object,"
        raise UsageError(f"module '{module}' has {what} '{name}'")
    check_fit(cast(BufferFactory, found), text)
    return cast(BufferFactory, found)


def check_buffers(names: Sequence[str]) -> None:
    """Refuse, with `UsageError`, classes that `load_buffer` refuses or that end a worker which loads them."""
    limits = replace(FOREIGN_LIMITS, start_s=_IMPORTING_S, call_s=_LOADING_S)
    with foreign_worker(COMPILE, limits, preload=__name__) as worker:
        result = worker.call(f"{__name__}:load_all", {"names": list(names)})
    if isinstance(result, WorkerEnd):
        raise UsageError(f"loading {', '.join(names)}: {result.sentence}")
    if (
        isinstance(result, RaisedInWorker)
        and "PermissionError" in result.message
        and worker.in_force.in_force
    ):
        raise UsageError(f"{result.message}; it runs in a sandbox, which --no-sandbox turns off")
    value_of(result, f"loading {', '.join(names)}")


def load_all(names: Sequence[str], channel: Channel) -> None:
    """Load classes, and forget them; for a worker."""
    for name in names:
        channel.phase(f"the import of {name}")
        load_buffer(name)


def _module(name: str) -> object:
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        return importlib.import_module(name)
    except BaseException as error:
        if passes_through(error):
            raise
        # A module may raise anything while it is imported, SystemExit too.
        raise UsageError(f"module '{name}' cannot be imported: {type(error).__name__}: {error}") from None


def check_fit(make: BufferFactory, text: str) -> None:
    """Make one small buffer; raises `UsageError` where `make`, named `text`, does not fit the interface."""
    import torch

    try:
        buffer = make(4, 8, 2, dtype=torch.float32, device=torch.device("cpu"))
    except BaseException as error:
        if passes_through(error):
            raise
        # Whatever the class raises, SystemExit too, it does not fit.
        raise UsageError(
            f"{text} cannot be made with {_SIGNATURE}: {type(error).__name__}: {error}"
        ) from None
    missing = [call for method, call in _METHODS.items() if not callable(getattr(buffer, method, None))]
    if not isinstance(getattr(buffer, "capacity", None), int):
        missing.append("the attribute capacity (int, token rows)")
    if missing:
        raise UsageError(f"{text} does not fit the buffer interface, it lacks {', '.join(missing)}; {WHERE}")
