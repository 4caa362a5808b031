"""Watch torch functions run, and note for each what it reads and writes, on which stream of a `Device`.

The functions run at once, on the CPU, in the order of the host's calls.  Not seen:
values that the host reads (`item`), and memory inside one function.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

from torch import Tensor
from torch.overrides import TorchFunctionMode
from typing_extensions import override

from deepstack_harness.contract.facts.ordering import Operation
from deepstack_harness.streams.memory import Block, Memory, Slot
from deepstack_harness.streams.recorded_device import Device

T = TypeVar("T")
_IN_PLACE = frozenset(
    f"__{name}__"
    for name in ("setitem", "iadd", "isub", "imul", "imatmul", "itruediv", "ifloordiv", "imod", "ipow",
                 "iand", "ior", "ixor", "ilshift", "irshift")
)  # fmt: skip


@dataclass(frozen=True)
class Recorded:
    """A call that can be done again: slots stand where tensors were, `results` are those that it made."""

    func: Callable[..., Any]
    args: Sequence[Any]
    kwargs: Mapping[str, Any]
    results: tuple[Slot, ...]
    operation: Operation


class Recorder(TorchFunctionMode):
    """Recorder of torch functions while it is entered; `roles` are tensors of any shape.

    An operation that reads one of them has the name of its role.
    """

    def __init__(self, device: Device, roles: Mapping[str, Tensor]) -> None:
        super().__init__()
        self.recorded: list[Recorded] = []
        self._device = device
        self._memory = Memory()
        self._roles = {self._memory.given(tensor).block: role for role, tensor in roles.items()}
        self._names: list[str] = []

    @contextmanager
    def naming(self, name: str) -> Iterator[None]:
        """Name what is done inside; names are joined, outermost first."""
        self._names.append(name)
        try:
            yield
        finally:
            self._names.pop()

    def slot(self, tensor: Tensor) -> Slot:
        """Return the place of a tensor of any shape."""
        return self._memory.given(tensor)

    def keep(self, tensor: Tensor, stream: object) -> None:
        """Do as `tensor.record_stream(stream)` for a tensor of any shape."""
        self._memory.keep(tensor)

    @override
    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: object,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        called = _replaced((args, dict(kwargs)), Tensor, self.slot)
        live = self._memory.live
        result = func(*args, **kwargs)
        self._note(func, called, [slot for slot in self._slots(result) if slot.block not in live])
        return result

    def _slots(self, result: object) -> list[Slot]:
        stream = self._device.current.index
        return [self._memory.made(tensor, stream) for tensor in _found(result, Tensor)]

    def _note(self, func: Callable[..., Any], called: tuple[Any, Any], made: list[Slot]) -> None:
        written = [slot.block for slot in (*made, *_changed(func, *called))]
        if not written:
            return  # another view of the same memory, or a question about it
        reads = [slot.block for slot in _found(called, Slot)]
        stream, clock = self._device.launch()
        name = self._name(func, reads)
        operation = Operation(len(self.recorded), name, stream.name, _named(reads), _named(written), clock)
        self.recorded.append(Recorded(func, *called, tuple(made), operation))

    def _name(self, func: Callable[..., Any], reads: Sequence[Block]) -> str:
        roles = [self._roles[block] for block in reads if block in self._roles]
        return ": ".join([*self._names, *(roles or [func.__name__])])


def _changed(func: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Iterator[Slot]:
    """Yield what a call writes into, by torch's convention: `add_`, `x += ..`, `x[..] = ..` and `out=`."""
    name = func.__name__
    in_place = name in _IN_PLACE or (name.endswith("_") and not name.endswith("__"))
    yield from _found(args[0], Slot) if in_place else ()
    yield from _found(kwargs.get("out"), Slot)


def _named(blocks: Iterable[Block]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(block.name for block in blocks))


def _found(value: object, kind: type[T]) -> Iterator[T]:
    """Yield every object of `kind` in nested tuples, lists and dicts."""
    if isinstance(value, kind):
        yield value
    elif isinstance(value, tuple | list | dict):
        for each in value.values() if isinstance(value, dict) else value:
            yield from _found(each, kind)


def _replaced(value: Any, kind: type[T], by: Callable[[T], object]) -> Any:  # noqa: ANN401  # like for like
    """Return the same nesting with every object of `kind` replaced."""
    if isinstance(value, kind):
        return by(value)
    if isinstance(value, dict):
        return {key: _replaced(each, kind, by) for key, each in value.items()}
    if isinstance(value, tuple | list):
        return type(value)(_replaced(each, kind, by) for each in value)
    return value
