"""Classes of a user: whether they fit the interface, and the levels in containers that get returns."""

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from typing import cast

import torch
from torch import Tensor

from deepstack_harness.contract.adapter import Adapter, adapter_of
from deepstack_harness.contract.protocols import Buffer, BufferFactory
from deepstack_harness.errors import UsageError, passes_through, text_of
from deepstack_harness.models.family import parse_buffer_dtype

_SIGNATURE = "(capacity, hidden, levels, *, dtype, device)"
_INTERFACE: Mapping[str, str] = {
    "get": "get(tokens)",
    "set": "set(payload)",
    "clear": "clear(tokens)",
    "capacity": "the attribute capacity (int, token rows)",
}
"""The members that the contract's own interface has."""


class AdaptedAnswer(tuple[Tensor, ...]):  # noqa: SLOT001  # Python allows a tuple no slots but empty ones
    """The levels (P, hidden) of what get returned, as views; `original` is the object that guards look at."""

    original: object


def check_interface(make: BufferFactory, target: str) -> BufferFactory:
    """Make one small buffer as the contract states; return what makes buffers that return tuples of levels.

    That is `make` itself, unless its get returns a container that `levels_in` unpacks. Raises `UsageError`
    for all that is missing, with an adapter class to write, and for another container.
    """
    stated = adapter_of(make) or Adapter()
    sizes = stated.capacity or 4, stated.hidden or 8, stated.levels or 2
    dtype = parse_buffer_dtype(stated.dtype or "float32")
    try:
        made = make(*sizes, dtype=dtype, device=torch.device("cpu"))
    except BaseException as error:
        if passes_through(error):
            raise
        # Whatever the class raises, SystemExit too, it does not fit.
        problem = f"cannot be made with {_SIGNATURE}: {type(error).__name__}: {text_of(error)}"
        raise UsageError(f"{target} {problem}; {_advice(make, target)}") from None
    if missing := list(_missing(made)):
        problem = f"does not fit the buffer interface, it lacks {', '.join(missing)}"
        raise UsageError(f"{target} {problem}; {_advice(make, target)}")
    payload = torch.ones(sizes[2], min(3, sizes[0]), sizes[1], dtype=dtype)
    returned: list[object] = []
    with _any_error():
        returned.append(made.get(1))
    with _any_error():
        made.set(payload)
        returned.append(made.get(payload.size(1)))
    for value in returned:
        _refuse_container(value, target)
    packed = [
        value
        for value in returned
        if not isinstance(value, tuple | list | None) and levels_in(value) is not None
    ]
    return UnpackedClass(make) if packed else make


def _missing(made: object) -> Iterator[str]:
    """Iterate over what an object does not have of the interface, or has with other arguments."""
    for name, text in _INTERFACE.items():
        value: object = None
        with _any_error():
            value = getattr(made, name, None)
        if name == "capacity":
            if not (callable(value) or (isinstance(value, int) and not isinstance(value, bool))):
                yield text
        elif not callable(value):
            yield text
        elif not _takes_one(value):
            yield f"{text} (it has {name}{inspect.signature(value)})"


def _advice(make: Callable[..., object], target: str) -> str:
    from deepstack_harness.models.adapter_text import adapter_text

    return (
        "the whole contract: pytest --fixtures -v. An adapter class makes it fit: "
        f"'deepstack-harness check {target} --write-adapter my_adapter.py' writes this one, and "
        f"'deepstack-harness check my_adapter.py:Adapter' checks it:\n\n{adapter_text(make, target)}"
    )


_MOST_LEVELS = 4096
"""Levels of a container that are read: a mapping of user code may have no end."""


def levels_in(answer: object) -> Sequence[object] | None:
    """Return the levels of a tuple, a list, a mapping or an object with such `tensors`, in their order.

    None for anything else, which is not iterated: an object whose `__getitem__` takes names has an iterator
    without an end.
    """
    if isinstance(answer, tuple | list):
        return answer
    inner = answer if isinstance(answer, Mapping) else getattr(answer, "tensors", None)
    if isinstance(inner, Mapping):
        return list(islice(inner.values(), _MOST_LEVELS))
    return inner if isinstance(inner, tuple | list) else None


def _refuse_container(answer: object, target: str) -> None:
    """Raise `UsageError`, with the wrapper to write, for a returned object whose levels cannot be read."""
    if answer is None or isinstance(answer, Tensor) or levels_in(answer) is not None:
        return
    module, _, name = target.rpartition(":")
    raise UsageError(
        f"{target}: get answers an object of class {type(answer).__name__}, in which levels cannot be found: "
        "a tuple, list or mapping of tensors is read, and an object with such `tensors`. Check a wrapper:\n\n"
        f"from {module.removesuffix('.py').replace('/', '.') or 'my_module'} import {name}\n\n\n"
        f"class Levels({name}):\n"
        "    def get(self, tokens):\n"
        "        answer = super().get(tokens)\n"
        "        return tuple(answer[level] for level in range(3))  # each (tokens, hidden), in order"
    )


class UnpackedBuffer:
    """A buffer whose get returns a container of levels; all else is the buffer's own."""

    def __init__(self, made: Buffer) -> None:
        self._made = made

    def __getattr__(self, name: str) -> object:
        """Return the buffer's own attribute; none of Python's, which copies look for before `__init__`."""
        if name.startswith("_"):
            raise AttributeError(f"{type(self).__name__} has no {name}")
        return getattr(self._made, name)

    def get(self, tokens: int, /) -> tuple[Tensor, ...] | None:
        """Return the levels of what the buffer's get returns; a tuple, and what has no levels, as it is."""
        original: object = self._made.get(tokens)
        levels = levels_in(original)
        if (
            isinstance(original, tuple)
            or levels is None
            or not all(isinstance(level, Tensor) for level in levels)
        ):
            return cast("tuple[Tensor, ...] | None", original)
        answer = AdaptedAnswer(cast("Sequence[Tensor]", levels))
        answer.original = original
        return answer


@dataclass(frozen=True)
class UnpackedClass:
    """A class of buffers whose get returns a container of levels, as a `protocols.BufferFactory`."""

    make: BufferFactory

    def __call__(
        self, capacity: int, hidden: int, levels: int, *, dtype: torch.dtype, device: torch.device
    ) -> Buffer:
        """Make a buffer."""
        made = self.make(capacity, hidden, levels, dtype=dtype, device=device)
        return cast(Buffer, UnpackedBuffer(made))


def _takes_one(function: Callable[..., object]) -> bool:
    """Return whether a function takes one argument by position; True where that is not known."""
    try:
        inspect.signature(function, follow_wrapped=False).bind(None)
    except TypeError:
        return False
    except ValueError:  # written in C, without a signature
        return True
    return True


@contextmanager
def _any_error() -> Iterator[None]:
    """Ignore what code under test raises inside the block, where it is only inspected."""
    try:
        yield
    except BaseException as error:
        if passes_through(error):
            raise
