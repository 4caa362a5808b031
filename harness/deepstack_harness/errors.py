"""Errors that are for people: one sentence, and the exit code that belongs to it.

Exit codes (the same for every command): 0 as it should be, 1 not as it should be, 2 wrong
usage, 3 not possible on this machine, 4 a bug of the harness.

`torch_problem` distinguishes a missing or broken torch from a bug of ours, without importing it.
"""

import difflib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import IntEnum
from types import TracebackType


class ExitCode(IntEnum):
    """Exit status of a command; `--bisect` turns 2, 3 and 4 into 125.

    >>> ExitCode(1)
    <ExitCode.BROKEN: 1>
    """

    HOLDS = 0
    BROKEN = 1
    USAGE = 2
    MACHINE = 3
    BUG = 4
    BISECT_SKIP = 125


class HarnessError(Exception):
    """A sentence for the user, and the exit code it ends the command with.

    >>> HarnessError("a case has no family").exit_code
    <ExitCode.BUG: 4>
    """

    exit_code = ExitCode.BUG


class UsageError(HarnessError):
    """The call was wrong: an unknown name, file, release or class.

    >>> Trace.parse("cap 16: sett 16")
    Traceback (most recent call last):
    deepstack_harness.contract.trace.TraceError: ...
    """

    exit_code = ExitCode.USAGE


@dataclass(frozen=True)
class Reason:
    """The reason why code of a source cannot be read, cut or run, and its place.

    `file` is empty, and `line` None, where the reason is about no file or no line of it.  One that `remains`
    would be the same with the whole package.
    """

    text: str
    file: str = ""
    line: int | None = None
    remains: bool = False

    @property
    def where(self) -> str:
        """`FILE:LINE`, or `FILE` without a line."""
        return self.file if self.line is None else f"{self.file}:{self.line}"

    def __str__(self) -> str:
        """Return `FILE:LINE: TEXT`."""
        return f"{self.where}: {self.text}" if self.file else self.text


class SourceError(UsageError):
    """Code of a source cannot be read, cut or run; the message is the `reason` with its place in front."""

    def __init__(self, reason: Reason | str) -> None:
        """Take the reason; a plain text has no place."""
        super().__init__(str(reason))
        self.reason = Reason(reason) if isinstance(reason, str) else reason


def reason_of(error: UsageError) -> Reason:
    """Return the reason of an error, with its place where the error has one."""
    return error.reason if isinstance(error, SourceError) else Reason(str(error))


_LONGEST_LIST = 1000
"""Characters of a list of names in a message; the others are counted."""
_TWO_LINES = 200
"""Characters of a list of names that is printed in full: two lines of a terminal, roughly."""
_LONGEST_NAME = 200
"""Characters of a name that does not exist that are quoted."""


def unknown_name(
    kind: str, name: str, known: Iterable[str], listed: str = "", *, elsewhere: str = ""
) -> UsageError:
    """Return the error for a name that does not exist: the nearest known one, and the known names.

    `kind` is what was named, such as "revision"; `listed` is printed in place of the known names. Of more
    names than fit on two lines the three nearest are printed, and `elsewhere`, where all of them are listed.
    """
    names = list(known)
    near = nearest(name, names)
    name = name if len(name) <= _LONGEST_NAME else f"{name[:_LONGEST_NAME]} .."
    listed = listed or ", ".join(names)
    if len(listed) > _TWO_LINES:
        known_are = f"nearest are {', '.join(near[:3])}" + (f"; {elsewhere}" if elsewhere else "")
        return UsageError(f"unknown {kind} '{name}'; {known_are}")
    meant = f" did you mean '{near[0]}'?" if near and is_close(name, near[0]) else ""
    return UsageError(f"unknown {kind} '{name}';{meant} known are {listed}")


def nearest(name: str, names: Sequence[str]) -> list[str]:
    """Return names by their likeness to `name`, the nearest first."""
    # Of very long names the beginning is compared: difflib takes quadratic time.
    return difflib.get_close_matches(name[:_LONGEST_NAME], names, n=len(names) or 1, cutoff=0)


def is_close(name: str, near: str) -> bool:
    """Return whether two names are spelled much alike, so that one may be meant by the other."""
    return difflib.SequenceMatcher(None, near, name).ratio() >= 0.7


