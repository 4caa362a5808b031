"""From the names of a class to its adapter: what was not said is read from signatures, what lacks is told.

`resolved` makes an `Adapter` of the options of a user and the members of a class.  Where something lacks, the
error names all of it, with the command whose adapter would fit by the meaning of names.
"""

import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from difflib import get_close_matches

from deepstack_harness.contract.adapter import (
    CALLS,
    NONE,
    ROLES,
    Adapter,
    AdapterOptions,
    ArgRole,
    Argument,
    MethodCall,
    RowShape,
    RowUnit,
    WrittenCall,
)
from deepstack_harness.contract.trace import BUFFER_INTEGERS
from deepstack_harness.errors import UsageError, shorten_list


@dataclass(frozen=True)
class Parameter:
    """A parameter of a function; `kind` is the name of the type that it is annotated with, empty for none."""

    name: str
    required: bool = True
    keyword_only: bool = False
    kind: str = ""


@dataclass(frozen=True)
class Members:
    """What a class has: the parameters that it is made with, its methods, and attributes that are ints.

    `misfits` are those of the contract's own names that do not take its one argument, as written
    (`get()`).  `not_made` says why no buffer could be made to look at.
    """

    make: tuple[Parameter, ...]
    methods: Mapping[str, tuple[Parameter, ...]]
    numbers: tuple[str, ...] = ()
    misfits: Mapping[str, str] = field(default_factory=dict)
    not_made: str = ""


_WORDS: Mapping[str, str] = {
    "get": "get read fetch load view gather take peek lookup slice rows values",
    "set": "set write store update put fill save assign copy stage push scatter publish insert load replace",
    "clear": "clear reset zero wipe erase flush forget drop empty unset free",
    "resize": "resize grow reserve extend expand ensure",
    "capacity": "capacity max size rows slots length len room limit",
}
"""Words in names by what the thing is, the usual one first."""
_OF_SIZES: Mapping[ArgRole, str] = {
    ArgRole.DTYPE: "dtype",
    ArgRole.DEVICE: "device",
    ArgRole.HIDDEN: "hidden width dim dims features channels columns embed embedding state model",
    ArgRole.LEVELS: "levels level layers layer depth",
    ArgRole.CAPACITY: ("capacity max rows slots size length len room tokens requests reqs batch count num n"),
}
"""Words in the names of parameters of a constructor; the first role with one of them is taken."""
_POSITIONS = frozenset(
    ["slots", "slot", "positions", "position", "indices", "index", "idx", "where", "mapping"]
)
_COUNTS = frozenset(["n", "count", "num", "number", "tokens", "length", "size", "requests", "reqs", "rows"])
_INTERFACE: Mapping[str, str] = {
    "get": "get(tokens)",
    "set": "set(payload)",
    "clear": "clear(tokens)",
    "capacity": "the attribute capacity (int, token rows)",
}
"""The members that the contract's own interface asks for."""


def resolved(options: AdapterOptions, members: Members, target: str) -> Adapter:
    """Return the adapter for a class; raises `UsageError` that names all that lacks, and what would fit."""
    resolution = _Resolution(options, members)
    adapter = resolution.adapter()
    if adapter is None or resolution.lacks:
        raise UsageError(resolution.sentence(target))
    return adapter


def refusal(members: Members, target: str) -> str:
    """Return what a class lacks of the contract's own interface, and the command that would fit.

    Empty where it lacks nothing.
    """
    there = {*members.methods, *(["capacity"] if "capacity" in members.numbers else [])}
    lacks = [text for name, text in _INTERFACE.items() if name not in there]
    lacks += [
        f"{_INTERFACE[name]} (it has {text})" for name, text in members.misfits.items() if name in there
    ]
    return _Resolution(AdapterOptions(), members, lacks).sentence(target) if lacks else ""


def making(parameters: Iterable[Parameter], method: str = "") -> tuple[MethodCall, list[str]]:
    """Return the call that makes a buffer, by the names of parameters, and those without a known role."""
    arguments: dict[ArgRole, Argument] = {}
    unknown = []
    for parameter in parameters:
        words = _words(parameter.name)
        free = (
            role for role, known in _OF_SIZES.items() if words & set(known.split()) and role not in arguments
        )
        role = next(free, None)
        if role is not None:
            arguments[role] = Argument(role, parameter.name)
        elif parameter.required:
            unknown.append(parameter.name)
    return MethodCall(method, tuple(arguments.values())), unknown


