"""Run a projection over recording streams, and play every order in which a device may run it.

Torch functions run at once, on the CPU, in the order of the host's calls; for each is noted what it
reads and writes, and on which stream.  Then the recorded operations are done again in every other
order, on memory that is laid out as the device's is, and results are compared bit by bit.  Not seen:
values that the host reads (`item`), and memory inside one function.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from functools import reduce
from itertools import islice
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from typing_extensions import override

from deepstack_harness.audit.streams.device import (
    Block,
    Device,
    Event,
    Lanes,
    Memory,
    Order,
    Project,
    Slot,
    orders,
    sequential,
)
from deepstack_harness.contract.facts import Operation, Recording
from deepstack_harness.errors import NotMeasured

_INTEGERS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def different_bits(left: Tensor, right: Tensor) -> int:
    """Count the elements whose bits differ; all of them where shape or dtype differ."""
    if left.shape != right.shape or left.dtype != right.dtype:
        return max(left.numel(), right.numel())
    integer = _INTEGERS[left.element_size()]
    return int((left.contiguous().view(integer) != right.contiguous().view(integer)).sum())


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
        self._roles = {self._memory.slot_of(tensor).block: role for role, tensor in roles.items()}
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
        return self._memory.slot_of(tensor)

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
        stream = self._device.current.index
        slots = [self._memory.made(tensor, stream) for tensor in _found(result, Tensor)]
        self._note(func, called, [slot for slot in slots if slot.block not in live])
        return result

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


_NEVER_WRITTEN = 0xFF  # in every byte: NaN in every floating dtype, -1 in every signed one


def play(recorded: Sequence[Recorded], order: Iterable[int], answer: Slot) -> Tensor:
    """Run the operations in `order` (their numbers); return a copy of the tensor in the slot `answer`.

    Its shape and dtype are those of the slot.
    """
    with torch.no_grad():
        memory = _Replayed()
        for number in order:
            memory.do(recorded[number])
        return memory.at(answer).clone()


class _Replayed:
    """Memory of one replay, made as it is first touched."""

    def __init__(self) -> None:
        self._bytes: dict[Block, Tensor] = {}

    def at(self, slot: Slot) -> Tensor:
        """Return the tensor that lies in a slot now."""
        content = self._bytes.setdefault(slot.block, _initial(slot.block)).view(slot.dtype)
        return content.as_strided(slot.size, slot.stride, slot.offset)

    def do(self, call: Recorded) -> None:
        """Run one operation; what it makes goes where it was made."""
        result = call.func(*self._tensors(call.args), **self._tensors(call.kwargs))
        made = result if isinstance(result, tuple | list) else (result,)
        for slot, tensor in zip(call.results, made, strict=False):  # an operation in place has no results
            self.at(slot).copy_(tensor)

    def _tensors(self, value: Any) -> Any:  # noqa: ANN401  # like for like
        match value:
            case Slot():
                return self.at(value)
            case dict():
                return {key: self._tensors(each) for key, each in value.items()}
            case tuple() | list():
                return type(value)(self._tensors(each) for each in value)
        return value


def _initial(block: Block) -> Tensor:
    if block.before is not None:
        return block.before.clone()
    return torch.full((block.bytes,), _NEVER_WRITTEN, dtype=torch.uint8)


LAYERS = 2
TOKENS, HIDDEN = 3, 4
MOST_ORDERS = 20_000

Naming = Callable[[str], AbstractContextManager[None]]


@dataclass(frozen=True)
class Setting:
    """Way to run a projection: streams beside the main one, as `make` makes them for a device."""

    name: str
    others: int
    make: Callable[[Device], Project]


def rehearse(setting: Setting, seed: int = 0) -> Recording:
    """Record `setting` over two layers, a projection for each stream and at least two; play all orders.

    Raises `NotMeasured` when nothing was recorded, or there are too many orders to play.
    """
    device = Device(setting.others)
    x, weights = _integers(setting.others + 1 if setting.others else 2, seed)
    recorder = Recorder(device, {f"projection {name}": w for name, w in zip("ABCDEF", weights, strict=False)})
    done = tuple(Event(device) for _ in device.aux)
    lanes = Lanes(Event(device), done, device.aux, device.on, recorder.keep)
    project = setting.make(device)
    with torch.no_grad():
        right = run_layers(sequential, lanes, x, weights)
        try:
            with recorder:
                answer = run_layers(project, lanes, x, weights, recorder.naming)
        except Exception as error:  # noqa: BLE001  # what a helper raises is a fact
            return _facts(setting, device, recorder, raised=f"{type(error).__name__}: {error}")
    every, wrong = _play(device, recorder, recorder.slot(answer), right)
    return _facts(setting, device, recorder, every, wrong, equal=not different_bits(answer, right))


def run_layers(
    project: Project,
    lanes: Lanes,
    x: Tensor,
    weights: tuple[Tensor, ...],
    naming: Naming = lambda _: nullcontext(),
    layers: int = LAYERS,
) -> Tensor:
    """Run layers in turn: each makes its input, projects it, and uses all results; all (n, hidden)."""
    for number in range(1, layers + 1):
        with naming(f"layer {number}"):
            x = _layer(project, lanes, x, weights, naming)
    return x


def _layer(project: Project, lanes: Lanes, x: Tensor, weights: tuple[Tensor, ...], naming: Naming) -> Tensor:
    with naming("input"):
        hidden = x + 1
    results = project(hidden, weights, lanes)
    with naming("use of the results"):
        return reduce(torch.add, results)


def _integers(projections: int, seed: int) -> tuple[Tensor, tuple[Tensor, ...]]:
    """Return x (3, 4) and weights (4, 4) of small whole numbers: sums are exact in whatever order."""
    generator = torch.Generator().manual_seed(seed)
    drawn = [torch.randint(-2, 3, (HIDDEN, HIDDEN), generator=generator).float() for _ in range(projections)]
    return torch.randint(-2, 3, (TOKENS, HIDDEN), generator=generator).float(), tuple(drawn)


def _play(device: Device, recorder: Recorder, answer: Slot, right: Tensor) -> tuple[int, list[Order]]:
    """Play all orders; return their number, and those without `right` in the slot `answer`."""
    every = list(islice(orders([stream.queue for stream in device.streams]), MOST_ORDERS + 1))
    if len(every) > MOST_ORDERS or not recorder.recorded:
        raise NotMeasured(
            f"{len(recorder.recorded)} operations in {len(every)} orders: too many to play, or none"
        )
    recorded = recorder.recorded
    return len(every), [order for order in every if different_bits(play(recorded, order, answer), right)]


def _facts(
    setting: Setting,
    device: Device,
    recorder: Recorder,
    every: int = 0,
    wrong: Sequence[Order] = (),
    *,
    equal: bool = False,
    raised: str = "",
) -> Recording:
    operations = tuple(call.operation for call in recorder.recorded)
    return Recording(
        setting.name,
        tuple(stream.name for stream in device.streams),
        operations,
        device.early_waits,
        every,
        len(wrong),
        equal,
        tuple(operations[number].name for number in (wrong[0] if wrong else ())),
        raised,
    )
