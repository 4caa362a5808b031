"""State that a decoder or a region retains between calls: recorded, put back in place, and compared.

`take_snapshot` follows an object to everything that its Python can change: attributes, parameters, buffers,
containers, closures, globals that its code names, attributes of its classes, targets of weak references,
locks and positions of files. Random generators and torch's modes are part of the state. Values are put back
into the same objects and tensors, because compiled code and captured graphs hold references to them.

`LaneStates` gives the two lanes of a case a state each: both begin equal, and each lane sees its own.

What cannot be seen (a C extension, a file, a clock) shows as two runs from equal state that differ
(`Distances.repeated`).
"""

import copy
import io
import itertools
import random
import sys
import threading
import weakref
from array import array
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import partial
from types import CodeType, FunctionType, MethodType, ModuleType
from typing import Any, NoReturn, cast

import numpy as np
import torch
from torch import Tensor, nn
from typing_extensions import TypeIs

from deepstack_harness.compile.distances import apart, largest
from deepstack_harness.compile.members import (
    PARTS_OF_MODULES,
    Variable,
    is_of_library,
    names_in,
    slots_of,
    variables_of,
)
from deepstack_harness.contract.observation import NOT_FINITE, StateFacts
from deepstack_harness.errors import NotMeasured

MOST_OBJECTS = 200_000
_PLAIN = (
    type(None), bool, int, float, complex, str, bytes, torch.dtype, torch.device, torch.layout,
    torch.memory_format, type(Ellipsis), range, slice, CodeType,
)  # fmt: skip
NOT_PUT_BACK = "which cannot be put back before each run: have a number, a list or a tensor in its place"


@dataclass
class _Saved:
    """One thing that can change: its content, and the function that puts the content back."""

    content: Any
    put_back: Callable[[Any], object]


@dataclass
class Snapshot:
    """The state at one moment: what puts it back, and a value for each place, to compare with another."""

    saved: list[_Saved] = field(default_factory=list)
    values: dict[str, object] = field(default_factory=dict)
    tensors: dict[str, Tensor] = field(default_factory=dict)
    """The tensors themselves, by place; `values` has copies."""
    passed_over: dict[str, object] = field(default_factory=dict)
    """What cannot be put back, by place: running iterators."""

    def restore(self) -> None:
        """Put everything back into the objects that had it; raises `NotMeasured` where one refuses."""
        for saved in self.saved:
            try:
                saved.put_back(saved.content)
            except Exception as error:
                raise NotMeasured(
                    f"a {type(saved.content).__name__} cannot be put back ({type(error).__name__}: {error})"
                ) from error

    @contextmanager
    def preserved(self) -> Iterator[None]:
        """Put everything back when the block ends."""
        try:
            yield
        finally:
            self.restore()


class DecoderState:
    """Everything that a module can reach and change, and the random generators and modes of the process."""

    def __init__(self, root: nn.Module) -> None:
        """Take the module; raises `NotMeasured` where it holds something that cannot be put back."""
        self._root = root
        self.take()

    def take(self) -> Snapshot:
        """Return the state now; raises `NotMeasured` for what cannot be put back."""
        snapshot = take_snapshot({"": self._root})
        for place, value in snapshot.passed_over.items():
            raise NotMeasured(f"the decoder keeps a {type(value).__name__} at {place}, {NOT_PUT_BACK}")
        return snapshot

    def preserved(self) -> AbstractContextManager[None]:
        """Put the state back when the block ends."""
        return self.take().preserved()


class LaneStates:
    """The states of one decoder in the lane under test, which is the one in force, and in the other lane."""

    def __init__(self, state: DecoderState) -> None:
        """Begin with equal states."""
        self._state = state
        self._reference = state.take()
        self._before = self._reference
        self._inside = False

    @contextmanager
    def reference(self) -> Iterator[None]:
        """Make the state of the reference lane the decoder's state while open."""
        if self._inside:
            yield
            return
        played = self._state.take()
        self._reference.restore()
        self._inside = True
        try:
            yield
        finally:
            self._inside = False
            self._reference = self._state.take()
            played.restore()

    def adopt(self) -> None:
        """Give the reference lane the state of the lane under test, for a step that it does not run."""
        self._reference = self._before = self._state.take()

    def begin_step(self) -> None:
        """Remember the state that a step begins from."""
        self._before = self._reference

    def compare(self, noise: Mapping[str, float]) -> tuple[StateFacts, ...]:
        """Return the places that this step changed, or left different in the two lanes; then make them equal.

        `noise` is how far another rounding moves a place. Values of floating tensors are made equal, so that
        what rounding left does not add up from step to step.
        """
        played, reference = self._state.take(), self._reference
        facts = tuple(
            StateFacts(
                place, apart, _scale(reference.values.get(place)), noise.get(place, 0.0),
                _words(played.values, place), _words(reference.values, place),
            )
            for place in dict.fromkeys([*reference.values, *played.values])
            if (apart := apart_at(place, played.values, reference.values))
            or apart_at(place, self._before.values, reference.values)
        )  # fmt: skip
        for fact in facts:
            mine, theirs = played.tensors.get(fact.place), reference.values.get(fact.place)
            if fact.apart and mine is not None and isinstance(theirs, Tensor) and mine.shape == theirs.shape:
                _write(mine, theirs)
        return facts


