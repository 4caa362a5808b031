"""Typed calls of functions in a worker: arguments and results are records here, and JSON on the way.

`Remote` names a function and the type of its result, in a process that need not import the function's module.
In the worker `call_typed` converts the arguments by the annotations of the function.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from threading import Lock
from typing import Any, Generic, get_type_hints

import msgspec
from typing_extensions import TypeVar

Result = TypeVar("Result", default=Any)


@dataclass(frozen=True)
class Remote(Generic[Result]):
    """A function of a worker: `target` is "package.module:function", `result` the type of what it returns.

    Arguments and results are what msgspec makes JSON of: dataclasses, structs, enums, containers, bytes.
    """

    target: str
    result: type[Result]

    @property
    def module(self) -> str:
        """The module of the function, to be imported before the first call."""
        return self.target.rpartition(":")[0]


_CONVERTING = Lock()


def converted(value: object, kind: type[Result]) -> Result:
    """Convert what a worker sent into a record of type `kind`; several threads may do so at once.

    msgspec (0.22) stores its data about a dataclass on the class before they are complete; a second thread
    that finds it there ends the process with a segmentation fault. Raises `msgspec.ValidationError`.
    """
    with _CONVERTING:
        record: Result = msgspec.convert(value, kind)
    return record


CALL_TYPED = f"{__name__}:call_typed"
"""Function by which `workers.child` calls the function of a `Remote`."""


def call_typed(function: Callable[..., object], arguments: Mapping[str, Any]) -> object:
    """Call a function with arguments that are converted from JSON by its annotations; its result is JSON.

    Raises `msgspec.ValidationError` for an argument of another type, and what the function raises.
    """
    kinds = _annotations(function)
    typed = {
        name: value if name == "channel" else msgspec.convert(value, kinds.get(name, Any))
        for name, value in arguments.items()
    }
    return msgspec.to_builtins(function(**typed))


@cache
def _annotations(function: Callable[..., object]) -> dict[str, Any]:
    return get_type_hints(function)
