"""Replace what a loaded package imports and nobody has: permissive while it is imported, strict afterwards.

A `Stub` is one attribute of a missing module.  While a module of the source is imported it can be called,
subclassed, subscripted, compared and used as a decorator, so that one missing library does not take a
whole file with it.  It computes nothing.  Once the import is over, each of these uses raises `CannotSupply`
with the name of the stub and the file and line of its user, and is recorded in `Absent.touched`: code under
test may swallow the exception, and a class that has met a stub must not be judged.

An object cannot notice `x is None`.  The names of a module that are bound to stubs are therefore taken out of
its namespace (`engines.load`), so that reading the name is a use by itself.
"""

import typing
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import FunctionType, ModuleType
from typing import Any

from deepstack_harness.engines.model_class import CannotSupply
from deepstack_harness.errors import Reason

SUFFICIENT = "999.0.0"
"""The version of a package that is missing: new enough for any test of it."""


@dataclass
class Absent:
    """What a loaded package lacked.

    `modules` maps each missing module to the place of its first import, and `failed` has the statements of
    the source that raised, each with its place.  `touched` has the uses of stubs after the import.  `locate`
    finds the place of the code of the source that runs now; `loading` counts imports that are running.
    `values` are objects of ours in the place of attributes of missing modules, by their dotted names, and
    `supplied` those that methods find in any module, by the name alone.
    """

    locate: Callable[[], tuple[str, int | None]]
    modules: dict[str, str] = field(default_factory=dict)
    failed: list[Reason] = field(default_factory=list)
    touched: list[Reason] = field(default_factory=list)
    loading: int = 0
    values: dict[str, object] = field(default_factory=dict)
    supplied: Mapping[str, object] = field(default_factory=dict)

    @contextmanager
    def permissive(self) -> Iterator[None]:
        """Let stubs be used for a while."""
        self.loading += 1
        try:
            yield
        finally:
            self.loading -= 1

    def use(self, path: str, act: str) -> None:
        """Record a use of the stub `path` and raise `CannotSupply`; do nothing while a module is imported."""
        if self.loading:
            return
        file, line = self.locate()
        why = Reason(f"{path} is not there and is {act}", file, line)
        self.touched.append(why)
        raise CannotSupply(why)


class StubBase:
    """The base of a class that is derived from a stub: it has no members, whatever the missing class has."""

    def __init_subclass__(cls, **_: object) -> None:
        super().__init_subclass__()

    def __class_getitem__(cls, _: object) -> type:
        return cls

    def __init__(self, *_: object, **__: object) -> None:
        super().__init__()


class StubError(Exception):
    """The base of stubs that are named like an exception, so that `except` takes them."""


class Stub:
    """An attribute of a missing module, or of another stub, by its dotted name."""

    _path: str
    _absent: Absent
    _base: type | None
    _made: dict[str, object]

    def __init__(self, path: str, absent: Absent) -> None:
        own = vars(self)
        own["_path"], own["_absent"], own["_base"], own["_made"] = path, absent, None, {}
        own["__name__"] = own["__qualname__"] = path.rpartition(".")[2]
        own["__module__"], own["__doc__"], own["__annotations__"] = path.rpartition(".")[0], None, {}

    @property  # type: ignore[misc]  # `isinstance(stub, kind)` reads it
    def __class__(self) -> type:
        self._absent.use(self._path, "examined by isinstance")
        return Stub

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401  # it may be anything
        if name == "__version__":
            return SUFFICIENT
        if name.startswith("__"):
            raise AttributeError(name)
        self._absent.use(f"{self._path}.{name}", "read")
        if name not in self._made:
            self._made[name] = make_stub(f"{self._path}.{name}", self._absent)
        return self._made[name]

    def __setattr__(self, name: str, value: object) -> None:
        self._absent.use(f"{self._path}.{name}", "set")
        self._made[name] = value

    def __call__(self, *args: object, **named: object) -> object:
        """Return the function or class that is decorated, and else a stub; a class decorates nothing.

        A call with options makes a decorator, as `register(Processor, info=Info)` does.
        """
        self._absent.use(self._path, "called")
        is_class = self.__name__[:1].isupper()
        if not is_class and not named and len(args) == 1 and isinstance(args[0], _DECORATED):
            return args[0]
        return Stub(f"{self._path}()", self._absent)

    def __mro_entries__(self, _: tuple[object, ...]) -> tuple[type, ...]:
        self._absent.use(self._path, "derived from")
        base = self._base or type(
            self.__name__, (StubBase,), {"__module__": self.__module__, "stub_path": self._path}
        )
        vars(self)["_base"] = base
        return (base,)

    def __instancecheck__(self, value: object) -> bool:
        self._absent.use(self._path, "used in isinstance")
        return self._base is not None and isinstance(value, self._base)

    def __subclasscheck__(self, cls: type) -> bool:
        self._absent.use(self._path, "used in issubclass")
        return self._base is not None and issubclass(cls, self._base)

    def __or__(self, other: object) -> object:
        self._absent.use(self._path, "combined")
        return typing.Union[self, other]  # noqa: UP007  # `|` of these is this method

    def __ror__(self, other: object) -> object:
        self._absent.use(self._path, "combined")
        return typing.Union[other, self]  # noqa: UP007

    def __deepcopy__(self, _: object) -> "Stub":
        return self

    def __repr__(self) -> str:
        return f"<stub {vars(self)['_path']}>"