def apart_at(place: str, values: Mapping[str, object], others: Mapping[str, object]) -> float:
    """Return how far two states are apart at a place, 0 where they are equal.

    `NOT_FINITE` is returned for anything but two floating values of one shape.
    """
    if (place in values) != (place in others):
        return NOT_FINITE
    return _apart(values.get(place), others.get(place))


def _apart(one: object, other: object) -> float:
    if isinstance(one, float) and isinstance(other, float):
        one, other = torch.tensor(one), torch.tensor(other)
    if not (isinstance(one, Tensor) and isinstance(other, Tensor)):
        return 0.0 if type(one) is type(other) and one == other else NOT_FINITE
    if (one.shape, one.dtype, one.device) != (other.shape, other.dtype, other.device):
        return NOT_FINITE
    if torch.equal(one, other):
        return 0.0
    return apart(one, other) if one.is_floating_point() else NOT_FINITE


def _scale(value: object) -> float:
    if isinstance(value, float):
        return abs(value)
    if isinstance(value, Tensor) and value.is_floating_point() and value.numel():
        return largest(value)
    return 1.0


def _words(values: Mapping[str, object], place: str) -> str:
    if place not in values:
        return "nothing"
    value = values[place]
    if isinstance(value, Tensor):
        return f"a tensor {tuple(value.shape)}" if value.numel() != 1 else f"{value.item():.6g}"
    return f"{value!r:.40}" if isinstance(value, _PLAIN) else "another state"


def _settings() -> Iterator[tuple[str, Callable[[], Any], Callable[[Any], object]]]:
    """Iterate over the modes and random generators of the process: name, reader and writer of each."""
    yield "torch's random generator", torch.get_rng_state, torch.set_rng_state
    if torch.cuda.is_available() and torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        yield "CUDA's random generators", torch.cuda.get_rng_state_all, torch.cuda.set_rng_state_all
    yield "Python's random generator", random.getstate, random.setstate
    yield "numpy's random generator", _numpy_state, np.random.set_state  # the one that code shares
    yield "default dtype", torch.get_default_dtype, torch.set_default_dtype
    yield "threads", torch.get_num_threads, torch.set_num_threads
    yield "grad mode", torch.is_grad_enabled, torch.set_grad_enabled
    yield "matmul precision", torch.get_float32_matmul_precision, torch.set_float32_matmul_precision
    yield (
        "deterministic algorithms",
        torch.are_deterministic_algorithms_enabled,
        partial(
            torch.use_deterministic_algorithms,
            warn_only=torch.is_deterministic_algorithms_warn_only_enabled(),
        ),
    )
    for device in ("cpu", "cuda"):
        enabled = partial(torch.is_autocast_enabled, device)
        yield f"autocast on {device}", enabled, partial(torch.set_autocast_enabled, device)
        dtype = partial(torch.get_autocast_dtype, device)
        yield f"autocast dtype on {device}", dtype, partial(torch.set_autocast_dtype, device)


def _numpy_state() -> tuple[object, ...]:
    name, keys, *rest = cast("tuple[Any, ...]", np.random.get_state())
    return (name, tuple(keys.tolist()), *rest)


def _set_again(read: Callable[[], Any], write: Callable[[Any], object], value: object) -> None:
    if _apart(read(), value):
        write(value)


def take_snapshot(roots: Mapping[str, object], *, marks: bool = False) -> Snapshot:
    """Return the state of objects, by the names that their places begin with, and of the process.

    With `marks`, what Dynamo and autograd write on tensors is put back too: dynamic dimensions, gradients.
    Raises `NotMeasured` for too many objects.
    """
    snapshot = Snapshot()
    for place, read, write in _settings():
        value = read()
        snapshot.values[place] = value
        snapshot.saved.append(_Saved(value, partial(_set_again, read, write)))
    walk = _Walk(snapshot, marks=marks)
    for name, root in roots.items():
        walk.follow(name, root)
    return snapshot


