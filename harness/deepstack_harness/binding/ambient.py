"""What it takes to execute cut-out code: its ambient context, and where in its file it failed."""

import linecache
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from types import CodeType
from typing import Any

import torch

from deepstack_harness.errors import UsageError
from deepstack_harness.sources.source import SourceFile


def show_in_tracebacks(file: SourceFile) -> None:
    """Let tracebacks quote the lines that were compiled, also when they lie inside a wheel.

    Without a modification time linecache never drops the entry.
    """
    lines = file.text.splitlines(keepends=True)
    linecache.cache[file.filename] = (len(file.text), None, lines, file.filename)


def place_of(error: Exception, filename: str) -> str:
    """`FILE:LINE` of the innermost frame in `filename`."""
    frames = traceback.walk_tb(error.__traceback__)
    lines = [line for frame, line in frames if frame.f_code.co_filename == filename]
    return f"{filename}:{lines[-1]}" if lines else filename


@contextmanager
def ambient(dtype: torch.dtype, device: torch.device) -> Iterator[None]:
    """Make `dtype` and `device` those of tensors that are made without saying which."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        with device:
            yield
    finally:
        torch.set_default_dtype(before)


def define_name(code: CodeType, name: str, **names: object) -> Any:  # noqa: ANN401  # its type is known to its own file
    """Execute `code` and return what it binds to `name`.

    Raises `UsageError` with file and line when that needs the whole vLLM.
    """
    known: dict[str, object] = {"__name__": __name__, **names}
    try:
        exec(code, known)
    except Exception as error:
        where = place_of(error, code.co_filename)
        raise UsageError(f"{where}: {name} cannot be defined without vLLM: {error}") from error
    return known[name]
