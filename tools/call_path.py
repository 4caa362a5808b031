"""`python -m tools.call_path [COMMAND ..]`: list what must be opened to follow a command to torch.compile.

Prints the frames of the harness between `cli.main.main` and the first call of `torch.compile`, and the files
of the harness of which a function ran. The command is `repro 43602` unless another one is given. Both counts
come from `sys.setprofile`, so they hold for the code that ran and not for code that could have run.
"""

from __future__ import annotations

import inspect
import os
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

import deepstack_harness

PACKAGE = Path(deepstack_harness.__file__).parent
_DEFAULT = ("repro", "43602", "--quiet")


@dataclass(frozen=True)
class CallPath:
    """Frames and files of the harness that a command ran through.

    `frames` are "module:function", outermost first, from `cli.main.main` to the caller of `torch.compile`.
    `files` are relative to the package. `imported` are the files whose module was loaded.
    """

    frames: tuple[str, ...]
    files: tuple[str, ...]
    imported: tuple[str, ...]
    exit_code: int


def measure(words: Sequence[str]) -> CallPath:
    """Run a command in this process under `sys.setprofile`; raises `RuntimeError` if it compiled nothing."""
    import torch

    from deepstack_harness.cli.main import main

    compiling = inspect.unwrap(torch.compile).__code__
    paths: list[tuple[str, ...]] = []
    ran: set[str] = set()

    def profile(frame: FrameType, event: str, _: object) -> None:
        if event != "call":
            return
        code = frame.f_code
        if code is compiling and not paths:
            paths.append(tuple(reversed(list(_ours(frame)))))
        # Bodies of modules and classes run once, at import; only functions are optimized code.
        if code.co_flags & inspect.CO_OPTIMIZED:
            ran.add(code.co_filename)

    torch.compiler.reset()  # imports Dynamo, which takes half a minute under a profile function
    sys.setprofile(profile)
    try:
        exit_code = main(words)
    finally:
        sys.setprofile(None)
    if not paths:
        raise RuntimeError(f"'{' '.join(words)}' ended with {exit_code} and never called torch.compile")
    loaded = {getattr(module, "__file__", None) or "" for module in list(sys.modules.values())}
    return CallPath(paths[0], tuple(_inside(ran)), tuple(_inside(loaded)), exit_code)


def _ours(frame: FrameType) -> Iterator[str]:
    """Yield the functions of the harness from a frame outwards, up to `cli.main.main`."""
    outer: FrameType | None = frame
    while outer is not None:
        path = Path(outer.f_code.co_filename)
        if path.is_relative_to(PACKAGE):
            where = path.relative_to(PACKAGE).as_posix()
            yield f"{where}:{outer.f_code.co_qualname}"
            if where == "cli/main.py" and outer.f_code.co_name == "main":
                return
        outer = outer.f_back


def _inside(paths: set[str]) -> Iterator[str]:
    for name in sorted(paths):
        if Path(name).is_relative_to(PACKAGE):
            yield Path(name).relative_to(PACKAGE).as_posix()


def _main(words: Sequence[str]) -> int:
    # As repro does it in its own process: one thread, no hub.
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    seen = measure(words or _DEFAULT)
    for depth, frame in enumerate(seen.frames, 1):
        print(f"{depth:3} {frame}")
    print(*seen.files, sep="\n")
    lines = sum(len((PACKAGE / name).read_text().splitlines()) for name in seen.files)
    print(
        f"'{' '.join(words or _DEFAULT)}' (exit {seen.exit_code}): {len(seen.frames)} frames between "
        f"cli.main.main and torch.compile, {len(seen.files)} files run, {lines} lines, "
        f"{len(seen.imported)} files imported"
    )
    return seen.exit_code


if __name__ == "__main__":
    sys.exit(_main(sys.argv[1:]))