_Write = Callable[[Any], object]


def _refuse(_: object) -> NoReturn:
    raise TypeError("nothing is written here")


class _Walk:
    """One walk over all objects that can be reached from some roots, each visited once."""

    def __init__(self, snapshot: Snapshot, *, marks: bool) -> None:
        self._snapshot = snapshot
        self._marks = marks
        self._root: object = None
        """Where a walk begins: its code is followed, also where it is of a library."""
        self._seen: dict[int, tuple[str, object]] = {}
        self._left: deque[tuple[str, object, _Write]] = deque()
        """Places to visit, each with what writes another object there."""

    def follow(self, name: str, root: object) -> None:
        self._add(name, root)
        while isinstance(root, partial):
            root = root.func
        self._root = root
        while self._left:
            place, value, write = self._left.popleft()
            if isinstance(value, _PLAIN):
                self._snapshot.values[place] = value
            elif id(value) in self._seen:
                self._snapshot.values[place] = f"the same as {self._seen[id(value)][0]}"
            else:
                self._seen[id(value)] = (place, value)
                if len(self._seen) > MOST_OBJECTS:
                    raise NotMeasured(
                        f"{name or 'the decoder'} holds more than {MOST_OBJECTS:,} objects, at {place}"
                    )
                self._visit(place, value, write)

    def _add(self, place: str, value: object, write: _Write = _refuse) -> None:
        self._left.append((place, value, write))

    def _save(self, content: object, put_back: Callable[[Any], object]) -> None:
        self._snapshot.saved.append(_Saved(content, put_back))

    def _visit(self, place: str, value: object, write: _Write) -> None:
        visits: tuple[tuple[Any, Callable[[str, Any], None]], ...] = (
            (Tensor, self._tensor), (dict, self._dict), ((list, deque), self._sequence), (set, self._set),
            ((tuple, frozenset), self._tuple), ((bytearray, np.ndarray, array), self._array),
            ((random.Random, np.random.Generator, torch.Generator), self._generator),
            (ContextVar, self._context), (FunctionType, self._function), (type, self._class),
            (type(threading.Lock()), self._lock), (io.IOBase, self._file), (ModuleType, lambda *_: None),
        )  # fmt: skip
        for kind, visit in visits:
            if isinstance(value, kind):
                visit(place, value)
                return
        parts = _parts_of(value)
        if parts is not None:
            for name, part in parts:
                self._add(f"{place}{name}", part)
        elif _is_iterator(value):
            self._iterator(place, value, write)
        else:
            self._object(place, value)

    def _all(self, place: str, values: Iterable[object]) -> None:
        for index, value in enumerate(values):
            self._add(f"{place}[{index}]", value)

    def _tensor(self, place: str, value: Tensor) -> None:
        if self._marks:
            self._save(dict(vars(value)), partial(_fill_attributes, value))
            if value.is_leaf and value.requires_grad:
                self._save(value.grad, partial(setattr, value, "grad"))
                self._add(f"{place}.grad", value.grad)
        if value.layout is not torch.strided or value.device.type == "meta":
            return
        same = value.detach()
        content = same.clone()
        self._snapshot.values[place], self._snapshot.tensors[place] = content, value
        self._save(content, partial(_fill_tensor, value, same))
        self._snapshot.values[f"{place}.requires_grad"] = value.requires_grad
        self._save(value.requires_grad, partial(_require_grad, value))

    def _dict(self, place: str, value: dict[Any, Any], name: Callable[[Any], str] | None = None) -> None:
        name = name or (lambda key: f"{place}[{key!r:.40}]")
        content = {key: member for key, member in value.items() if not str(key).startswith("_dynamo")}
        self._snapshot.values[f"the names in {place or 'the decoder'}"] = list(
            map(repr, filter(_is_plain, content))
        )
        self._save(content, partial(_fill_dict, value))
        for key, member in content.items():
            self._add(name(key), member, partial(value.__setitem__, key))
            if not _is_plain(key):
                self._add(f"key of {name(key)}", key)

    def _set(self, place: str, value: set[Any]) -> None:
        self._snapshot.values[f"the members of {place}"] = sorted(map(repr, value))
        self._save(set(value), partial(_fill_set, value))
        self._all(place, value)

    def _tuple(self, place: str, value: tuple[object, ...] | frozenset[object]) -> None:
        self._snapshot.values[f"the length of {place}"] = len(value)
        self._all(place, value)

    def _array(self, place: str, value: "bytearray | array[Any] | np.ndarray[Any, Any]") -> None:
        content = copy.copy(value)
        self._snapshot.values[place] = content if isinstance(content, bytearray) else content.tobytes()
        self._save(content, partial(_fill_array, value))

    def _generator(self, place: str, value: random.Random | np.random.Generator | torch.Generator) -> None:
        state: object = None
        write: Callable[[Any], object]
        if isinstance(value, np.random.Generator):
            bits = value.bit_generator
            state, write = bits.state, partial(setattr, bits, "state")
        elif isinstance(value, random.Random):
            state, write = value.getstate(), value.setstate
        else:
            state, write = (
                value.get_state().tolist(),
                lambda state: value.set_state(torch.tensor(state, dtype=torch.uint8)),
            )
        self._snapshot.values[place] = repr(state)
        self._save(state, write)

    def _context(self, place: str, value: ContextVar[Any]) -> None:
        with suppress(LookupError):  # it has no value yet
            self._save(value.get(), value.set)
            self._add(place, value.get(), value.set)

    def _lock(self, place: str, value: threading.Lock) -> None:
        self._snapshot.values[place] = f"a lock, {'held' if value.locked() else 'free'}"
        self._save(value.locked(), partial(_hold, value))

    def _file(self, _place: str, value: io.IOBase) -> None:
        """Save the content of a file in memory, and the position in one that is only read."""
        with suppress(OSError, ValueError):  # closed, or being iterated over
            if isinstance(value, io.BytesIO | io.StringIO):
                self._save((value.getvalue(), value.tell()), partial(_fill_file, value))
            elif value.seekable() and not value.writable():
                self._save(value.tell(), value.seek)

    def _iterator(self, place: str, value: Iterator[object], write: _Write) -> None:
        """Save a copy of an iterator, which takes its place; one of another kind is passed over."""
        if not isinstance(value, _COPIED) or write is _refuse:
            self._snapshot.passed_over[place] = value
            return
        self._snapshot.values[place] = repr(value)
        self._save(copy.copy(value), lambda content: write(copy.copy(content)))

    def _sequence(self, place: str, value: list[Any] | deque[Any]) -> None:
        self._snapshot.values[f"the length of {place}"] = len(value)
        self._save(list(value), partial(_fill_sequence, value))
        for index, member in enumerate(value):
            self._add(f"{place}[{index}]", member, partial(value.__setitem__, index))

    def _object(self, place: str, value: object) -> None:
        kind = type(value)
        attributes = getattr(value, "__dict__", None)
        if isinstance(attributes, dict):
            if isinstance(value, nn.Module):
                self._module(place, value)
            self._dict(place, attributes, lambda key: f"{place}.{key}")
        for name in slots_of(value):
            if hasattr(value, name):
                write = partial(object.__setattr__, value, name)  # a frozen one refuses `setattr`
                self._save(getattr(value, name), write)
                self._add(f"{place}.{name}", getattr(value, name), write)
        self._add(kind.__name__, kind)

    def _module(self, place: str, value: nn.Module) -> None:
        """Name what is in a module as Python does, `.weight`, and not as an entry of a dict."""
        for part in PARTS_OF_MODULES:
            entries = value.__dict__.get(part)
            if isinstance(entries, dict) and id(entries) not in self._seen:
                self._seen[id(entries)] = (f"{place}.{part}", entries)
                self._dict(f"{place}.{part}", entries, lambda key: f"{place}.{key}")

    def _class(self, place: str, value: type) -> None:
        if is_of_library(value.__module__):
            return
        for name, member in list(vars(value).items()):
            if isinstance(member, (FunctionType, staticmethod, classmethod, property)):
                self._add(f"{place}.{name}", member)
            elif not name.startswith("__") and name != "_abc_impl" and not hasattr(type(member), "__set__"):
                write = partial(_set_attribute, value, name)
                self._save(member, write)
                self._add(f"{place}.{name}", member, write)
        for base in value.__bases__:
            self._add(base.__name__, base)

    def _function(self, place: str, value: FunctionType) -> None:
        if is_of_library(value.__module__ or "") and value is not self._root:
            return
        for variable in variables_of(value):
            self._variable(variable)
        for part in ("__dict__", "__defaults__", "__kwdefaults__"):
            self._add(f"{place}.{part}", getattr(value, part))
        named = dict.fromkeys(names_in(value.__code__))
        for module in (value.__globals__.get(name) for name in named):
            if isinstance(module, ModuleType) and not is_of_library(module.__name__):
                for name in named.keys() & vars(module).keys():
                    self._variable(Variable(name, vars(module)[name], vars(module)))

    def _variable(self, variable: Variable) -> None:
        if not isinstance(variable.value, ModuleType):
            self._save(variable.value, variable.write)
            self._add(variable.name, variable.value, variable.write)