@dataclass
class _Resolution:
    """One reading of a class by the options of a user, and all that lacks."""

    options: AdapterOptions
    members: Members
    lacks: list[str] = field(default_factory=list)

    def adapter(self) -> Adapter | None:
        """Return the adapter; None where get, set or a shape lacks."""
        written = self.options.calls()
        calls = {call: self._call(call, written) for call in CALLS}
        make, capacity = self._make(written.get("make")), self._capacity(written)
        shape = self._shape(make)
        if calls["get"] is None or calls["set"] is None:
            return None
        integers = self.options.dtype in BUFFER_INTEGERS
        return Adapter(
            make, calls["get"], calls["set"], calls["clear"], calls["resize"], capacity, shape,
            self.options.dtype if integers or not make.takes(ArgRole.DTYPE) else "",
            RowUnit(self.options.rows), self.options.capacity,
        )  # fmt: skip

    def _call(self, call: str, written: Mapping[str, WrittenCall | None]) -> MethodCall | None:
        """Return the method for a call; None where there is none, which `lacks` tells unless it may lack."""
        methods = self.members.methods
        if call not in written and call not in methods:
            self.lacks += [] if call == "resize" else [_INTERFACE[call]]
            return None
        chosen = written.get(call, WrittenCall(call))
        if chosen is None:
            return None
        if chosen.method not in methods:
            near = get_close_matches(chosen.method, methods, 1)
            hint = f" (did you mean {near[0]}?)" if near else ""
            self.lacks.append(f"the method {chosen.method} of --adapter {call}={chosen.method}{hint}")
            return None
        if chosen.arguments is not None:
            return MethodCall(chosen.method, chosen.arguments)
        arguments, unknown = _arguments(call, methods[chosen.method])
        if unknown:
            example = f"{call}={chosen.method}({unknown[0]}={ROLES[call][0]})"
            roles = ", ".join(ROLES[call])
            self.lacks.append(f"roles ({roles}) for {', '.join(unknown)} of {chosen.method}, as in {example}")
        return MethodCall(chosen.method, arguments)

    def _make(self, written: WrittenCall | None) -> MethodCall:
        method = written.method if written else ""
        if method and method not in self.members.methods:
            self.lacks.append(f"the method {method} of --adapter make={method}")
            return MethodCall(method)
        if written and written.arguments is not None:
            call, unknown = MethodCall(method, written.arguments), list[str]()
        else:
            call, unknown = making(self.members.methods[method] if method else self.members.make, method)
        if unknown:
            roles = ", ".join(ROLES["make"])
            example = f"make=({unknown[0]}=capacity)"
            self.lacks.append(f"roles ({roles}) for {', '.join(unknown)}, it is made with, as in {example}")
        elif self.members.not_made:
            self.lacks.append(f"a way to be made ({self.members.not_made})")
        return call

    def _capacity(self, written: Mapping[str, WrittenCall | None]) -> str:
        known = (*self.members.numbers, *self.members.methods)
        if "capacity" in written:
            chosen = written["capacity"]
            if chosen is not None and chosen.method not in known and not self.members.not_made:
                self.lacks.append(f"the attribute {chosen.method} of --adapter capacity={chosen.method}")
            return chosen.method if chosen else ""
        if "capacity" in known:
            return "capacity"
        self.lacks += [] if self.options.capacity else [_INTERFACE["capacity"]]
        return ""

    def _shape(self, make: MethodCall) -> RowShape:
        """Return the shape that was written, or the one that the sizes of a constructor leave."""
        if not self.options.shape:
            dims = (
                ("levels", make.takes(ArgRole.LEVELS)),
                ("N", True),
                ("hidden", make.takes(ArgRole.HIDDEN)),
            )
            return RowShape(tuple(dim for dim, there in dims if there))
        shape = RowShape.parse(self.options.shape)
        known_make = not any("made" in lack for lack in self.lacks)
        for role in (ArgRole.LEVELS, ArgRole.HIDDEN):
            open_size = role in shape.dims and getattr(shape, role) is None and not make.takes(role)
            if open_size and known_make:
                self.lacks.append(f"a number for {role} in --shape '{shape}', it is not made with one")
        return shape

    def sentence(self, target: str) -> str:
        """Return what lacks, and the command that would fit."""
        lacks = f"{target} does not fit the buffer interface, it lacks {', '.join(self.lacks)}"
        help_text = "the grammar: deepstack-harness check --help; the whole contract: pytest --fixtures -v"
        command = self._command(target)
        names = shorten_list([name for name in self.members.methods if not name.startswith("_")] or ["none"])
        unlike = f"no names come close: write get=NAME,set=NAME,clear=NAME; its methods are {names}"
        fits = f"by its names this would fit:\n  {command}" if command else unlike
        end = "\n" if command else "; "
        return f"{lacks}; {fits}{end}{help_text}"

    def _command(self, target: str) -> str:
        """Return `deepstack-harness check ..` with the adapter that the names suggest; empty for none."""
        written, methods = self.options.calls(), self.members.methods
        free = [name for name in methods if name not in CALLS]
        pairs = self._pair_of_make(written)
        for call in CALLS:
            chosen = written.get(call)
            if call in written and (chosen is None or chosen.method in methods):
                pairs.append(f"{call}={_text_of(chosen)}")
                continue
            name = call if call in methods else _closest(call, free, methods)
            if name is None and call in ("get", "set"):
                return ""
            free = [other for other in free if other != name]
            if name is not None and _arguments(call, methods[name])[1]:
                pairs.append(_without_blanks(call, MethodCall(name, _filled(call, methods[name]))))
            elif name not in (None, call) or call in self.members.misfits:
                pairs.append(f"{call}={name}")
            elif name is None and call == "clear":
                pairs.append(f"{call}={NONE}")
        if "capacity" in written:
            pairs.append(f"capacity={_text_of(written['capacity'])}")
        elif "capacity" not in (*self.members.numbers, *methods) and not self.options.capacity:
            pairs.append(f"capacity={_closest('capacity', self.members.numbers, {}) or NONE}")
        options = [["--adapter", ",".join(pairs)]] if pairs else []
        for each in fields(self.options):
            value = getattr(self.options, each.name)
            if each.name != "adapter" and value != each.default:
                options.append([f"--{each.name}", str(value)])
        return shlex.join(
            ["deepstack-harness", "check", target, *(word for pair in options for word in pair)]
        )

    def _pair_of_make(self, written: Mapping[str, WrittenCall | None]) -> list[str]:
        """Return how it is made, where names do not tell: the sizes that are left, in their usual order."""
        if "make" in written:
            return [f"make={_text_of(written['make'])}"]
        make, unknown = making(self.members.make)
        left = [role for role in ROLES["make"] if not make.takes(role)]
        guessed = tuple(Argument(role, name) for name, role in zip(unknown, left, strict=False))
        return (
            [_without_blanks("make", replace(make, arguments=(*guessed, *make.arguments)))] if unknown else []
        )


