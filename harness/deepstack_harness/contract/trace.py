"""Steps and traces, and their one-line text form.

A trace is a capacity and a sequence of lifecycle operations, and it prints as it
parses: `cap 16: profile 16; set 9; forward 16`.  `set` takes what makes a payload
unusual as `key=value`: `set 4 levels=4`, `set 4 hidden=1`, `set 9 request=b`,
`set 9 spans=0-3+6-9` (only these tokens are visual, the rows of the others zero).
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum

from deepstack_harness.clean_text import shortened
from deepstack_harness.errors import UsageError


class Op(StrEnum):
    """One lifecycle operation; `reload` alone takes no token count."""

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

_STEP = re.compile(r"(?P<op>[a-z]+)(?:\s+(?P<tokens>-?\d+))?(?P<options>(?:\s+\w+=\S+)*)")
_TRACE = re.compile(r"cap\s+(?P<capacity>\d+)\s*:\s*(?P<steps>.*)", re.DOTALL)
_SPAN = re.compile(r"(\d+)-(\d+)")
MOST_TOKENS = 1_000_000
"""The largest count of a trace that is read; engines schedule up to 262,144 tokens at a time."""
MOST_STEPS = 100_000
"""The most steps of a trace that is read."""
_OPTIONS = ("levels", "hidden", "request", "spans")
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
    """

    op: Op
    tokens: int = 0
    levels: int | None = None
    hidden: int | None = None
    request: str | None = None
    spans: tuple[tuple[int, int], ...] | None = None

    def __post_init__(self) -> None:
        """Refuse counts and options that the operation cannot have."""
        if self.tokens < 0 and self.op not in MAY_BE_NEGATIVE:
            raise TraceError(f"step '{self}': {self.op} takes a count of 0 or more")
        if self.op is not Op.SET and (self.levels, self.hidden, self.request, self.spans) != (None,) * 4:
            raise TraceError(f"step '{self}': only set takes {', '.join(f'{key}=' for key in _OPTIONS)}")
        if (self.levels or 0) < 0 or (self.hidden or 0) < 0:
            raise TraceError(f"step '{self}': levels= and hidden= take 0 or more")
        edges = [edge for span in self.spans or () for edge in span]
        if edges != sorted(set(edges)) or (edges and edges[-1] > self.tokens):
            raise TraceError(f"step '{self}': spans= takes ranges in order within {self.tokens} tokens")

    def __str__(self) -> str:
        """Return the text that `Step.parse` reads."""
        options = [
            f"{key}={value}"
            for key in ("levels", "hidden", "request")
            if (value := getattr(self, key)) is not None
        ]
        if self.spans is not None:
            options.append("spans=" + "+".join(f"{start}-{end}" for start, end in self.spans))
        count = [] if self.op is Op.RELOAD else [str(self.tokens)]
        return " ".join([str(self.op), *count, *options])

    @classmethod
    def parse(cls, text: str) -> "Step":
        """Read one step, or raise `TraceError` that quotes it."""
        found = _STEP.fullmatch(text.strip())
        if found is None or found["op"] not in set(Op):
            raise TraceError(
                f"step '{text.strip()}' is not one of {', '.join(Op)} with a token count, as in 'set 9'"
            )
        op = Op(found["op"])
        if (found["tokens"] is None) != (op is Op.RELOAD):
            wants = "no token count" if op is Op.RELOAD else f"a token count, as in '{op} 9'"
            raise TraceError(f"step '{text.strip()}': {op} takes {wants}")
        options = _options(text, found["options"])
        return cls(
            op,
            _number(text, found["tokens"] or "0"),
            levels=_count(text, options, "levels"),
            hidden=_count(text, options, "hidden"),
            request=options.get("request"),
            spans=_spans(text, options.get("spans")),
        )


@dataclass(frozen=True)
class Trace:
    """A buffer capacity in token rows, and the steps in the order they are played."""

    capacity: int
    steps: tuple[Step, ...]

    def __post_init__(self) -> None:
        """Refuse a trace in which nothing could be observed."""
        if self.capacity < 1 or not self.steps:
            raise TraceError(f"trace '{self}' needs a capacity of 1 or more and a step: {_EXAMPLE}")

    def __str__(self) -> str:
        """Return the text that `Trace.parse` reads."""
        return f"cap {self.capacity}: " + "; ".join(map(str, self.steps))

    def __iter__(self) -> Iterator[Step]:
        """Iterate over the steps in order."""
        return iter(self.steps)

    @property
    def replays(self) -> bool:
        """Say whether a step replays a captured graph."""
        return any(step.op is Op.REPLAY for step in self.steps)

    @classmethod
    def parse(cls, text: str) -> "Trace":
        """Read the one-line form, or raise `TraceError` that quotes the bad step."""
        found = _TRACE.fullmatch(text.strip())
        if found is None:
            raise TraceError(f"trace '{text}' does not read 'cap N: step; step', as in {_EXAMPLE}")
        steps = [part for part in found["steps"].split(";") if part.strip()]
        if len(steps) > MOST_STEPS:
            raise TraceError(f"a trace has up to {MOST_STEPS:,} steps, not {len(steps):,}")
        return cls(_number(text, found["capacity"]), tuple(map(Step.parse, steps)))


def _number(whole: str, digits: str) -> int:
    """Read a count; `whole` is quoted where it is too large to be played."""
    # Python reads no number of more than 4,300 digits.
    if len(digits) > 4300 or abs(int(digits)) > MOST_TOKENS:
        raise TraceError(f"'{shortened(whole.strip(), 200)}': counts go up to {MOST_TOKENS:,}")
    return int(digits)


def _options(step: str, text: str) -> dict[str, str]:
    options = dict(part.split("=", 1) for part in text.split())
    for key in options.keys() - set(_OPTIONS):
        raise TraceError(f"step '{step.strip()}': unknown option '{key}', known are {', '.join(_OPTIONS)}")
    return options


def _spans(step: str, text: str | None) -> tuple[tuple[int, int], ...] | None:
    if text is None:
        return None
    found = [_SPAN.fullmatch(part) for part in text.split("+")]
    if not all(found):
        raise TraceError(f"step '{step.strip()}': spans= takes ranges of tokens as in 0-3+6-9, not '{text}'")
    return tuple((_number(step, span[1]), _number(step, span[2])) for span in found if span)


def _count(step: str, options: dict[str, str], key: str) -> int | None:
    value = options.get(key)
    if value is not None and not value.isdecimal():
        raise TraceError(f"step '{step.strip()}': {key}= takes a count of 0 or more, not '{value}'")
    return None if value is None else _number(step, value)