_DECORATED = (type, FunctionType, staticmethod, classmethod, property)


def _special(name: str, act: str, result: Callable[[Stub], object]) -> None:
    def method(self: Stub, *_: object) -> object:
        self._absent.use(self._path, act)
        return result(self)

    method.__name__ = name
    setattr(Stub, name, method)


def _stops(_: Stub) -> object:
    raise StopIteration


_ARITHMETIC = (
    "add",
    "sub",
    "mul",
    "matmul",
    "truediv",
    "floordiv",
    "mod",
    "pow",
    "and",
    "xor",
    "lshift",
    "rshift",
)
_SPECIAL: dict[str, tuple[str, Callable[[Stub], object]]] = {
    "getitem": ("subscripted", lambda stub: stub),
    "setitem": ("changed", lambda _: None),
    "delitem": ("changed", lambda _: None),
    "contains": ("searched", lambda _: False),
    "iter": ("iterated", lambda _: iter(())),
    "next": ("iterated", _stops),
    "len": ("measured", lambda _: 0),
    "bool": ("tested", lambda _: False),
    "index": ("used as a number", lambda _: 0),
    "int": ("used as a number", lambda _: 0),
    "float": ("used as a number", lambda _: 0.0),
    "str": ("used as text", repr),
    "format": ("used as text", repr),
    "fspath": ("used as a path", lambda _: "/nonexistent"),
    "enter": ("entered", lambda stub: stub),
    "exit": ("left", lambda _: None),
    "eq": ("compared", lambda _: False),
    "ne": ("compared", lambda _: True),
    **{name: ("compared", lambda _: False) for name in ("lt", "le", "gt", "ge")},
    **{
        f"{side}{name}": ("used in arithmetic", lambda stub: stub)
        for name in _ARITHMETIC
        for side in ("", "r", "i")
    },
    **{name: ("used in arithmetic", lambda stub: stub) for name in ("neg", "pos", "abs", "invert")},
}
"""Special methods of a stub: the word for such a use, and what it gives while modules are imported."""
for _name, (_act, _result) in _SPECIAL.items():
    _special(f"__{_name}__", _act, _result)


def make_stub(path: str, absent: Absent) -> object:
    """Return a stub, or an exception class where it is named like one."""
    name = path.rpartition(".")[2]
    if name.endswith(("Error", "Exception", "Warning", "Interrupt")):
        kind = Warning if name.endswith("Warning") else StubError
        return type(name, (kind,), {"__module__": path.rpartition(".")[0], "stub_path": path})
    return Stub(path, absent)


class StubModule(ModuleType):
    """A module that is missing.  No import system knows it: another import of its name is missing again."""

    _absent: Absent
    _made: dict[str, object]

    def __init__(self, name: str, absent: Absent) -> None:
        super().__init__(name)
        self._absent, self._made = absent, {}
        self.__path__: list[str] = []
        self.__all__: tuple[str, ...] = ()
        self.__version__ = SUFFICIENT

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401  # it may be anything
        if name.startswith("__"):
            raise AttributeError(name)
        if (path := f"{self.__name__}.{name}") in self._absent.values:
            return self._absent.values[path]
        if name in self._absent.supplied and not self._absent.loading:
            return self._absent.supplied[name]
        self._absent.use(path, "read")
        if name not in self._made:
            self._made[name] = make_stub(f"{self.__name__}.{name}", self._absent)
        return self._made[name]

    def __mro_entries__(self, _: tuple[object, ...]) -> tuple[type, ...]:
        return (StubBase,)


def path_of(stub: object) -> str:
    """Return the dotted name of what a stub stands for."""
    known = vars(stub)  # `isinstance` would be a use of the stub
    return str(known.get("_path") or known.get("stub_path") or known["__name__"])


def is_stub(value: object) -> bool:
    """Return whether a value is a stub itself; a class of the source that is derived from one is none."""
    kind = type(value)
    return issubclass(kind, Stub | StubModule) or (issubclass(kind, type) and "stub_path" in vars(value))