def _parts_of(value: object) -> Sequence[tuple[str, object]] | None:
    """Return what a wrapper of Python leads to, each with its name; None for an object of another kind."""
    match value:
        case MethodType():
            return (("", value.__func__), ("", value.__self__))
        case partial():
            return ((".func", value.func), (".args", value.args), (".keywords", value.keywords))
        case staticmethod() | classmethod():
            return (("", value.__func__),)
        case property():
            return (("", value.fget), ("", value.fset))
        case weakref.ref():
            return (("", value()),)
    return None


def _is_plain(value: object) -> bool:
    return isinstance(value, _PLAIN)


_COPIED = (itertools.count, itertools.repeat, *map(type, (iter([]), iter(()), iter(range(0)), iter(""))))
"""Iterators of which a copy continues by itself; those over other iterators, such as a zip, share them."""


def _is_iterator(value: object) -> TypeIs[Iterator[object]]:
    """Return whether Python's own code runs on in a value; a class of a user is an object with attributes."""
    kind = type(value)
    of_python = kind.__module__ == "builtins" or kind.__module__ in sys.stdlib_module_names
    return of_python and hasattr(kind, "__next__")


def _fill_tensor(tensor: Tensor, same: Tensor, content: Tensor) -> None:
    """Put values back into the memory that the tensor had; it may have been given another memory since."""
    moved = (tensor.data_ptr(), tensor.shape, tensor.stride()) != (same.data_ptr(), same.shape, same.stride())
    if moved:
        tensor.data = same
    _write(same, content)


