"""What it takes to execute cut-out code: its ambient context, and where in its file it failed."""

import linecache
import traceback
from collections.abc import Iterator
from contextlib import contextmanager

import torch

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
