"""Write an adapter class for a class with other names or another shape, from its signatures.

Names of methods and arguments are a guess, which the user corrects in the file that is written; what no name
suggests is an ellipsis.
"""

import inspect
import re
from collections.abc import Callable, Iterable, Mapping, Sequence

_METHODS: Mapping[str, str] = {
    "get": "get read fetch load view gather take peek lookup slice rows values",
    "set": "set write store update put fill save assign copy stage push scatter publish insert replace",
    "clear": "clear reset zero wipe erase flush forget drop empty unset free",
}
"""Words in the names of methods by call, the usual one first."""
_SIZES: Mapping[str, str] = {
    "dtype": "dtype",
    "device": "device",
    "hidden": "hidden width dim dims features channels columns embed embedding state model",
    "levels": "levels level layers layer depth",
    "capacity": "capacity max rows slots size length len room tokens requests reqs batch count num n",
}
"""Words in the names of arguments of a constructor; the first size with one of them is taken."""
_TEXT = '''\
from {module} import {name}


class Adapter:
    """A buffer around {name}: correct what does not fit, and replace every `...`."""

    fixed = {fixed}  # sizes that never differ, "dtype": "int64", "capacity": 64, "cleared": False

    def __init__(self, capacity, hidden, levels, *, dtype, device):
        self.made = {name}({make})
        self.capacity = capacity  # token rows

    def get(self, tokens):  # a tuple with a tensor (tokens, hidden) for each level
        return {get}

    def set(self, payload):  # a tensor (levels, N, hidden)
        {set}

    def clear(self, tokens):
        {clear}
'''


def adapter_text(make: Callable[..., object], target: str) -> str:
    """Return the text of a module with the class `Adapter` for `target`, MODULE:CLASS or FILE.py:CLASS."""
    module, _, name = target.rpartition(":")
    sizes = {parameter: _size_of(parameter.name) for parameter in _parameters(make)}
    named = {
        parameter: size for parameter, size in sizes.items() if size or parameter.default is parameter.empty
    }
    arguments = [_argument_text(parameter, size or "...") for parameter, size in named.items()]
    fixed = {size: 1 for size in ("levels", "hidden") if size not in sizes.values()}
    one_level, one_column = "levels" in fixed, "hidden" in fixed
    payload = ("payload[0, :, 0]" if one_level else "payload[:, :, 0]") if one_column else "payload[0]"
    methods: dict[str, str] = {}
    for call, words in _METHODS.items():
        free = {name for name in dir(make) if not name.startswith("_")} - {*methods.values()}
        ranked = sorted((rank, name) for name in free if (rank := _rank(name, words.split())) < _UNKNOWN)
        methods[call] = ranked[0][1] if ranked else ""  # the one whose name is closest in meaning
    get = _call(make, methods["get"], "tokens")
    if one_level:
        get = f"({get}{'[:, None]' if one_column else ''},)"
    elif one_column:
        get = f"tuple(level[:, None] for level in {get})"
    return _TEXT.format(
        module=module.removesuffix(".py").replace("/", ".") or "my_module", name=name, fixed=fixed,
        make=", ".join(arguments), get=get,
        set=_call(make, methods["set"], payload if fixed else "payload"),
        clear=_call(make, methods["clear"], "tokens"),
    )  # fmt: skip


_UNKNOWN = 99
"""The rank of a name with none of the words."""


def _rank(name: str, words: Sequence[str]) -> int:
    return min((words.index(word) for word in _words(name) & set(words)), default=_UNKNOWN)


def _call(make: object, method: str, value: str) -> str:
    """Return a call of a method with `value` for its first argument."""
    if not method:
        return "..."
    needed = [
        parameter
        for parameter in _parameters(getattr(make, method))[1:]
        if parameter.default is parameter.empty
    ]
    arguments = [
        _argument_text(parameter, "..." if place else value) for place, parameter in enumerate(needed)
    ]
    return f"self.made.{method}({', '.join(arguments)})"


def _argument_text(parameter: inspect.Parameter, value: str) -> str:
    named = parameter.kind is parameter.KEYWORD_ONLY or parameter.default is not parameter.empty
    return f"{parameter.name}={value}" if named or value == "..." else value


def _size_of(name: str) -> str:
    return next((size for size, words in _SIZES.items() if _words(name) & set(words.split())), "")


def _parameters(function: object) -> list[inspect.Parameter]:
    try:
        found: Iterable[inspect.Parameter] = inspect.signature(function).parameters.values()  # type: ignore[arg-type]
    except (TypeError, ValueError):
        return []
    return [
        parameter
        for parameter in found
        if parameter.kind not in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
    ]


def _words(name: str) -> set[str]:
    return {word.lower() for word in re.split(r"_+|(?<=[a-z])(?=[A-Z])", name) if word}