def _arguments(call: str, parameters: Sequence[Parameter]) -> tuple[tuple[Argument, ...], list[str]]:
    """Return what a method is given, by the names of its parameters, and those without a known role."""
    needed = [each for each in parameters if each.required]
    if not needed and call == "set":
        needed = [*parameters[:1]]
    roles = [_role(each) for each in needed]
    if call == "set":
        if len(needed) == 1:
            roles = [ArgRole.PAYLOAD]
        clear = len(set(roles)) == len(roles) and ArgRole.PAYLOAD in roles
    else:
        roles = [ArgRole.COUNT if role is ArgRole.PAYLOAD and len(needed) == 1 else role for role in roles]
        clear = len(roles) < 2 and ArgRole.PAYLOAD not in roles  # a count, positions or nothing
    if not clear:
        return (), [each.name for each in needed] or [f"no argument of {call}"]
    return tuple(map(_argument, roles, needed)), []


def _filled(call: str, parameters: Sequence[Parameter]) -> tuple[Argument, ...]:
    """Return a guess of what a method is given whose names do not tell: the roles of a call in order."""
    needed = [each for each in parameters if each.required]
    return tuple(Argument(role, each.name) for each, role in zip(needed, ROLES[call], strict=False))


def _argument(role: ArgRole, parameter: Parameter) -> Argument:
    return Argument(role, parameter.name if parameter.keyword_only else "")


def _role(parameter: Parameter) -> ArgRole:
    """Return the role that a parameter's type and name suggest: a count, positions, or else the payload."""
    words = _words(parameter.name)
    if parameter.kind == "int" or (words & _COUNTS and parameter.kind != "Tensor"):
        return ArgRole.COUNT
    return ArgRole.POSITIONS if words & (_POSITIONS | _COUNTS) else ArgRole.PAYLOAD


def _words(name: str) -> set[str]:
    return {word.lower() for word in re.split(r"_+|(?<=[a-z])(?=[A-Z])", name) if word}


def _closest(call: str, names: Iterable[str], methods: Mapping[str, Sequence[Parameter]]) -> str | None:
    """Return the name that is closest in meaning to a call; None where none comes close."""
    words = _WORDS[call].split()

    def rank(name: str) -> tuple[int, int]:
        return min((words.index(word) for word in _words(name) & set(words)), default=len(words)), len(name)

    takes_payload = (name for name in names if call != "set" or len(methods[name]) > 0)
    best = min(takes_payload, key=rank, default=None)
    return best if best is not None and rank(best)[0] < len(words) else None


def _text_of(call: WrittenCall | None) -> str:
    if call is None:
        return NONE
    return (
        call.method
        if call.arguments is None
        else str(MethodCall(call.method, call.arguments)).replace(" ", "")
    )


def _without_blanks(key: str, call: MethodCall) -> str:
    return f"{key}={call}".replace(" ", "")
