"""Buffers behind an adapter: any object with methods that take rows and answer them, as a `protocols.Buffer`.

`AdaptedClass` makes them of a class or function and an `Adapter`; `adapted` finds the adapter that the
options of a user ask for.  A class of a source is driven by its own names in the same way
(`engines.bound_class.MethodsBuffer`).

All that is done to a payload or an answer is a view, so that addresses, strides and writes to the tensor of
a caller are those of the code under test.
"""

import inspect
import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any, cast

import torch
from torch import Tensor

from deepstack_harness.contract.adapter import Adapter, AdapterOptions, ArgRole, Argument, MethodCall
from deepstack_harness.contract.adapter_names import Members, Parameter, making, refusal, resolved
from deepstack_harness.contract.protocols import CALLS, WHERE, Buffer, BufferFactory
from deepstack_harness.errors import StepUnavailable, UsageError, passes_through, text_of
from deepstack_harness.models.family import parse_buffer_dtype

_CPU = torch.device("cpu")
_SIGNATURE = "(capacity, hidden, levels, *, dtype, device)"
_TRIED = {"capacity": 4, "hidden": 8, "levels": 2}
"""Sizes of the buffer that is made to look at it; no two are equal, so that dimensions can be told apart."""


class AdaptedAnswer(tuple[Tensor, ...]):  # noqa: SLOT001  # Python allows a tuple no slots but empty ones
    """The levels (P, hidden) of an answer, as views; `original` is the answer that guards look at."""

    original: object

    @classmethod
    def of(cls, levels: Sequence[Tensor], original: object) -> "AdaptedAnswer":
        """Return the levels of an answer."""
        answer = cls(levels)
        answer.original = original
        return answer


