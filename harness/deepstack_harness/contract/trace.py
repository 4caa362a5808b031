"""Steps and traces, and their one-line text form.

A trace is a capacity and a sequence of lifecycle operations, and it prints as it
parses: `cap 16: profile 16; set 9; forward 16`. `set` takes what makes a payload
unusual as `key=value`: `set 4 levels=4`, `set 4 hidden=1`, `set 9 request=b`,
`set 9 spans=0-3+6-9` (only these tokens are visual, the rows of the others zero),
`set 9 layout=permuted dtype=float32 values=nan grad`, `set 9 shape=swapped` (see `Step`).
Every call on the buffer takes `on=b` (the second buffer), `fail=K` (its K-th allocation fails) and
`after=S` (the clock moves on by S seconds before it); get, clear and resize take `calls=K` (the call is
made K times in one step) and
`count=numpy` (or torch, bool: the count is no Python int).
What differs from the usual buffer is written before the colon:
`cap 16 levels 4 hidden 1 dtype bfloat16 mode inference buffers 2: set 9; get 16`.
A run of ten or more equal steps is written once: `get 16 times=300`.
"""

import functools
import re
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from itertools import groupby
from typing import Any

from deepstack_harness.errors import UsageError
from deepstack_harness.text import shortened


class Op(StrEnum):
    """One lifecycle operation; only `reload` takes no token count."""

    SET = "set"
    GET = "get"
    CLEAR = "clear"
    RESIZE = "resize"
    FORWARD = "forward"
    PROFILE = "profile"
    CAPTURE = "capture"
    REPLAY = "replay"
    RELOAD = "reload"


RUNS_DECODER = frozenset({Op.FORWARD, Op.PROFILE, Op.CAPTURE, Op.REPLAY})
READS_BUFFER = RUNS_DECODER | {Op.GET}
MAY_BE_NEGATIVE = frozenset({Op.GET, Op.CLEAR, Op.RESIZE})
CALLS_BUFFER = frozenset({Op.SET, Op.GET, Op.CLEAR, Op.RESIZE})
"""Operations that are one call on the buffer."""

DTYPES = ("float32", "bfloat16", "float16", "float64")
INTEGERS = ("int32", "int64")
"""Dtypes of payloads that a buffer may refuse, or take and hold equal after the cast."""
BUFFER_INTEGERS = (*INTEGERS, "int16", "int8", "uint8")
"""Dtypes of buffers whose rows are integers."""
LAYOUTS = (
    "permuted", "strided", "expanded", "slice", "channels", "transposed", "sparse", "one_level",
)  # fmt: skip
SHAPES = ("flat", "joined", "swapped", "transposed", "batched")
"""Shapes of a payload other than (levels, N, hidden), with the very same elements."""
VALUES = (
    "inf", "nan", "nans", "huge", "fine", "subnormal", "negzero", "constant", "zeros", "mixed", "reordered",
)  # fmt: skip
MODES = ("inference",)
COUNTS = ("numpy", "torch", "bool")
"""Integers that are no Python int: numpy.int64, a torch tensor without dimensions, and True or False."""
SECOND = "b"
"""The second buffer of a trace with `buffers 2`."""

_STEP = re.compile(r"(?P<op>[a-z]+)(?:\s+(?P<tokens>-?\d+))?(?P<options>(?:\s+(?:\w+=\S+|grad))*)")
_TRACE = re.compile(r"cap\s+(?P<capacity>\d+)(?P<header>(?:\s+[a-z]+\s+\w+)*)\s*:\s*(?P<steps>.*)", re.DOTALL)
_SPAN = re.compile(r"(\d+)-(\d+)")
_OF_SET = ("levels", "hidden", "request", "spans", "layout", "dtype", "values", "shape")
_OF_CALLS = ("on", "fail", "count", "calls", "after")
_COUNTED = ("levels", "hidden", "fail", "calls", "after")
_CHOICES = {
    "layout": LAYOUTS, "dtype": (*DTYPES, *INTEGERS), "values": VALUES, "shape": SHAPES, "on": (SECOND,),
    "count": COUNTS,
}  # fmt: skip
_HEADER = ("levels", "hidden", "dtype", "mode", "buffers")
_OFTEN = 10
"""Equal steps in a row from which on `times=` is written: shorter runs read better in full."""
MOST_TOKENS = 1_000_000
"""The largest count of a trace that is read; engines schedule up to 262,144 tokens at a time."""
MOST_STEPS = 100_000
"""The most steps of a trace that is read."""
_EXAMPLE = "'cap 16: profile 16; set 9; forward 16'"


