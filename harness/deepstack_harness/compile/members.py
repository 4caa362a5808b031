"""What an object or a function holds, by name: the one place that knows where Python and torch have it.

The walks over state (`play.state`, `play.region_state`, `compile.captured_inputs`, `torch_compat.rerun`) end
in different places; what an attribute, a slot or a variable is, they all find here.
"""

import sys
from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache
from itertools import chain
from types import CellType, CodeType, FunctionType, ModuleType
from typing import Any, NamedTuple

from torch import Tensor, nn

_LIBRARIES = frozenset({"torch", "numpy", "triton", "transformers", "deepstack_harness", "pytest", "_pytest"})
_ENDS = (
    type(None), str, bytes, int, float, complex, Tensor, type, CodeType, FunctionType, ModuleType
)  # fmt: skip
"""Values that hold nothing, or code."""
PARTS_OF_MODULES = ("_parameters", "_buffers", "_modules")
OF_TORCH = frozenset(vars(nn.Module())) - {"training"} | {"_is_torch_compile"}
"""Attributes that torch gives every module, or a compiled one; its parts are listed by their own names."""


def attributes_of(owner: object) -> dict[str, Any]:
    """Return the attributes of an object, those in slots too; of a module also what its parts have."""
    held = dict(getattr(owner, "__dict__", {}))
    for slot in slots_of(owner):
        if hasattr(owner, slot):
            held[slot] = getattr(owner, slot)
    if isinstance(owner, nn.Module):
        held = {name: value for name, value in held.items() if name not in OF_TORCH}
        for part in PARTS_OF_MODULES:
            held |= vars(owner).get(part) or {}
    return held


def items_of(container: object) -> Iterator[tuple[str, Any]]:
    """Yield the members of a mapping, a list, a tuple or a set, as Python writes them: `['k']`, `[0]`."""
    if isinstance(container, Mapping):
        yield from ((f"[{key!r}]", member) for key, member in container.items())
    elif isinstance(container, list | tuple | set | frozenset):
        yield from ((f"[{number}]", member) for number, member in enumerate(container))


def places(
    root: object, name: str = "", enters: Callable[[object], bool] = lambda _: True
) -> Iterator[tuple[str, Any]]:
    """Yield what can be reached from an object by its items and attributes, with the path to it.

    An object comes once, plain values and tensors by each of their paths; `enters` decides what is followed.
    """
    seen: set[int] = set()
    left: list[tuple[str, Any]] = [(name, root)]
    while left:
        path, value = left.pop()
        if isinstance(value, _ENDS):
            yield path, value
        elif id(value) not in seen:
            seen.add(id(value))
            yield path, value
            if enters(value):
                left += ((f"{path}{place}", member) for place, member in items_of(value))
                left += ((f"{path}.{place}", member) for place, member in attributes_of(value).items())


def slots_of(owner: object) -> tuple[str, ...]:
    """Return the names of the slots that the class of an object and its bases of no library add."""
    kind: Any = type(owner)
    return _slots_of_class(kind)


@lru_cache(maxsize=4096)
def _slots_of_class(kind: type) -> tuple[str, ...]:
    names: list[str] = []
    for base in kind.__mro__:
        slots = () if is_of_library(base.__module__) else vars(base).get("__slots__", ())
        names += (slots,) if isinstance(slots, str) else slots
    return tuple(name for name in names if name not in ("__dict__", "__weakref__"))


class Variable(NamedTuple):
    """A variable that a function reads: in a cell of its closure, or in a dict of globals."""

    name: str
    value: Any
    holder: CellType | dict[str, Any]

    def write(self, value: object) -> None:
        """Give the variable another value."""
        if isinstance(self.holder, CellType):
            self.holder.cell_contents = value
        else:
            self.holder[self.name] = value


def variables_of(function: FunctionType) -> Iterator[Variable]:
    """Yield the variables of enclosing functions that have a value, then the globals that the code names."""
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        try:
            yield Variable(name, cell.cell_contents, cell)
        except ValueError:  # nothing is in it yet
            continue
    for name in dict.fromkeys(names_in(function.__code__)):
        if name in function.__globals__:
            yield Variable(name, function.__globals__[name], function.__globals__)


def names_in(code: CodeType) -> Iterator[str]:
    """Iterate over the names of globals and attributes in a function's code, and in functions inside it."""
    inner = (names_in(constant) for constant in code.co_consts if isinstance(constant, CodeType))
    return chain(code.co_names, chain.from_iterable(inner))


def is_of_library(module: str) -> bool:
    """Return whether a module, by name, is Python's own or of a library whose state is not a user's."""
    top = module.partition(".")[0]
    return top in _LIBRARIES or top in sys.stdlib_module_names or top == "builtins"