def shorten_list(names: Sequence[str]) -> str:
    """Return names joined by commas; those beyond 1,000 characters as their number."""
    joined = ", ".join(names)
    if len(joined) <= _LONGEST_LIST:
        return joined
    shown = joined[:_LONGEST_LIST].rpartition(", ")[0]
    return f"{shown} and {len(names) - shown.count(', ') - 1} more"


_EXTRAS = {
    "pandas": "reports",
    "datasets": "reports",
    "matplotlib": "reports",
    "junitparser": "reports",
    "pyarrow": "workload",
    "huggingface_hub": "workload",
    "PIL": "workload",
    "ray": "ray",
    "triton": "kernels",
}
"""Modules that a plain installation does not have, and the extra of pyproject.toml that brings each."""


def missing_extra(error: BaseException) -> "MachineError | None":
    """Return the error, with the line that installs it, for an import of a library of an extra; else None."""
    name = (error.name or "").partition(".")[0] if isinstance(error, ModuleNotFoundError) else ""
    if name not in _EXTRAS:
        return None
    return MachineError(
        f"{name} is not installed: python -m pip install 'deepstack-harness[{_EXTRAS[name]}]'"
    )


class MachineError(HarnessError):
    """The machine cannot: no network, no GPU, no compiler, no room on the disk.

    >>> MachineError("no GPU is here").exit_code
    <ExitCode.MACHINE: 3>
    """

    exit_code = ExitCode.MACHINE


class OutOfMemory(MachineError):
    """A case needs more memory than the machine has, or than it may use: no finding of any rule."""


class NotMeasured(HarnessError):
    """A probe saw nothing, so that judging would be guessing; the case is ERROR."""


class StepUnavailable(Exception):
    """The buffer or the session has no such step: rules that need it are SKIP."""


def text_of(error: BaseException) -> str:
    """Return the text of an exception, or a note where its `__str__` raises or returns no text."""
    try:
        # A slice of `str` itself: code under test may return a text with methods of its own.
        return str.__getitem__(str(error), slice(None))
    except BaseException as second:  # `__str__` is code under test, and may raise SystemExit
        if passes_through(second):
            raise
        return f"(its text cannot be had: {type(second).__name__})"


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether an allocation failed; a class of other code that only has the name does not count."""
    known = isinstance(error, MemoryError | OutOfMemory) or type(error).__module__.startswith("torch")
    name = type(error).__name__ if known else ""
    return names_out_of_memory(name, text_of(error) if known or isinstance(error, RuntimeError) else "")


def names_out_of_memory(name: str, text: str) -> bool:
    """Return True if the exception of this class and text is a failed allocation.

    torch raises `OutOfMemoryError` on a GPU, and on the CPU a RuntimeError with one of these texts.
    """
    texts = ("can't allocate memory", "not enough memory")
    names = {"MemoryError", "OutOfMemoryError", "OutOfMemory"}
    return name in names or any(part in text for part in texts)


def passes_through(error: BaseException) -> bool:
    """Return True for Ctrl-C, and for the exceptions by which pytest ends a test."""
    # pytest sets `__module__` of `Failed` and `Skipped` to "builtins", but not that of their base class.
    kinds = type(error).__mro__
    return isinstance(error, KeyboardInterrupt) or any(
        kind.__module__.startswith("_pytest.") for kind in kinds
    )


INSTALL = "python -m pip install 'torch>=2.10'"
"""The line that installs a torch that fits."""


def torch_problem(error: BaseException) -> str | None:
    """Return a sentence for an exception out of `import torch`, with the line that installs it; else None.

    A broken torch raises whatever its first modules raise: an OSError for a library of CUDA that is not
    there, an ImportError for an undefined symbol, an AttributeError for half a package.
    """
    reason = f"{type(error).__name__}: {error}".partition("\n")[0]
    if isinstance(error, ModuleNotFoundError) and error.name == "torch":
        return f"torch is not installed: {INSTALL}"
    if _while_torch_was_imported(error.__traceback__):
        return f"torch cannot be imported ({reason}): {INSTALL} --force-reinstall"
    return None


def _while_torch_was_imported(frame: TracebackType | None) -> bool:
    while frame is not None:
        code = frame.tb_frame.f_code
        if code.co_name == "<module>" and frame.tb_frame.f_globals.get("__name__") == "torch":
            return True
        frame = frame.tb_next
    return False