class TraceError(UsageError):
    """A trace that cannot be read; the message quotes the step at fault."""


@dataclass(frozen=True)
class Step:
    """One operation.

    `tokens` is N for `set` (unpadded), P for the others (usually padded).
    `levels` and `hidden` are given only where a `set` deviates from its buffer;
    `request` names the owner of the payload, by default the payload's own number.
    `spans` are half-open ranges of tokens with features; the other rows are zero,
    as those of text are.

    Of the tensor that `set` is given: `layout` is its layout in memory (`permuted` as vLLM permutes,
    `strided` with gaps between rows, `expanded` from one row, `slice` of a longer tensor, `channels` of a
    wider one, `transposed` with the columns first, `sparse` with gaps between columns, `one_level` with all
    levels expanded from one), `dtype` its own, `values` what its rows hold instead of normal random numbers,
    `grad` True if it requires a gradient.  `shape` lays the same elements out wrongly: `flat` as
    (levels * N, hidden), `joined` as (N, levels * hidden), `swapped` as (N, levels, hidden), `transposed` as
    (levels, hidden, N), `batched` as (1, levels, N, hidden).

    `on` is the buffer that is called, None for the first. `fail` is the number of the allocation inside this
    call that fails with `torch.OutOfMemoryError`, `count` the type of the count that get, clear and resize
    are given. `calls` is how often the call is made, `after` the seconds by which the clock of Python moves
    on before.

    >>> step = Step.parse("set 9 values=inf layout=strided")
    >>> step.tokens, step.layout
    (9, 'strided')
    """

    op: Op
    tokens: int = 0
    levels: int | None = None
    hidden: int | None = None
    request: str | None = None
    spans: tuple[tuple[int, int], ...] | None = None
    layout: str | None = None
    dtype: str | None = None
    values: str | None = None
    grad: bool = False
    on: str | None = None
    fail: int | None = None
    count: str | None = None
    shape: str | None = None
    calls: int | None = None
    after: int | None = None

    def __post_init__(self) -> None:
        """Refuse counts and options that the operation cannot have."""
        if self.tokens < 0 and self.op not in MAY_BE_NEGATIVE:
            raise TraceError(f"step '{self}': {self.op} takes a count of 0 or more")
        if self.op is not Op.SET and (self.grad or any(getattr(self, key) is not None for key in _OF_SET)):
            raise TraceError(
                f"step '{self}': only set takes {', '.join(f'{key}=' for key in _OF_SET)} and grad"
            )
        of_calls = (self.on, self.fail, self.calls, self.after)
        if self.op not in CALLS_BUFFER and of_calls != (None,) * len(of_calls):
            names = ", ".join(sorted(CALLS_BUFFER))
            raise TraceError(f"step '{self}': only {names} take on=, fail=, calls= and after=")
        if (self.levels or 0) < 0 or (self.hidden or 0) < 0:
            raise TraceError(f"step '{self}': levels= and hidden= take 0 or more")
        edges = [edge for span in self.spans or () for edge in span]
        if edges != sorted(set(edges)) or (edges and edges[-1] > self.tokens):
            raise TraceError(f"step '{self}': spans= takes ranges in order within {self.tokens} tokens")
        for key, known in _CHOICES.items():
            value = getattr(self, key)
            if value is not None and value not in known:
                raise TraceError(f"step '{self}': {key}= takes one of {', '.join(known)}, not '{value}'")
        if self.count is not None and self.op not in CALLS_BUFFER - {Op.SET}:
            raise TraceError(f"step '{self}': only get, clear and resize take count=")
        if self.count == "bool" and self.tokens not in (0, 1):
            raise TraceError(f"step '{self}': count=bool takes 0 or 1")
        if self.fail is not None and self.fail < 1:
            raise TraceError(f"step '{self}': fail= takes the number of an allocation, from 1")
        self._check_inputs()

    def _check_inputs(self) -> None:
        """Refuse options of unusual inputs that do not go together, or that nothing can be made of."""
        if self.dtype in INTEGERS and (self.grad or self.values is not None):
            raise TraceError(f"step '{self}': integers have no values= and no grad")
        if self.shape is not None and not (self.tokens and (self.levels, self.hidden) == (None, None)):
            raise TraceError(f"step '{self}': shape= takes 1 token or more, and no levels= or hidden=")
        if self.calls is not None and self.op is Op.SET:
            raise TraceError(f"step '{self}': only get, clear and resize take calls=")
        if self.calls is not None and not 2 <= self.calls <= MOST_STEPS:
            raise TraceError(f"step '{self}': calls= takes 2 to {MOST_STEPS}, not {self.calls}")
        if self.after is not None and not 1 <= self.after <= MOST_TOKENS:
            raise TraceError(f"step '{self}': after= takes 1 to {MOST_TOKENS} seconds, not {self.after}")

    def __str__(self) -> str:
        """Return the text that `Step.parse` reads."""
        options = [
            f"{key}={value}"
            for key in ("levels", "hidden", "request")
            if (value := getattr(self, key)) is not None
        ]
        if self.spans is not None:
            options.append("spans=" + "+".join(f"{start}-{end}" for start, end in self.spans))
        rest = ((key, getattr(self, key)) for key in ("layout", "dtype", "values", "shape", *_OF_CALLS))
        options += [f"{key}={value}" for key, value in rest if value is not None]
        options += ["grad"] if self.grad else []
        count = [] if self.op is Op.RELOAD else [str(self.tokens)]
        return " ".join([str(self.op), *count, *options])

    @classmethod
    def parse(cls, text: str) -> "Step":
        """Read one step, or raise `TraceError` that quotes it."""
        steps = _parse_steps(text)
        if len(steps) != 1:
            raise TraceError(f"step '{text.strip()}': times= repeats a step of a trace, this is one step")
        return steps[0]