class AdaptedBuffer:
    """One object behind an adapter; see `deepstack_harness.contract.protocols.Buffer`."""

    def __init__(
        self, made: object, adapter: Adapter, capacity: int = 0, device: torch.device = _CPU
    ) -> None:
        """Take an object whose methods the adapter names, made for `capacity` rows on `device`."""
        self._made = made
        self._adapter = adapter
        self._rows = capacity
        self._sets = 0
        self._positions = torch.arange(capacity, device=device)

    def __getattr__(self, name: str) -> object:
        """Return an optional member of the object: `generation`, `release`, `vision`."""
        if name not in ("generation", "release", "vision"):
            raise AttributeError(f"{type(self).__name__} has no {name}")
        return getattr(self._made, name)

    @property
    def capacity(self) -> int:
        """Rows that the object states; of one that states none the most rows that a call of it took."""
        name = self._adapter.capacity
        if not name:
            return self._rows
        stated = getattr(self._made, name)
        return operator.index(stated() if callable(stated) else stated)

    def get(self, tokens: int, /) -> tuple[Tensor, ...] | None:
        """Return P = `tokens` rows of every level, each (P, hidden).

        What does not have the shape of the adapter is returned as it is.  Raises `StepUnavailable` above the
        capacity of an object whose get takes no count.
        """
        method = self._adapter.get
        counted = method.takes(ArgRole.COUNT) or method.takes(ArgRole.POSITIONS)
        if not counted and tokens > self.capacity:
            raise StepUnavailable(
                f"{method.method} takes no count: more rows than it has cannot be asked for"
            )
        answer = self._call(method, tokens)
        self._rows = max(self._rows, tokens)
        return self._levels_of(answer, None if counted else tokens)

    def set(self, payload: Tensor, /) -> None:
        """Hand on a payload (levels, N, hidden) in the shape that the object takes.

        An object that is told positions is given them in order, and at every second call with the rows and
        their positions reversed.
        """
        tokens, self._sets = payload.size(-2), self._sets + 1
        positions = None
        if self._adapter.set.takes(ArgRole.POSITIONS):
            positions = self._positions_of(tokens)
            if self._sets % 2 == 0:
                payload, positions = payload.flip(-2), positions.flip(0)
        self._call(self._adapter.set, tokens, self._handed(payload), positions)
        self._rows = max(self._rows, tokens)

    def clear(self, tokens: int, /) -> None:
        """End the rows; nothing happens where the object has no method for it."""
        if self._adapter.clear is not None:
            everything = (
                max(tokens, self.capacity) if self._adapter.clear.takes(ArgRole.POSITIONS) else tokens
            )
            self._call(self._adapter.clear, everything)

    def resize(self, tokens: int, /) -> None:
        """Make room; raises `StepUnavailable` where the object has no method for it."""
        if self._adapter.resize is None:
            raise StepUnavailable(f"{type(self._made).__name__} has no method that resizes the buffer")
        self._call(self._adapter.resize, tokens)
        self._rows = max(self._rows, tokens)

    def _call(
        self, method: MethodCall, tokens: int, payload: object = None, positions: Tensor | None = None
    ) -> object:
        given = {ArgRole.PAYLOAD: payload, ArgRole.COUNT: tokens}
        if positions is not None:
            given[ArgRole.POSITIONS] = positions
        elif method.takes(ArgRole.POSITIONS):
            given[ArgRole.POSITIONS] = self._positions_of(tokens)
        return _called(getattr(self._made, method.method), method.arguments, given)

    def _positions_of(self, tokens: int) -> Tensor:
        """Return the positions (tokens,) int64; up to the capacity a view, which allocates nothing."""
        if tokens > len(self._positions):
            self._positions = torch.arange(tokens, device=self._positions.device)
        return self._positions[:tokens]

    def _handed(self, payload: Tensor) -> object:
        """Return a payload (levels, N, hidden) in the object's shape; with other dimensions as it is."""
        shape = self._adapter.shape
        batched = payload.dim() == 4 and payload.size(0) == 1  # (1, levels, N, hidden)
        rows = payload[0] if batched else payload
        if rows.dim() != 3:
            return payload
        if not shape.has_hidden:
            rows = rows.select(2, 0)
        if not shape.has_levels:
            rows = rows.select(0, 0)
        elif shape.dims[0] == "N":
            rows = rows.transpose(0, 1)
        rows = rows[None] if batched else rows
        if payload.requires_grad and not rows.requires_grad:  # a view under no_grad forgets it
            rows.requires_grad_()
        return list(rows.unbind(0)) if shape.listed else rows

    def _levels_of(self, answer: object, tokens: int | None) -> tuple[Tensor, ...] | None:
        """Return the levels of an answer; with `tokens` only its first rows."""
        shape = self._adapter.shape
        levels: list[Tensor] = []
        if isinstance(answer, Tensor):
            if shape.listed or self._adapter.answers_levels or answer.dim() != len(shape.dims):
                return cast("tuple[Tensor, ...]", answer)
            rows = answer if shape.has_hidden else answer.unsqueeze(-1)
            at = shape.dims.index("levels") if shape.has_levels else None
            levels = [rows] if at is None else list(rows.unbind(at))
        elif (each := levels_in(answer)) is not None and (shape.listed or self._adapter.answers_levels):
            wanted, given = len(shape.dims) - 1, [level for level in each if isinstance(level, Tensor)]
            if len(given) < len(each) or any(level.dim() != wanted for level in given):
                return cast("tuple[Tensor, ...]", answer)
            levels = [level if shape.has_hidden else level.unsqueeze(-1) for level in given]
        else:
            return cast("tuple[Tensor, ...] | None", answer)
        return AdaptedAnswer.of(levels if tokens is None else [level[:tokens] for level in levels], answer)


def _called(function: Any, arguments: Sequence[Argument], given: dict[ArgRole, object]) -> object:  # noqa: ANN401
    by_place = [given[each.role] for each in arguments if not each.keyword]
    by_name = {each.keyword: given[each.role] for each in arguments if each.keyword}
    return function(*by_place, **by_name)


@dataclass(frozen=True)
class AdaptedClass:
    """A class or function behind an adapter, as a `protocols.BufferFactory`."""

    make: Callable[..., object]
    adapter: Adapter

    def __call__(
        self, capacity: int, hidden: int, levels: int, *, dtype: torch.dtype, device: torch.device
    ) -> Buffer:
        """Make a buffer; arguments that the adapter does not name are not passed."""
        given = {
            ArgRole.CAPACITY: capacity, ArgRole.HIDDEN: hidden, ArgRole.LEVELS: levels, ArgRole.DTYPE: dtype,
            ArgRole.DEVICE: device,
        }  # fmt: skip
        call = self.adapter.make
        made = _called(getattr(self.make, call.method) if call.method else self.make, call.arguments, given)
        return AdaptedBuffer(made, self.adapter, self.adapter.fixed or capacity, device)


