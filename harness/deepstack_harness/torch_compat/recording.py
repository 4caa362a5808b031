"""Records the operations of a call on their very tensors, and does them again, as a CUDA graph would.

Uses `torch.utils._python_dispatch.TorchDispatchMode` and operator tags.
Operations that write run again on the tensors they wrote; results of the others
are copied into the tensors that the first run gave out, which torch leaves out
for a view: it is the same data.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch._ops import OpOverload
from torch.utils._python_dispatch import TorchDispatchMode
from typing_extensions import override

from deepstack_harness.torch_compat.dispatched import allocated, tensors_in

_NEEDS_DATA = {torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape}


class OpRecorder(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """While entered, records; `replay` repeats what was recorded, without any Python of the call.

    It may be entered several times.  Raises RuntimeError in an operation that
    answers Python or a shape that depends on data, which CUDA refuses while a
    stream is capturing.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._tape: list[Callable[[], object]] = []
        self.allocated = 0
        """Results so far that came in storage of their own."""

    @override
    def __torch_dispatch__(
        self,
        func: OpOverload[..., Any],
        types: object,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        if _NEEDS_DATA & set(func.tags):
            raise RuntimeError(f"{func} is not permitted while a graph is captured: it depends on data")
        out = func(*args, **(kwargs or {}))
        self._tape.append(partial(_again, func, args, kwargs or {}, out))
        self.allocated += sum(allocated((args, kwargs), out))
        return out

    def append(self, work: Callable[[], object]) -> None:
        """Have `work` called at this place of every replay, Python and all."""
        self._tape.append(work)

    def replay(self) -> None:
        """Do everything again, in order."""
        for entry in self._tape:
            entry()


def _again(func: OpOverload[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any], out: object) -> None:
    again = func(*args, **kwargs)
    for first, now in zip(tensors_in(out), tensors_in(again), strict=True):
        first.copy_(now)
