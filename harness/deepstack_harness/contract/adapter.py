"""Adapters: how a buffer of another shape, or with other names, is held to the contract.  No torch.

`AdapterOptions` is what a user wrote (`check --adapter`, `--shape`, ..), an `Adapter` what is done: the
method for each call of `protocols.Buffer`, what it is given, what a row is, and what cannot be asked.
`contract.adapter_names` makes one of the other.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum

from deepstack_harness.contract.rules import PayloadKind, Rule
from deepstack_harness.contract.trace import BUFFER_INTEGERS, DTYPES
from deepstack_harness.errors import UsageError, unknown_name


class ArgRole(StrEnum):
    """What an argument is given.

    PAYLOAD: the rows.  COUNT: how many rows, an int.  POSITIONS: their row numbers, an int64 tensor (N,).
    The others are sizes, dtype and device of a buffer that is made.
    """

    PAYLOAD = "payload"
    COUNT = "count"
    POSITIONS = "positions"
    CAPACITY = "capacity"
    HIDDEN = "hidden"
    LEVELS = "levels"
    DTYPE = "dtype"
    DEVICE = "device"


class RowUnit(StrEnum):
    """What a row belongs to."""

    TOKEN = "token"
    REQUEST = "request"


ROLES: Mapping[str, tuple[ArgRole, ...]] = {
    "make": (
        ArgRole.CAPACITY,
        ArgRole.HIDDEN,
        ArgRole.LEVELS,
        ArgRole.DTYPE,
        ArgRole.DEVICE,
    ),
    "get": (ArgRole.COUNT, ArgRole.POSITIONS),
    "set": (ArgRole.PAYLOAD, ArgRole.COUNT, ArgRole.POSITIONS),
    "clear": (ArgRole.COUNT, ArgRole.POSITIONS),
    "resize": (ArgRole.COUNT,),
}
"""The roles that an argument of each call can have."""
CALLS = ("get", "set", "clear", "resize")
_KEYS = ("make", "capacity", *CALLS)
NONE = "none"
_NOT_NEEDED = frozenset({"clear", "resize", "capacity"})
_GRAMMAR = "CALL=METHOD or CALL=METHOD(ROLE, NAME=ROLE), separated by commas"
_EXAMPLE = "get=read,set=write(values=payload,slots=positions),clear=none"


@dataclass(frozen=True)
class Argument:
    """An argument of a method: its role, and its name where it is given by name."""

    role: ArgRole
    keyword: str = ""

    def __str__(self) -> str:
        """Return the text of `--adapter`."""
        return f"{self.keyword}={self.role}" if self.keyword else str(self.role)


@dataclass(frozen=True)
class MethodCall:
    """A method and what it is given; the empty name is the class itself."""

    method: str
    arguments: tuple[Argument, ...] = ()

    def __str__(self) -> str:
        """Return the text of `--adapter`."""
        return f"{self.method}({', '.join(map(str, self.arguments))})"

    def takes(self, role: ArgRole) -> bool:
        """Say whether an argument has this role."""
        return any(argument.role is role for argument in self.arguments)


@dataclass(frozen=True)
class RowShape:
    """The shape of a payload: its dimensions in order, of `levels`, `N` and `hidden`.

    `listed`: a list with a tensor for each level.  `levels` and `hidden` are sizes that never differ; None
    where the buffer is made with them, or has no such dimension.
    """

    dims: tuple[str, ...] = ("levels", "N", "hidden")
    listed: bool = False
    levels: int | None = None
    hidden: int | None = None

    def __str__(self) -> str:
        """Return the text of `--shape`."""
        dims = self.dims[1:] if self.listed else self.dims
        inner = [str(getattr(self, dim, None) or dim) for dim in dims]
        text = f"({', '.join(inner)}{',' if len(inner) == 1 else ''})"
        return f"[{text}{f' x {self.levels}' if self.levels else ''}]" if self.listed else text

    @property
    def has_levels(self) -> bool:
        """True where a payload has several levels."""
        return "levels" in self.dims

    @property
    def has_hidden(self) -> bool:
        """True where a row has columns, and is no single number."""
        return "hidden" in self.dims

    @classmethod
    def parse(cls, text: str) -> "RowShape":
        """Read `(N,)`, `(levels, N, 64)` or `[(N, hidden)]`; raises `UsageError` for anything else."""
        match = re.fullmatch(r"(\[?)\(([\w\s,]+)\)\s*(?:x\s*(\d{1,6})\s*)?(\]?)", text.strip())
        names = [name.strip() for name in match[2].split(",") if name.strip()] if match else []
        places = _PLACES.get((len(names), names.index("N"))) if names.count("N") == 1 else None
        listed = bool(match and match[1])
        if match is None or places is None or listed != bool(match[4]) or (match[3] and not listed):
            raise _no_shape(text)
        if names == ["N", "levels"]:
            places = ("N", "levels")
        sizes: dict[str, int] = {"levels": int(match[3])} if match[3] else {}
        for place, name in zip(places, names, strict=True):
            if name.isdecimal() and 0 < int(name) <= _MOST:
                sizes[place] = int(name)
            elif name != place:
                raise _no_shape(text)
        if listed and "levels" in places:
            raise _no_shape(text)
        dims = ("levels", *places) if listed else places
        return cls(dims, listed, sizes.get("levels"), sizes.get("hidden"))


_MOST = 2**20
"""The largest size or capacity that is read."""
_PLACES: Mapping[tuple[int, int], tuple[str, ...]] = {
    (1, 0): ("N",),
    (2, 0): ("N", "hidden"),
    (2, 1): ("levels", "N"),
    (3, 0): ("N", "levels", "hidden"),
    (3, 1): ("levels", "N", "hidden"),
}
"""Dimensions by their number and the place of N."""


def _no_shape(text: str) -> UsageError:
    return UsageError(
        f"--shape '{text}' is no shape of rows: write N for the rows, and levels and hidden or their sizes, "
        "as in (N,), (N, hidden), (3, N), (levels, N, hidden), (N, levels, hidden), or [(N, hidden)] for a "
        "list of levels"
    )


@dataclass(frozen=True)
class Adapter:
    """How a buffer is made, called and read.

    `capacity` is the attribute or method that states the rows, empty where none does.  `dtype` is that of
    the rows where it never differs.  `rows` says what a row belongs to, `fixed` is a capacity that no buffer
    of the class exceeds.  `answers_levels`: get answers a tuple or list of levels, though the payload is one
    tensor.
    """

    make: MethodCall
    get: MethodCall
    set: MethodCall
    clear: MethodCall | None
    resize: MethodCall | None
    capacity: str
    shape: RowShape
    dtype: str = ""
    rows: RowUnit = RowUnit.TOKEN
    fixed: int | None = None
    answers_levels: bool = False

    def __str__(self) -> str:
        """Return the options of `check` that lead here."""
        calls = [f"{key}={getattr(self, key) or NONE}".replace(" ", "") for key in ("make", *CALLS)]
        calls.insert(1, f"capacity={self.capacity or NONE}")
        options = [f"--adapter '{','.join(calls)}'", f"--shape '{self.shape}'"]
        options += [f"--dtype {self.dtype}"] if self.dtype else []
        options += [f"--rows {self.rows}"] if self.rows is not RowUnit.TOKEN else []
        options += [f"--capacity {self.fixed}"] if self.fixed else []
        return " ".join(options)

    @property
    def payload_kind(self) -> PayloadKind:
        """KEPT where nothing ends rows but the next write to them."""
        kept = self.clear is None or self.set.takes(ArgRole.POSITIONS)
        return PayloadKind.KEPT if kept else PayloadKind.VISUAL

    @property
    def integers(self) -> bool:
        """True for rows of integers."""
        return self.dtype in BUFFER_INTEGERS

    @property
    def not_asked(self) -> Mapping[Rule, str]:
        """What cannot be asked of such a buffer, by rule, with the reason."""
        reasons: dict[Rule, list[str]] = {}
        for rule, why in self._reasons():
            reasons.setdefault(rule, []).append(why)
        return {rule: f"not asked: {'; '.join(why)}" for rule, why in reasons.items()}

    def _reasons(self) -> Iterator[tuple[Rule, str]]:
        shape, kept = self.shape, self.payload_kind is PayloadKind.KEPT
        nothing = "no method clears it" if self.clear is None else "set names the rows that it writes"
        counts = {call: _is_counted(getattr(self, call)) for call in ("get", "clear")}
        fixed = [f"{size} of {value}" for size in ("levels", "hidden") if (value := getattr(shape, size))]
        placed = self.get.takes(ArgRole.POSITIONS)
        every = (
            (Rule.R2, kept, f"rows behind N, because {nothing}"),
            (Rule.R3, kept, f"rows behind N, because {nothing}"),
            (Rule.R5, kept, nothing),
            (Rule.R5, not (kept or counts["clear"]), "a clear of fewer rows, because clear takes no count"),
            (Rule.R2, self.integers, "NaN, infinity and other dtypes, because rows are integers"),
            (Rule.R2, bool(fixed), f"other sizes than {' and '.join(fixed)}"),
            (Rule.R8, not counts["get"], "a negative count of get, which takes none"),
            (Rule.R8, not counts["clear"], "a negative count of clear, which takes none"),
            (Rule.R8, not shape.has_levels, "a wrong number of levels, because there is one"),
            (Rule.R8, not shape.has_hidden, "a wrong width, because a row is one number"),
            (Rule.R4, self.resize is None, "resize, because there is none"),
            (Rule.R4, not (counts["get"] or placed), "a get above the capacity, because get takes no count"),
            (Rule.R4, not self.capacity, "how the capacity changes, because none is stated"),
        )
        return ((rule, why) for rule, holds, why in every if holds)


def _is_counted(call: MethodCall | None) -> bool:
    return call is not None and call.takes(ArgRole.COUNT)


@dataclass(frozen=True)
class AdapterOptions:
    """The options of a user: `--adapter`, `--shape`, `--dtype`, `--rows` and `--capacity`; empty for none."""

    adapter: str = ""
    shape: str = ""
    dtype: str = ""
    rows: str = RowUnit.TOKEN
    capacity: int | None = None

    @property
    def given(self) -> bool:
        """True where an option asks for another buffer than the contract's own, of a floating dtype."""
        usual = replace(self, dtype="") == AdapterOptions()
        return not usual or self.dtype in BUFFER_INTEGERS

    def check(self) -> None:
        """Raise `UsageError` for what cannot be read."""
        self.calls()
        if self.shape:
            RowShape.parse(self.shape)
        if self.dtype and self.dtype not in (*DTYPES, *BUFFER_INTEGERS):
            raise unknown_name("dtype", self.dtype, (*DTYPES, *BUFFER_INTEGERS))
        if self.rows not in set(RowUnit):
            raise UsageError(f"--rows '{self.rows}' is not token or request")
        if self.capacity is not None and not 1 <= self.capacity <= _MOST:
            raise UsageError(f"--capacity {self.capacity} is no number of rows from 1 to {_MOST:,}")

    def calls(self) -> dict[str, "WrittenCall | None"]:
        """Return the calls that `--adapter` names; None for `none`.  Raises `UsageError`."""
        calls: dict[str, WrittenCall | None] = {}
        for part in re.split(r",(?![^(]*\))", self.adapter) if self.adapter else ():
            key, equals, text = part.strip().partition("=")
            if key not in _KEYS or not equals or key in calls:
                why = "is there twice" if key in calls else f"is not {_GRAMMAR}"
                raise UsageError(
                    f"--adapter: '{part.strip()}' {why}; calls are {', '.join(_KEYS)}, as in {_EXAMPLE}"
                )
            calls[key] = _written_call(key, text.strip())
        return calls