def adapted(make: Callable[..., object], options: AdapterOptions, target: str) -> Adapter:
    """Return the adapter that the options ask for, where signatures and one small buffer tell the rest.

    Raises `UsageError` that names all that lacks, and the command that would fit.
    """
    options.check()
    written = options.calls().get("make")
    maker = getattr(make, written.method, make) if written and written.method else make
    call = (
        MethodCall(written.method, written.arguments)
        if written and written.arguments is not None
        else making(parameters_of(maker), written.method if written else "")[0]
    )
    dtype = parse_buffer_dtype(options.dtype or "float32")
    adapter = resolved(options, _members(make, call, dtype), target)
    if not options.dtype and not adapter.make.takes(ArgRole.DTYPE):
        adapter = replace(adapter, dtype=_dtype_of(make, adapter))
    return _tried(make, adapter)


def check_interface(make: BufferFactory, target: str) -> BufferFactory:
    """Make one small buffer as the contract says; return what makes buffers that answer tuples of levels.

    That is `make` itself, unless its get answers a container that `levels_in` unpacks.  Raises `UsageError`
    for all that lacks, and for another container.
    """
    parameters = parameters_of(make)
    try:
        made = make(*_TRIED.values(), dtype=torch.float32, device=_CPU)
    except BaseException as error:
        if passes_through(error):
            raise
        # Whatever the class raises, SystemExit too, it does not fit.
        said = f"{target} cannot be made with {_SIGNATURE}: {type(error).__name__}: {text_of(error)}"
        why = refusal(_members(make, making(parameters)[0], torch.float32), target)
        raise UsageError(f"{said}; {why or WHERE}") from None
    if why := refusal(_members_of(made, parameters), target):
        raise UsageError(why)
    answers = _small_answers(made)
    for answer in answers:
        _refuse_container(answer, target)
    return UnpackedClass(make) if any(map(_is_packed, answers)) else make


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


def _is_packed(answer: object) -> bool:
    return not isinstance(answer, tuple | list | None) and levels_in(answer) is not None


def _small_answers(made: Buffer) -> list[object]:
    """Return what get of a small buffer answers without a payload, and with one; none of what raises."""
    answers: list[object] = []
    with _any_error():
        answers.append(made.get(1))
    with _any_error():
        made.set(torch.ones(_TRIED["levels"], 3, _TRIED["hidden"]))
        answers.append(made.get(3))
    return answers


def _refuse_container(answer: object, target: str) -> None:
    """Raise `UsageError`, with the wrapper to write, for an answer whose levels cannot be read."""
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
    """A buffer whose get answers a container of levels; all else is the buffer's own."""

    def __init__(self, made: Buffer) -> None:
        self._made = made

    def __getattr__(self, name: str) -> object:
        """Return the buffer's own attribute; none of Python's, which copies look for before `__init__`."""
        if name.startswith("_"):
            raise AttributeError(f"{type(self).__name__} has no {name}")
        return getattr(self._made, name)

    def get(self, tokens: int, /) -> tuple[Tensor, ...] | None:
        """Return the levels in the buffer's answer; what is no container of tensors as it is."""
        answer: object = self._made.get(tokens)
        levels = levels_in(answer)
        if (
            isinstance(answer, tuple)
            or levels is None
            or not all(isinstance(each, Tensor) for each in levels)
        ):
            return cast("tuple[Tensor, ...] | None", answer)
        return AdaptedAnswer.of(cast("Sequence[Tensor]", levels), answer)


@dataclass(frozen=True)
class UnpackedClass:
    """A class of buffers whose get answers a container of levels, as a `protocols.BufferFactory`."""

    make: BufferFactory

    def __call__(
        self, capacity: int, hidden: int, levels: int, *, dtype: torch.dtype, device: torch.device
    ) -> Buffer:
        """Make a buffer."""
        made = self.make(capacity, hidden, levels, dtype=dtype, device=device)
        return cast(Buffer, UnpackedBuffer(made))


def parameters_of(function: object) -> tuple[Parameter, ...]:
    """Return the parameters of a function, class or method; none where it has no signature."""
    try:
        found = inspect.signature(cast(Callable[..., object], function)).parameters.values()
    except (TypeError, ValueError):
        return ()
    kinds = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    return tuple(
        Parameter(
            each.name, each.default is each.empty, each.kind is each.KEYWORD_ONLY, _kind_of(each.annotation)
        )
        for each in found
        if each.kind not in kinds
    )


