"""Wrong buffers that reach for what measures them, and right ones that use the same means for themselves.

The wrong ones never clear, which is R5, and tamper as in `TAMPERINGS` in every get.
"""

import gc
import inspect
import logging
import sys
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from types import FrameType
from typing import Any

from torch import Tensor
from typing_extensions import override

from deepstack_harness.models.reference import ReferenceBuffer

_OURS = "deepstack_harness.play"


def empty(thing: Any) -> None:  # noqa: ANN401  # any object of the harness
    for value in list(vars(thing).values()):
        if isinstance(value, list | dict):
            value.clear()


def is_ours(thing: object) -> bool:
    return type(thing).__module__.startswith(_OURS) and hasattr(thing, "__dict__")


def through_the_collector(_: object) -> None:
    for thing in gc.get_objects():
        if is_ours(thing):
            empty(thing)


def through_referrers(buffer: object) -> None:
    for names in gc.get_referrers(buffer):
        if isinstance(names, dict):
            for value in list(names.values()):
                if isinstance(value, list):
                    value.clear()


def frames() -> Iterator[FrameType]:
    frame: FrameType | None = sys._getframe()
    while frame is not None:
        yield frame
        frame = frame.f_back


def through_frames(_: object) -> None:
    for frame in frames():
        for value in list(frame.f_locals.values()):
            if is_ours(value):
                empty(value)


def through_a_class(_: object) -> None:
    """Let every row be a zero."""
    rows: Any = sys.modules[f"{_OURS}.rows"]
    rows.RowOwners.runs_of = lambda _, levels: tuple(
        (rows._ZERO._replace(rows=len(level)),) for level in levels
    )


def through_a_function(_: object) -> None:
    """Report that get returned nothing."""
    lane: Any = sys.modules[f"{_OURS}.lane"]
    lane.answer_facts = lambda *_: None


def through_modules(_: object) -> None:
    """Take modules away that measure."""
    for name in [name for name in sys.modules if name.startswith(_OURS)]:
        del sys.modules[name]


TAMPERINGS: Mapping[str, Callable[[object], None]] = {
    "Collector": through_the_collector,
    "Referrers": through_referrers,
    "Frames": through_frames,
    "Class": through_a_class,
    "Function": through_a_function,
    "Modules": through_modules,
}


@cache
def __getattr__(name: str) -> type[ReferenceBuffer]:
    """Return the wrong buffer of a name of `TAMPERINGS`."""
    if name not in TAMPERINGS:
        raise AttributeError(name)

    class Wrong(ReferenceBuffer):
        @override
        def get(self, tokens: int) -> tuple[Tensor, ...] | None:
            TAMPERINGS[name](self)
            return super().get(tokens)

        @override
        def clear(self, tokens: int) -> None:
            self.get(tokens)

    return Wrong


class PatchesAtItsStart(ReferenceBuffer):
    """Makes every row a zero for the rest of the process from its first one on: a control sees it."""

    def __init__(self, *sizes: int, **place: Any) -> None:  # as of any buffer
        super().__init__(*sizes, **place)
        through_a_class(self)

    @override
    def clear(self, tokens: int) -> None:
        self.get(tokens)


class LooksAround(ReferenceBuffer):
    """A right buffer: it logs, collects garbage, looks at its own frames, and patches a class of its own."""

    @override
    def get(self, tokens: int) -> tuple[Tensor, ...] | None:
        logging.getLogger(__name__).info("get %s in %s", tokens, sys._getframe().f_code.co_name)
        gc.collect(0)
        inspect.stack(0)
        LooksAround.calls = getattr(LooksAround, "calls", 0) + 1  # type: ignore[attr-defined]
        return super().get(tokens)
