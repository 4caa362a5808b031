"""State that a decoder retains between calls: recorded, put back in place, and compared.

`DecoderState` follows a module to everything that its Python can change: attributes, parameters, buffers,
containers, closures, globals that its code names, attributes of its classes, targets of weak references.
Random generators and torch's modes are part of the state. Values are put back into the same objects and
tensors, because compiled code and captured graphs hold references to them.

`LaneStates` gives the two lanes of a case a state each: both begin equal, and each lane sees its own.

What cannot be seen (a C extension, a file, a clock) shows as two runs from equal state that differ
(`Distances.repeated`).
"""

import io
import random
import sys
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import partial
from itertools import chain
from types import CellType, CodeType, FunctionType, MethodType, ModuleType
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn

from deepstack_harness.compile.distances import apart, largest
from deepstack_harness.contract.observation import NOT_FINITE, StateFacts
from deepstack_harness.errors import NotMeasured

MOST_OBJECTS = 200_000
_LIBRARIES = frozenset({"torch", "numpy", "triton", "transformers", "deepstack_harness", "pytest", "_pytest"})
_PLAIN = (
    type(None), bool, int, float, complex, str, bytes, torch.dtype, torch.device, torch.layout,
    torch.memory_format, type(Ellipsis), range, slice, CodeType,
)  # fmt: skip
_PARTS_OF_MODULES = ("_parameters", "_buffers", "_modules")


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

    def restore(self) -> None:
        """Put everything back into the objects that had it."""
        for saved in self.saved:
            saved.put_back(saved.content)

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
        snapshot = Snapshot()
        for place, read, write in _settings():
            value = read()
            snapshot.values[place] = value
            snapshot.saved.append(_Saved(value, partial(_set_again, read, write)))
        _Walk(snapshot).follow(self._root)
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


def shared_state(code: Iterable[object]) -> Snapshot:
    """Return a snapshot of what functions and classes use: variables, globals, attributes and torch's modes.

    All copies of a region share it. Running iterators are not put back; where there are too many objects,
    nothing is, and two uncompiled runs then differ.
    """
    snapshot = Snapshot()
    for _, read, write in _settings():
        value = read()
        snapshot.saved.append(_Saved(value, partial(_set_again, read, write)))
    walk = _Walk(snapshot, runs=False)
    try:
        for root in code:
            walk.follow(root)
    except NotMeasured:
        return Snapshot()
    return snapshot


