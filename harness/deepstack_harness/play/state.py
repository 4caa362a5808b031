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
import threading
from array import array
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from types import ModuleType
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn

from deepstack_harness.compile.distances import apart, largest
from deepstack_harness.compile.members import (
    OF_TORCH,
    PLAIN,
    Keys,
    StatePlace,
    has_attributes,
    is_iterator,
    is_plain,
    places,
    plain_members,
)
from deepstack_harness.contract.observation import NOT_FINITE, StateFacts
from deepstack_harness.errors import NotMeasured

MOST_OBJECTS = 200_000
"""A walk over 100,000 takes about 0.4 s, and a step needs several. With more, nothing is measured."""
NOT_PUT_BACK = "which cannot be put back before each run: have a number, a list or a tensor in its place"


@dataclass
class Snapshot:
    """The state at one moment: what puts it back, and a value for each place, to compare with another."""

    saved: list[tuple[Any, Callable[[Any], object]]] = field(default_factory=list)
    """The content of each thing that can change, and the function that puts the content back."""
    values: dict[str, object] = field(default_factory=dict)
    tensors: dict[str, Tensor] = field(default_factory=dict)
    """The tensors themselves, by place; `values` has copies."""
    passed_over: dict[str, object] = field(default_factory=dict)
    """What cannot be put back, by place: running iterators."""

    def restore(self) -> None:
        """Put everything back into the objects that had it; raises `NotMeasured` where one refuses."""
        for content, put_back in self.saved:
            try:
                put_back(content)
            except Exception as error:
                raise NotMeasured(
                    f"a {type(content).__name__} cannot be put back ({type(error).__name__}: {error})"
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
    return f"{value!r:.40}" if isinstance(value, PLAIN) else "another state"


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
    for name, read, write in _settings():
        value = read()
        snapshot.values[name] = value
        snapshot.saved.append((value, partial(_set_again, read, write)))
    taking = _Taking(snapshot, marks=marks)
    for place in places((StatePlace(name, root) for name, root in roots.items()), taking.is_new):
        taking.take(place)
    return snapshot


class _Taking:
    """Saves what is at each place of a walk, each object once."""

    def __init__(self, snapshot: Snapshot, *, marks: bool) -> None:
        self._snapshot = snapshot
        self._marks = marks
        self._seen: dict[int, tuple[str, object]] = {}
        """The objects by id, with their first place; they are held, so that no other one gets the id."""
        self._copied: dict[int, list[Callable[[Any], object]]] = {}
        """What puts another iterator in each place of one, by its id."""

    def is_new(self, place: StatePlace) -> bool:
        """Return whether an object was not at an earlier place: it is followed once."""
        new = self._seen[id(place.value)][0] is place.path
        if new and is_plain(place.value):
            for path, value in plain_members(place.path, place.value).items():
                self._note(path, value)
            return False
        return new

    def take(self, place: StatePlace) -> None:
        """Save what is at a place, and note its value."""
        path, value = place.path, place.value
        if id(value) in self._copied and place.is_writable:
            self._copied[id(value)].append(place.write)
        elif place.single and place.is_writable and not is_iterator(value):
            self._save(value, place.write)
        plain = isinstance(value, (*PLAIN, Keys))
        if plain:
            self._note(path, value)
        elif id(value) in self._seen:
            self._snapshot.values[path] = f"the same as {self._seen[id(value)][0]}"
        if id(value) not in self._seen and (not plain or has_attributes(value)):
            self._seen[id(value)] = (path, value)
            if len(self._seen) > MOST_OBJECTS:
                raise NotMeasured(f"it holds more than {MOST_OBJECTS:,} objects, at {path or 'the decoder'}")
            self._object(place, value)

    def _note(self, path: str, value: object) -> None:
        self._snapshot.values[path] = (
            [repr(key) for key in value if isinstance(key, PLAIN)] if isinstance(value, Keys) else value
        )

    def _save(self, content: object, put_back: Callable[[Any], object]) -> None:
        self._snapshot.saved.append((content, put_back))

    def _object(self, place: StatePlace, value: object) -> None:
        saves: tuple[tuple[Any, Callable[[str, Any], None]], ...] = (
            (Tensor, self._tensor), ((bytearray, np.ndarray, array), self._array),
            ((random.Random, np.random.Generator, torch.Generator), self._generator),
            (type(threading.Lock()), self._lock), (io.IOBase, self._file), (set, self._set),
            (dict, lambda _, content: self._save(_without_marks(content), partial(_fill_dict, content))),
            ((list, deque), lambda _, content: self._save(list(content), partial(_fill_members, content))),
        )  # fmt: skip
        for kind, save in saves:
            if isinstance(value, kind):
                save(place.path, value)
        if is_iterator(value):
            self._iterator(place, value)
        elif not isinstance(value, type | ModuleType | Tensor) and isinstance(
            attributes := getattr(value, "__dict__", None), dict
        ):
            self._save(_without_marks(attributes), partial(_fill_dict, attributes))
            for part in (attributes.get(name) for name in OF_TORCH) if isinstance(value, nn.Module) else ():
                if isinstance(part, dict):  # hooks, and parts that are registered
                    self._save(_without_marks(part), partial(_fill_dict, part))

    def _tensor(self, path: str, value: Tensor) -> None:
        if self._marks:
            self._save(dict(vars(value)), partial(_fill_attributes, value))
            if value.is_leaf and value.requires_grad:
                self._save(value.grad, partial(setattr, value, "grad"))
                self.take(StatePlace(f"{path}.grad", value.grad))
        if value.layout is not torch.strided or value.device.type == "meta":
            return
        same = value.detach()
        content = same.clone()
        self._snapshot.values[path], self._snapshot.tensors[path] = content, value
        self._save(content, partial(_fill_tensor, value, same))
        self._snapshot.values[f"{path}.requires_grad"] = value.requires_grad
        self._save(value.requires_grad, partial(_require_grad, value))

    def _set(self, path: str, value: set[Any]) -> None:
        self._snapshot.values[f"{path} (its members)"] = sorted(map(repr, value))
        self._save(set(value), partial(_fill_members, value))

    def _array(self, path: str, value: "bytearray | array[Any] | np.ndarray[Any, Any]") -> None:
        content = copy.copy(value)
        self._snapshot.values[path] = content if isinstance(content, bytearray) else content.tobytes()
        self._save(content, partial(_fill_members, value))

    def _generator(self, path: str, value: random.Random | np.random.Generator | torch.Generator) -> None:
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
        self._snapshot.values[path] = repr(state)
        self._save(state, write)

    def _lock(self, path: str, value: threading.Lock) -> None:
        self._snapshot.values[path] = f"a lock, {'held' if value.locked() else 'free'}"
        self._save(value.locked(), partial(_hold, value))

    def _file(self, _path: str, value: io.IOBase) -> None:
        """Save the content of a file in memory, and the position in one that is only read."""
        with suppress(OSError, ValueError):  # closed, or being iterated over
            if isinstance(value, io.BytesIO | io.StringIO):
                self._save((value.getvalue(), value.tell()), partial(_fill_file, value))
            elif value.seekable() and not value.writable():
                self._save(value.tell(), value.seek)

    def _iterator(self, place: StatePlace, value: Iterator[object]) -> None:
        """Save a copy of an iterator, which takes its places; one of another kind is passed over."""
        if not isinstance(value, _COPIED) or not place.is_writable:
            self._snapshot.passed_over[place.path] = value
            return
        self._snapshot.values[place.path] = repr(value)
        writes = self._copied[id(value)] = [place.write]

        def put_back(content: Iterator[object]) -> None:
            again = copy.copy(content)
            for write in writes:
                write(again)

        self._save(copy.copy(value), put_back)


def _without_marks(content: Mapping[Any, Any]) -> dict[Any, Any]:
    """Return what a dict has, without what Dynamo notes in it."""
    return {key: value for key, value in content.items() if not str(key).startswith("_dynamo")}


_COPIED = (itertools.count, itertools.repeat, *map(type, (iter([]), iter(()), iter(range(0)), iter(""))))
"""Iterators of which a copy continues by itself; those over other iterators, such as a zip, share them."""


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
    now = _without_marks(into)
    if list(now) != list(content):
        for key in now:
            del into[key]
        now = {}
    for key, value in content.items():
        if key not in now or now[key] is not value:
            into[key] = value  # noqa: PERF403  # the `update` of a Counter adds


def _fill_members(into: Any, content: Any) -> None:  # noqa: ANN401  # a container, and one with its members
    match into:
        case set():
            if into != content:
                into.clear()
                into.update(content)
        case list() | deque():
            if [*map(id, into)] != [*map(id, content)]:
                into.clear()
                into.extend(content)
        case np.ndarray():
            np.copyto(into, content)
        case _:  # of bytes, or an array of Python
            into[:] = content


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