@dataclass(frozen=True)
class Trace:
    """A buffer capacity in token rows, and the steps in the order they are played.

    `levels`, `hidden` and `dtype` are those of the buffer where they are not the family's; no decoder runs
    then. `mode` is `inference` where the whole life of the buffer is under `torch.inference_mode()`, None
    for `torch.no_grad()`. With two `buffers` of one class, steps with `on=b` call the second.

    >>> trace = Trace.parse("cap 16: profile 16; set 9; forward 16")
    >>> trace.capacity, [step.tokens for step in trace]
    (16, [16, 9, 16])
    """

    capacity: int
    steps: tuple[Step, ...]
    levels: int | None = None
    hidden: int | None = None
    dtype: str | None = None
    mode: str | None = None
    buffers: int = 1

    def __post_init__(self) -> None:
        """Refuse a trace in which nothing could be observed."""
        if self.capacity < 1 or not self.steps:
            raise TraceError(f"trace '{self}' needs a capacity of 1 or more and a step: {_EXAMPLE}")
        if 0 in (self.levels, self.hidden) or self.buffers not in (1, 2):
            raise TraceError(f"trace '{self}': levels and hidden take 1 or more, buffers 1 or 2")
        for key, known in (("dtype", (*DTYPES, *BUFFER_INTEGERS)), ("mode", MODES)):
            if getattr(self, key) not in (None, *known):
                raise TraceError(
                    f"trace '{self}': {key} takes one of {', '.join(known)}, not '{getattr(self, key)}'"
                )
        if self.buffers == 1 and any(step.on for step in self.steps):
            raise TraceError(f"trace '{self}': a step with on={SECOND} needs 'buffers 2' before the colon")

    def __str__(self) -> str:
        """Return the text that `Trace.parse` reads."""
        return self._text

    @functools.cached_property
    def _text(self) -> str:  # each row of a judged case has it
        header = [f"{key} {value}" for key in _HEADER[:-1] if (value := getattr(self, key)) is not None]
        header += [f"buffers {self.buffers}"] if self.buffers > 1 else []
        texts: list[str] = []
        for text, run in groupby(map(str, self.steps)):
            times = len(list(run))
            texts += [f"{text} times={times}"] if times >= _OFTEN else [text] * times
        return f"{' '.join([f'cap {self.capacity}', *header])}: {'; '.join(texts)}"

    def __iter__(self) -> Iterator[Step]:
        """Iterate over the steps in order."""
        return iter(self.steps)

    @property
    def replays(self) -> bool:
        """Return whether a step replays a captured graph."""
        return any(step.op is Op.REPLAY for step in self.steps)

    @property
    def changes_sizes(self) -> bool:
        """Return whether the buffer has other levels, another hidden size or dtype than the family."""
        return (self.levels, self.hidden, self.dtype) != (None, None, None)

    @classmethod
    def parse(cls, text: str) -> "Trace":
        """Read the one-line form, or raise `TraceError` that quotes the bad step."""
        match = _TRACE.fullmatch(text.strip())
        if match is None:
            raise TraceError(f"trace '{text}' does not read 'cap N: step; step', as in {_EXAMPLE}")
        steps = [step for part in match["steps"].split(";") if part.strip() for step in _parse_steps(part)]
        if len(steps) > MOST_STEPS:
            raise TraceError(f"a trace has up to {MOST_STEPS:,} steps, not {len(steps):,}")
        header = _header(text, match["header"])
        return cls(
            _number(text, match["capacity"]),
            tuple(steps),
            levels=_count(text, header, "levels"),
            hidden=_count(text, header, "hidden"),
            dtype=header.get("dtype"),
            mode=header.get("mode"),
            buffers=_count(text, header, "buffers") or 1,
        )


