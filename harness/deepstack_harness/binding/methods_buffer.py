"""An object of a cut class behind the `Buffer` interface, driven by its own methods."""

import sys
from collections.abc import Mapping, Sequence
from types import FrameType
from typing import TYPE_CHECKING, cast

from torch import Tensor

from deepstack_harness.binding.cut_class import STORAGE, ClassCut
from deepstack_harness.binding.stand_ins import Host
from deepstack_harness.errors import StepUnavailable, UsageError

if TYPE_CHECKING:
    from _typeshed import TraceFunction


class MethodsBuffer:
    """The buffer of one model object; see `deepstack_harness.contract.protocols.Buffer`.

    It has no `generation`: no release announces that storage moves.
    """

    def __init__(self, host: Host, cut: ClassCut, *, vision: bool, listed: bool = False) -> None:
        """Take `host`, the object after the class's own `__init__`.

        With `listed`, get answers a list or tuple of levels; else their names say which is which.
        """
        self._host = host
        self._cut = cut
        self.vision = vision
        self._listed = listed

    @property
    def capacity(self) -> int:
        """The number of rows of level 0 now; 0 while there is no storage."""
        levels = cast("Sequence[Tensor] | None", getattr(self._host, STORAGE, None))
        return 0 if levels is None or len(levels) == 0 else levels[0].size(0)

    def get(self, tokens: int, /) -> tuple[Tensor, ...] | None:
        """Return the class's answer, one (P, hidden) per level or None; see `Buffer.get`.

        Raises `UsageError` when the levels cannot be told from the answer.
        """
        answer = self._call("get", tokens)
        return None if answer is None else self._in_level_order(answer)

    def set(self, payload: Tensor, /) -> None:
        """Give a payload (levels, N, hidden) to the class; see `Buffer.set`."""
        self._call("set", payload)

    def clear(self, tokens: int, /) -> None:
        """See `Buffer.clear`."""
        self._call("clear", tokens)

    def resize(self, tokens: int, /) -> None:
        """See `Buffer.resize`."""
        if "resize" not in self._cut.verbs:
            raise StepUnavailable(f"{self._cut.class_name} has no method that resizes the buffer")
        self._call("resize", tokens)

    def where_returned(self, tokens: int) -> str:
        """Call get once more and return the `FILE:LINE` of the `return` at which it answered.

        For a diagnosis only: a get that resizes does so here too, and what a get raises is raised.
        """
        watch = _ReturnWatch(self._cut.filename, self._cut.verbs["get"])
        before = sys.gettrace()
        sys.settrace(watch.enter)
        try:
            self._call("get", tokens)
        finally:
            sys.settrace(before)
        return f"{self._cut.filename}:{watch.line}"

    def _call(self, verb: str, argument: object) -> object:
        answer: object = getattr(self._host, self._cut.verbs[verb])(argument)
        return answer

    def _in_level_order(self, answer: object) -> tuple[Tensor, ...]:
        """Order the levels by name, as the decoder looks them up: `deepstack_input_embeds_0`, `_1`, ..."""
        tensors = getattr(answer, "tensors", answer)
        if self._listed and isinstance(tensors, list | tuple):
            return tuple(tensors)
        if not isinstance(tensors, Mapping):
            raise self._unordered(f"a {type(answer).__name__}")
        names = [f"{STORAGE}_{level}" for level in range(len(tensors))]
        if set(names) != tensors.keys():
            raise self._unordered(f"the names {', '.join(map(str, tensors))}")
        return tuple(tensors[name] for name in names)

    def _unordered(self, found: str) -> UsageError:
        method = self._cut.verbs["get"]
        return UsageError(
            f"{self._cut.filename}:{self._cut.lines[method]}: {method} returns {found} "
            f"instead of {STORAGE}_0, {STORAGE}_1, ..: cannot tell the levels apart"
        )


class _ReturnWatch:
    """A trace function (`sys.settrace`) that keeps the line on which one function returned last."""

    def __init__(self, filename: str, function: str) -> None:
        self._watched = (filename, function)
        self.line = 0

    def enter(self, frame: FrameType, _event: str, _argument: object) -> "TraceFunction | None":
        """Follow the watched function's frame, and no other."""
        entered = (frame.f_code.co_filename, frame.f_code.co_name)
        return self._follow if entered == self._watched else None

    def _follow(self, frame: FrameType, event: str, _argument: object) -> "TraceFunction":
        if event == "return":
            self.line = frame.f_lineno
        return self._follow