@dataclass(frozen=True)
class WrittenCall:
    """A method as it was written; `arguments` is None where signatures are to tell."""

    method: str
    arguments: tuple[Argument, ...] | None = None


def _written_call(key: str, text: str) -> WrittenCall | None:
    if text == NONE:
        if key not in _NOT_NEEDED:
            raise UsageError(f"--adapter: {key}=none: a buffer without {key} cannot be asked anything")
        return None
    match = re.fullmatch(r"(\w*)(?:\(([^()]*)\))?", text)
    if match is None or not (match[1] or key == "make") or (key == "capacity" and match[2] is not None):
        raise UsageError(f"--adapter: '{key}={text}' is not {_GRAMMAR}, as in {_EXAMPLE}")
    if match[2] is None:
        return WrittenCall(match[1])
    arguments = []
    for part in filter(None, (part.strip() for part in match[2].split(","))):
        name, _, role = part.rpartition("=")
        if role.strip() not in ROLES[key]:
            known = ", ".join(ROLES[key])
            raise UsageError(f"--adapter: '{part}' in '{key}={text}' has no known role; {key} takes {known}")
        arguments.append(Argument(ArgRole(role.strip()), name.strip()))
    if key == "set" and sum(argument.role is ArgRole.PAYLOAD for argument in arguments) != 1:
        raise UsageError(f"--adapter: '{key}={text}' gives set no payload, or two")
    return WrittenCall(match[1], tuple(arguments))