def _write(tensor: Tensor, content: Tensor) -> None:
    if torch.equal(tensor, content):
        return
    once = tuple(slice(1) if stride == 0 else slice(None) for stride in tensor.stride())  # of one memory
    with torch.inference_mode() if tensor.is_inference() else torch.no_grad():
        tensor[once].copy_(content[once])


def _require_grad(tensor: Tensor, wanted: bool) -> None:
    if tensor.requires_grad == wanted:
        return
    if tensor.is_leaf:
        tensor.requires_grad_(wanted)
    else:  # an operation wrote into it in place
        tensor.detach_()


def _fill_dict(into: dict[Any, Any], content: dict[Any, Any]) -> None:
    now = {key: value for key, value in into.items() if not str(key).startswith("_dynamo")}
    if list(now) != list(content):
        for key in now:
            del into[key]
        into.update(content)
        return
    into.update({key: value for key, value in content.items() if now[key] is not value})


def _fill_sequence(into: list[Any] | deque[Any], content: list[Any]) -> None:
    if [*map(id, into)] != [*map(id, content)]:
        into.clear()
        into.extend(content)


def _fill_set(into: set[Any], content: set[Any]) -> None:
    if into != content:
        into.clear()
        into.update(content)


def _fill_attributes(tensor: Tensor, content: dict[str, object]) -> None:
    if vars(tensor) != content:
        vars(tensor).clear()
        vars(tensor).update(content)


def _hold(lock: threading.Lock, wanted: bool) -> None:
    if lock.locked() and not wanted:
        lock.release()
    elif wanted and not lock.locked():
        lock.acquire(blocking=False)


def _fill_file(into: Any, content: tuple[Any, int]) -> None:  # noqa: ANN401  # bytes or text in memory
    if into.closed or (into.getvalue(), into.tell()) == content:
        return
    into.seek(0)
    into.truncate()
    into.write(content[0])
    into.seek(content[1])


def _fill_array(into: "bytearray | array[Any] | np.ndarray[Any, Any]", content: Any) -> None:  # noqa: ANN401  # of its type
    if isinstance(into, bytearray | array):
        into[:] = content
    else:
        np.copyto(into, content)


def _set_attribute(owner: type, name: str, value: object) -> None:
    if vars(owner).get(name) is not value:
        setattr(owner, name, value)