def _parse_steps(text: str) -> tuple[Step, ...]:
    """Read the text of one step, which may be several equal ones with `times=`."""
    match = _STEP.fullmatch(text.strip())
    if match is None or match["op"] not in set(Op):
        raise TraceError(
            f"step '{text.strip()}' is not one of {', '.join(Op)} with a token count, as in 'set 9'"
        )
    op = Op(match["op"])
    if (match["tokens"] is None) != (op is Op.RELOAD):
        wants = "no token count" if op is Op.RELOAD else f"a token count, as in '{op} 9'"
        raise TraceError(f"step '{text.strip()}': {op} takes {wants}")
    options = _options(text, match["options"])
    values: dict[str, Any] = {key: _count(text, options, key) for key in _COUNTED}
    values |= {key: options.get(key) for key in ("request", *_CHOICES)}
    spans = _spans(text, options.get("spans"))
    step = Step(op, _number(text, match["tokens"] or "0"), spans=spans, grad="grad" in options, **values)
    times = _count(text, options, "times")
    if times is not None and not 1 <= times <= MOST_STEPS:
        raise TraceError(f"step '{text.strip()}': times= takes 1 to {MOST_STEPS}, not {times}")
    return (step,) * (1 if times is None else times)


def _header(trace: str, text: str) -> dict[str, str]:
    words = text.split()
    header = dict(zip(words[::2], words[1::2], strict=True))
    for key in header.keys() - set(_HEADER):
        raise TraceError(f"trace '{trace.strip()}': unknown setting '{key}', known are {', '.join(_HEADER)}")
    return header


def _number(whole: str, digits: str) -> int:
    """Read a count; `whole` is quoted where it is too large to be played."""
    # Python reads no number of more than 4,300 digits.
    if len(digits) > 4300 or abs(int(digits)) > MOST_TOKENS:
        raise TraceError(f"'{shortened(whole.strip(), 200)}': counts go up to {MOST_TOKENS:,}")
    return int(digits)


def _options(step: str, text: str) -> dict[str, str]:
    known = (*_OF_SET, *_OF_CALLS, "times")
    pairs = (part.partition("=") for part in text.split())
    options = {key: value for key, _, value in pairs}
    for key in options.keys() - {*known, "grad"}:
        raise TraceError(f"step '{step.strip()}': unknown option '{key}', known are {', '.join(known)}")
    return options


def _spans(step: str, text: str | None) -> tuple[tuple[int, int], ...] | None:
    if text is None:
        return None
    ranges = [_SPAN.fullmatch(part) for part in text.split("+")]
    if not all(ranges):
        raise TraceError(f"step '{step.strip()}': spans= takes ranges of tokens as in 0-3+6-9, not '{text}'")
    return tuple((_number(step, span[1]), _number(step, span[2])) for span in ranges if span)


def _count(step: str, options: dict[str, str], key: str) -> int | None:
    value = options.get(key)
    if value is not None and not value.isdecimal():
        raise TraceError(f"step '{step.strip()}': {key}= takes a count of 0 or more, not '{value}'")
    return None if value is None else _number(step, value)