def _kind_of(annotation: object) -> str:
    """Return the last name of an annotation: `Tensor` of `torch.Tensor`, and of a text."""
    named = annotation if isinstance(annotation, str) else getattr(annotation, "__name__", "")
    return named.rpartition(".")[2]


def _members(make: Callable[..., object], call: MethodCall, dtype: torch.dtype) -> Members:
    """Return the members of a small buffer; of the class where none can be made."""
    parameters = parameters_of(make)
    given = {
        **{ArgRole(size): value for size, value in _TRIED.items()},
        ArgRole.DTYPE: dtype,
        ArgRole.DEVICE: _CPU,
    }
    try:
        maker = getattr(make, call.method) if call.method else make
        made = _called(maker, call.arguments, given)
    except BaseException as error:
        if passes_through(error):
            raise
        there = _members_of(make, parameters, of_class=True)
        return replace(there, not_made=f"{type(error).__name__}: {text_of(error)}")
    members = _members_of(made, parameters)
    if call.method:
        members = replace(members, methods={**members.methods, call.method: parameters_of(maker)})
    return members


_SPECIAL = ("__len__", "__getitem__", "__setitem__", "__call__")


def _members_of(made: object, make: tuple[Parameter, ...], *, of_class: bool = False) -> Members:
    """Return the methods of an object that are no part of every object, and its attributes that are ints."""
    methods, numbers, misfits = dict[str, tuple[Parameter, ...]](), [], dict[str, str]()
    handed_on = () if of_class else CALLS  # by `__getattr__`, which `dir` does not list
    listed = (name for name in dir(made) if not name.startswith("_"))
    for name in dict.fromkeys([*_SPECIAL, *listed, *handed_on]):
        with _any_error():
            value = inspect.getattr_static(made, name) if of_class else getattr(made, name, None)
            if callable(value) and not isinstance(value, Tensor):
                parameters = parameters_of(value)
                methods[name] = parameters[1:] if of_class else parameters
                if name in ("get", "set", "clear") and not of_class and not _takes_one(value):
                    misfits[name] = f"{name}{inspect.signature(value)}"
            elif isinstance(value, int) and not isinstance(value, bool):
                numbers.append(name)
    return Members(make, methods, tuple(numbers), misfits)


def _takes_one(function: Callable[..., object]) -> bool:
    """Say whether a function takes one argument by position; True where that is not known."""
    try:
        inspect.signature(function, follow_wrapped=False).bind(None)
    except TypeError:
        return False
    except ValueError:  # written in C, without a signature
        return True
    return True


@contextmanager
def _any_error() -> Iterator[None]:
    """Go on behind whatever code under test raises while it is only looked at."""
    try:
        yield
    except BaseException as error:
        if passes_through(error):
            raise


def _small(make: Callable[..., object], adapter: Adapter) -> AdaptedBuffer:
    dtype = parse_buffer_dtype(adapter.dtype or "float32")
    sizes = {**_TRIED, "levels": adapter.shape.levels or _TRIED["levels"]}
    return cast(AdaptedBuffer, AdaptedClass(make, adapter)(**sizes, dtype=dtype, device=_CPU))


def _dtype_of(make: Callable[..., object], adapter: Adapter) -> str:
    """Return the dtype in which an empty buffer answers; empty where that cannot be told."""
    with _any_error():
        levels = _small(make, adapter).get(1)
        if isinstance(levels, tuple) and levels:
            return str(levels[0].dtype).removeprefix("torch.")
    return ""


def _tried(make: Callable[..., object], adapter: Adapter) -> Adapter:
    """Return the adapter with what one set and get of a small buffer show of its answers.

    The answer is one tensor, or a tuple or list with a tensor for each level.
    """
    shape = adapter.shape
    if shape.listed or not shape.has_levels:
        return adapter
    sizes = shape.levels or _TRIED["levels"], 3, (shape.hidden or _TRIED["hidden"]) if shape.has_hidden else 1
    as_levels = replace(adapter, answers_levels=True)
    with _any_error():
        buffer = _small(make, as_levels)
        with _any_error():
            buffer.set(torch.ones(sizes, dtype=parse_buffer_dtype(adapter.dtype or "float32")))
        if levels_in(buffer.get(3)) is not None:
            adapter = as_levels
    return adapter