class _Walk:
    """One walk over all objects that can be reached from a root, each visited once.

    An iterator raises `NotMeasured`, unless `runs` is False: then it is passed over.
    """

    def __init__(self, snapshot: Snapshot, *, runs: bool = True) -> None:
        self._snapshot = snapshot
        self._runs = runs
        self._seen: dict[int, tuple[str, object]] = {}
        self._left: deque[tuple[str, object]] = deque()

    def follow(self, root: object) -> None:
        self._left.append(("", root))
        while self._left:
            place, value = self._left.popleft()
            if isinstance(value, _PLAIN):
                self._snapshot.values[place] = value
            elif id(value) in self._seen:
                self._snapshot.values[place] = f"the same as {self._seen[id(value)][0]}"
            else:
                self._seen[id(value)] = (place, value)
                if len(self._seen) > MOST_OBJECTS:
                    raise NotMeasured(f"the decoder holds more than {MOST_OBJECTS:,} objects, at {place}")
                self._visit(place, value)

    def _save(self, content: object, put_back: Callable[[Any], object]) -> None:
        self._snapshot.saved.append(_Saved(content, put_back))

    def _visit(self, place: str, value: object) -> None:
        visits: tuple[tuple[Any, Callable[[str, Any], None]], ...] = (
            (Tensor, self._tensor), (dict, self._dict), ((list, deque), self._sequence), (set, self._set),
            ((tuple, frozenset), self._tuple), ((bytearray, np.ndarray), self._array),
            ((random.Random, np.random.Generator, torch.Generator), self._generator),
            (ContextVar, self._context), (FunctionType, self._function), (type, self._class),
            (ModuleType, lambda *_: None),
        )  # fmt: skip
        for kind, visit in visits:
            if isinstance(value, kind):
                visit(place, value)
                return
        parts = _parts_of(value)
        if parts is None:
            self._object(place, value)
        else:
            self._left += [(f"{place}{name}", part) for name, part in parts]

    def _all(self, place: str, values: Iterable[object]) -> None:
        self._left += [(f"{place}[{index}]", value) for index, value in enumerate(values)]

    def _tensor(self, place: str, value: Tensor) -> None:
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
            self._left.append((name(key), member))
            if not _is_plain(key):
                self._left.append((f"key of {name(key)}", key))

    def _set(self, place: str, value: set[Any]) -> None:
        self._snapshot.values[f"the members of {place}"] = sorted(map(repr, value))
        self._save(set(value), partial(_fill_set, value))
        self._all(place, value)

    def _tuple(self, place: str, value: tuple[object, ...] | frozenset[object]) -> None:
        self._snapshot.values[f"the length of {place}"] = len(value)
        self._all(place, value)

    def _array(self, place: str, value: "bytearray | np.ndarray[Any, Any]") -> None:
        content = value.copy()
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
            self._left.append((place, value.get()))

    def _sequence(self, place: str, value: list[Any] | deque[Any]) -> None:
        self._snapshot.values[f"the length of {place}"] = len(value)
        self._save(list(value), partial(_fill_sequence, value))
        self._all(place, value)

    def _object(self, place: str, value: object) -> None:
        kind = type(value)
        of_python = kind.__module__ == "builtins" or kind.__module__ in sys.stdlib_module_names
        if of_python and hasattr(kind, "__next__") and not isinstance(value, io.IOBase):
            if not self._runs:
                return
            raise NotMeasured(
                f"the decoder keeps a {kind.__name__} at {place}, which cannot be put back before each "
                "of the compared runs: keep a number, a list or a tensor in its place"
            )
        attributes = getattr(value, "__dict__", None)
        if isinstance(attributes, dict):
            if isinstance(value, nn.Module):
                self._module(place, value)
            self._dict(place, attributes, lambda key: f"{place}.{key}")
        for name in {name for base in kind.__mro__ for name in slots_of(base)}:
            if hasattr(value, name):
                self._save(getattr(value, name), partial(setattr, value, name))
                self._left.append((f"{place}.{name}", getattr(value, name)))
        self._left.append((kind.__name__, kind))

    def _module(self, place: str, value: nn.Module) -> None:
        """Name what is in a module as Python does, `.weight`, and not as an entry of a dict."""
        for part in _PARTS_OF_MODULES:
            entries = value.__dict__.get(part)
            if isinstance(entries, dict) and id(entries) not in self._seen:
                self._seen[id(entries)] = (f"{place}.{part}", entries)
                self._dict(f"{place}.{part}", entries, lambda key: f"{place}.{key}")

    def _class(self, place: str, value: type) -> None:
        if is_of_library(value.__module__):
            return
        for name, member in list(vars(value).items()):
            if isinstance(member, (FunctionType, staticmethod, classmethod, property)):
                self._left.append((f"{place}.{name}", member))
            elif not name.startswith("__") and name != "_abc_impl" and not hasattr(type(member), "__set__"):
                self._save(member, partial(_set_attribute, value, name))
                self._left.append((f"{place}.{name}", member))
        self._left += [(base.__name__, base) for base in value.__bases__]

    def _function(self, place: str, value: FunctionType) -> None:
        if is_of_library(value.__module__ or ""):
            return
        names = value.__code__.co_freevars
        for name, cell in zip(names, value.__closure__ or (), strict=True):
            self._cell(name, cell)
        self._left += ((f"{place}.__dict__", value.__dict__), (f"{place}.__defaults__", value.__defaults__))
        self._left.append((f"{place}.__kwdefaults__", value.__kwdefaults__))
        named = dict.fromkeys(names_in(value.__code__))
        self._globals(value.__globals__, named)
        for name in named:
            module = value.__globals__.get(name)
            if isinstance(module, ModuleType) and not is_of_library(module.__name__):
                self._globals(vars(module), named)

    def _cell(self, name: str, cell: CellType) -> None:
        if id(cell) in self._seen:
            return
        self._seen[id(cell)] = (name, cell)
        try:
            content = cell.cell_contents
        except ValueError:  # nothing is in it yet
            return
        self._save(content, partial(setattr, cell, "cell_contents"))
        self._left.append((name, content))

    def _globals(self, owner: dict[str, Any], names: Iterable[str]) -> None:
        for name in names:
            if name in owner and not isinstance(owner[name], ModuleType):
                self._save(owner[name], partial(owner.__setitem__, name))
                self._left.append((name, owner[name]))


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


def slots_of(base: type) -> Iterable[str]:
    """Return the names of the slots that a class of no library adds."""
    if is_of_library(base.__module__):
        return ()
    slots = vars(base).get("__slots__", ())
    names = (slots,) if isinstance(slots, str) else tuple(slots)
    return (name for name in names if name not in ("__dict__", "__weakref__"))


def is_of_library(module: str) -> bool:
    """Return whether a module, by name, is Python's own or of a library whose state is not a user's."""
    top = module.partition(".")[0]
    return top in _LIBRARIES or top in sys.stdlib_module_names or top == "builtins"


def names_in(code: CodeType) -> Iterator[str]:
    """Iterate over the names of globals and attributes in a function's code, and in functions inside it."""
    inner = (names_in(constant) for constant in code.co_consts if isinstance(constant, CodeType))
    return chain(code.co_names, chain.from_iterable(inner))


def _fill_tensor(tensor: Tensor, same: Tensor, content: Tensor) -> None:
    """Put values back into the memory that the tensor had; it may have been given another memory since."""
    moved = (tensor.data_ptr(), tensor.shape, tensor.stride()) != (same.data_ptr(), same.shape, same.stride())
    if moved:
        tensor.data = same
    _write(same, content)


def _write(tensor: Tensor, content: Tensor) -> None:
    if torch.equal(tensor, content):
        return
    with torch.inference_mode() if tensor.is_inference() else torch.no_grad():
        tensor.copy_(content)


def _require_grad(tensor: Tensor, wanted: bool) -> None:
    if tensor.requires_grad != wanted:
        tensor.requires_grad_(wanted)


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


def _fill_array(into: "bytearray | np.ndarray[Any, Any]", content: Any) -> None:  # noqa: ANN401  # of its type
    if isinstance(into, bytearray):
        into[:] = content
    else:
        np.copyto(into, content)


def _set_attribute(owner: type, name: str, value: object) -> None:
    if vars(owner).get(name) is not value:
        setattr(owner, name, value)
