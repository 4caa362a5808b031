"""Execute compiled code of a source: define its classes and functions, over stand-ins."""

import linecache
import traceback
from collections.abc import Mapping
from types import CodeType
from typing import Any, NoReturn, TypeVar

from deepstack_harness.binding.cut_class import HOST
from deepstack_harness.binding.cut_helpers import HelperCut, StandIn, Supply, Unavailable
from deepstack_harness.binding.cut_model import ModelCut
from deepstack_harness.errors import UsageError
from deepstack_harness.sources.source import SourceFile

H = TypeVar("H")


class CannotSupply(UsageError):
    """Code of a source used something that only the whole package has."""


class Refused:
    """Stand-in for an object that cannot be supplied; whoever uses it is told why."""

    def __init__(self, why: str) -> None:
        """Take `why`, a sentence with file and line."""
        self._why = why

    def __call__(self, *_: object, **__: object) -> NoReturn:
        """Raise `CannotSupply`."""
        raise CannotSupply(self._why)

    def __getattr__(self, name: str) -> NoReturn:
        """Raise `CannotSupply`."""
        raise CannotSupply(self._why)


def define_model(model: ModelCut, host: type[H], stand_ins: Mapping[str, object]) -> type[H]:
    """Define a cut class, and before it the class that it is derived from, over `host`.

    `stand_ins` has the objects that replace imported names.  Raises `UsageError` with file and
    line when that needs the whole package, or an attribute that neither class nor host has.
    """
    base, known = host, dict(stand_ins)
    if model.base is not None:
        base = known[model.base.cut.class_name] = define_model(model.base, host, stand_ins)
    for name, why in model.cut.of_host.items():
        if name not in dir(base):
            raise UsageError(why)
    show_in_tracebacks(model.file)
    names = _objects(model.supplies, known, {})
    defined = define_name(model.cut.code, model.cut.class_name, **{HOST: base}, **names)
    assert isinstance(defined, type)
    assert issubclass(defined, host)
    return defined


def define_function(function: HelperCut, stand_ins: Mapping[str, object], **given: object) -> Any:  # noqa: ANN401
    """Define a function that was cut out of a file; `given` are further names that its code finds.

    Raises `UsageError` with file and line when that needs the whole package.
    """
    show_in_tracebacks(function.file)
    names = _objects(function.supplies, stand_ins, {})
    return define_name(function.extract.code, function.name, **{**names, **given})


def define_name(code: CodeType, name: str, /, **names: object) -> Any:  # noqa: ANN401  # its user knows its type
    """Execute `code`, where `names` are known, and return what it binds to `name`.

    Raises `UsageError` with file and line when that needs the whole package.
    """
    # The name of a module that exists: `dataclass` looks it up to read annotations.
    known: dict[str, object] = {"__name__": __name__, **names}
    try:
        exec(code, known)
    except Exception as error:
        where = place_of(error, code.co_filename)
        raise UsageError(
            f"{where}: {name} cannot be defined without the rest of its package: {error}"
        ) from error
    return known[name]


def show_in_tracebacks(file: SourceFile) -> None:
    """Let tracebacks quote the lines that were compiled, also when they lie inside a wheel.

    Without a modification time linecache never drops the entry.
    """
    lines = file.text.splitlines(keepends=True)
    linecache.cache[file.filename] = (len(file.text), None, lines, file.filename)


def place_of(error: Exception, filename: str) -> str:
    """Return `FILE:LINE` of the innermost frame in `filename`."""
    frames = traceback.walk_tb(error.__traceback__)
    lines = [line for frame, line in frames if frame.f_code.co_filename == filename]
    return f"{filename}:{lines[-1]}" if lines else filename


def _objects(
    supplies: Mapping[str, Supply], stand_ins: Mapping[str, object], made: dict[HelperCut, object]
) -> dict[str, object]:
    """Make the objects that stand behind imported names; `made` has the functions that there are already."""
    return {bound: _object(supply, stand_ins, made) for bound, supply in supplies.items()}


def _object(supply: Supply, stand_ins: Mapping[str, object], made: dict[HelperCut, object]) -> object:
    match supply:
        case StandIn(name):
            return stand_ins[name]
        case Unavailable(why):
            return Refused(why)
        case HelperCut():
            if supply not in made:
                made[supply] = _function(supply, stand_ins, made)
            return made[supply]


def _function(helper: HelperCut, stand_ins: Mapping[str, object], made: dict[HelperCut, object]) -> object:
    show_in_tracebacks(helper.file)
    names = _objects(helper.supplies, stand_ins, made)
    try:
        return define_name(helper.extract.code, helper.name, **names)
    except UsageError as error:
        return Refused(f"{helper.name} cannot be supplied: {error}")
