"""Traces beside those of incidents: payloads and histories as engines make them, and thorough ones.

Both are played without a decoder, in both regimes.  The first vary what engines vary: vLLM permutes its
payload, engines reuse the memory at once, a Qwen3-VL has 3 levels and others 1 or 4, the dtype of vision
towers differs from that of buffers, a step has several spans.  The second, of `check --thorough`, have every
size of a buffer, real sizes and long histories; they are made by rule or drawn from seeded random numbers,
so that every run plays the same ones.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from random import Random

from deepstack_harness.catalogue.pairs import other_pairs
from deepstack_harness.contract.trace import COUNTS, DTYPES, LAYOUTS, VALUES

LAYOUT_TRACES = (
    "cap 16: set 9 layout=permuted; get 16; set 9 layout=strided; get 16; set 9 layout=slice; get 16",
    "cap 16: set 9 layout=channels; get 16; set 9 layout=expanded; get 16; set 4 layout=expanded; get 16",
    "cap 16: set 9 dtype=float64; get 16; set 5 dtype=bfloat16; get 16; set 12 dtype=float16; get 16",
    "cap 16 dtype bfloat16: get 4; set 9 dtype=float32 layout=permuted; get 16; set 9 dtype=float16; get 16",
    "cap 16: set 9 grad; get 16; set 3 grad layout=permuted; get 16; clear 16; get 16",
    "cap 16 mode inference: get 16; set 9 layout=permuted; get 16; clear 16; get 16; set 16; get 16",
)

VALUE_TRACES = (
    "cap 16: set 9 values=inf; get 16; set 9 values=nan; get 16; set 9 values=subnormal; get 16",
    "cap 16: set 9 values=huge; get 16; set 9 values=huge dtype=float64; get 9; set 9 values=negzero; get 16",
    "cap 16 dtype bfloat16: set 9 values=huge dtype=float32; get 16; set 9 values=nan dtype=float32; get 9",
    "cap 16: set 9 values=constant; get 16; set 4 values=constant; get 16; clear 4; get 16",
    "cap 16: set 12 values=mixed; get 16; set 3 values=mixed; get 16; set 7 values=zeros; get 16",
    "cap 16: set 9 spans=2-4+6-9; get 16; set 6 spans=0-1; get 16; clear 6; get 16",
    "cap 16: set 9 values=mixed; get 16; clear 9; get 16; set 12 values=nan; set 3; get 16",
    "cap 16: set 9; get 9; set 9 values=reordered; get 9; set 9; set 9 values=reordered; get 16",
    "cap 16: set 9 dtype=int32; get 16; set 3; set 12 dtype=int64 layout=permuted; get 16; clear 12; get 16",
)

SIZE_TRACES = (
    "cap 16 hidden 1: get 4; set 9; get 16; set 1; get 16; clear 16; get 16; set 3 hidden=2; get 16",
    "cap 16 levels 1: set 9; get 16; set 4 levels=2; get 16; clear 9; get 16",
    "cap 16 levels 4: set 9; get 16; set 4 levels=3; get 16; set 4; get 16; clear 9; get 16",
    "cap 1: get 1; set 1; get 1; get 0; clear 1; get 1; set 2; get 1",
    "cap 7: set 7; get 7; get 6; clear 7; get 7; set 6; get 7; clear 3; get 7",
    "cap 17: set 16; get 17; set 17; get 17; get 16; get 15; clear 17; get 17",
    "cap 16 levels 1: set 1; get 1; get 16; set 2; get 2; get 1; clear 1; get 1",
    "cap 131: set 131; get 131; set 65; get 131; set 127; get 128; clear 128; set 64; get 131; get 64",
    "cap 8192 levels 1 hidden 4: set 5000; get 8192; set 1025; get 8192; clear 1032; get 2048",
    "cap 16: set 9; get 16; set 4 hidden=127; get 16; set 4 hidden=129; get 16; set 4 hidden=256; get 16",
    "cap 16: set 9; get 16; set 4 levels=1; get 16; set 4 levels=6; get 16; set 4 levels=0; get 16",
    "cap 5 levels 2 hidden 6: set 4; get 5; set 3 levels=3 hidden=4; get 5; set 3 levels=3 hidden=7; get 5",
    "cap 33000 levels 1 hidden 1: set 32900; get 32901",
    "cap 4 levels 2 hidden 8191: set 3 layout=transposed; get 4; set 2 layout=one_level; get 4; clear 2",
    "cap 16: set 9; get 16; get -7; clear -2; get 16; resize -5; get 16; get -16; get 16",
)

HISTORY_TRACES = (
    "cap 16: set 8; get 4; clear 4; get 4; clear 4; get 8; forward 8",
    "cap 16: set 9; get 16; get 4; get 9; get 16 times=60; set 3; get 16",
    "cap 2 levels 1: set 2; get 2 calls=5000; get 1 after=90; get 2 after=100000; clear 2 calls=300; get 2",
    "cap 16: set 0; get 0; get 1; get 16; set 9; get 16; get 1; get 0; clear 16; get 1; get 0",
    "cap 16: set 9; clear 30; get 16; set 9; get 9; clear 16; get 16",
    (
        "cap 16: set 16; get 60; get 16; set 3; get 40; clear 60; get 16; set 40; get 40; set 20; get 40; "
        "resize 10; get 40"
    ),
    (
        "cap 16: set 5; resize 16; get 5; resize 3; get 5; resize 0; get 5; resize 50; get 16; resize 50; "
        "get 50; resize 5; get 5; resize 64; get 5"
    ),
    "cap 4: set 3; resize 9; get 9; get 20; set 40; get 40; resize 90; get 90; set 130; get 300; get 130",
    "cap 2 levels 1 hidden 2: " + "set 1; get 2; clear 1; get 1; " * 260 + "get 2",
    "cap 16: set 9; get 16; set 9; get 16; set 9 layout=slice; get 16; set 9 layout=slice; get 16",
    "cap 16: set 9; get 9; set 20 fail=1; get 9; set 20 fail=2; get 9; set 20; get 20",
    "cap 16: set 9; get 9; get 24 fail=2; get 9; get 24; resize 40 fail=3; get 9; resize 40; get 9",
    # Capacities that no other trace has: what buffers of equal sizes share shows here for sure.
    "cap 19 buffers 2: set 9; set 4 on=b; get 16; get 16 on=b; clear 16 on=b; get 16; get 16 on=b",
    "cap 18 buffers 2: set 9 on=b; set 12; clear 16; get 16 on=b; set 3 on=b; get 16; get 16 on=b",
    "cap 16: set 9; get 16; set 0; get 16; set 5; clear 8; set 0; get 9; clear 0; get 9",
    "cap 16: set 9; get 16; clear 9; get 16; resize 10; get 10; set 7; clear 7; resize 40; get 30; resize 9",
    "cap 16: "
    + "; ".join(f"set {n}; get 16; clear {n}" for n in (9, 1, 16, 3, 12, 7, 2, 15, 8, 4))
    + "; get 16",
)

# As engines do: every size captured up front, the largest first, with nothing set.
_ALL_SIZES = "cap 16: capture 16; capture 8; capture 4; capture 1; "
GRAPH_TRACES = (
    _ALL_SIZES
    + "set 9; replay 16; set 3; replay 4; replay 16; set 1; replay 1; get 16; set 16; get 16; forward 16",
    _ALL_SIZES + "set 16; forward 16; set 7; replay 8; forward 4; replay 16; set 12; replay 16; get 12",
    _ALL_SIZES + "set 8; replay 8; clear 16; set 12; get 16; clear 16; replay 16; get 16",
    "cap 16: capture 16; set 9 layout=permuted dtype=float64; replay 16; set 5 values=nan; replay 16; get 16",
    "cap 16 mode inference: capture 16; capture 4; set 4; replay 4; set 9; replay 16; get 16; replay 4",
    "cap 16: capture 16; set 9; replay 16; resize 40; get 16; set 9; replay 16; set 30; get 30; clear 30",
    "cap 16: capture 16; replay 16; resize 20; get 16; resize 64; set 4; replay 16; get 16; replay 16",
)

ADVISORY_TRACES = tuple(
    f"cap 16: set 1; {call} count={count}; get 16"
    for count in COUNTS
    for call in ("get 1", "clear 1", *(["resize 20"] if count != "bool" else []))
)
"""Counts that no promise covers: `check` says what becomes of them, and its exit code does not follow."""

INPUT_TRACES = (*LAYOUT_TRACES, *VALUE_TRACES, *SIZE_TRACES, *HISTORY_TRACES, *GRAPH_TRACES)
"""Part of what `check` and the fixture `deepstack_contract` play."""


_CAPACITIES = (1, 2, 3, 5, 7, 8, 13, 15, 16, 17, 31, 32, 33, 64, 65, 127, 128)
"""1, 2, primes, powers of two and their neighbours."""
_HIDDEN = ("", "", "hidden 1", "hidden 2", "hidden 127")
_LEVELS = ("", "levels 1", "levels 2", "levels 4")
_REAL = 8192
"""vLLM's `max_num_batched_tokens` of an H100 or H200, which is the capacity of its buffers."""
_HIDDEN_2B = 2048
"""Hidden size of Qwen3-VL 2B; one answer of three levels is 100 MB in bfloat16."""
_CAPTURE_SIZES = (16, 8, 4, 2, 1)
_LIVE_HISTORIES, _CAPTURED_HISTORIES, _STEPS = 24, 12, 200
_MOST_GROWTH = 4
"""A history grows a buffer to four times its capacity; every row is read after every step."""


@cache
def thorough_traces() -> tuple[str, ...]:
    """Return the traces, the short ones first: a finding shows the first of the shortest."""
    return (
        *_every_size(), *_failing_growth(), *_many_calls(), *other_pairs(), *_real_sizes(), *_histories()
    )  # fmt: skip


def _every_size() -> Iterator[str]:
    """Iterate over traces with every count around powers of two and the capacity, in a mixed order."""
    for number, capacity in enumerate(_CAPACITIES):
        draw = Random(capacity)
        steps = []
        for tokens in draw.sample(counts := _counts(capacity), len(counts)):
            padded = min(capacity, -(-tokens // 8) * 8)
            steps += [f"set {tokens}", f"get {capacity}", f"get {tokens}", f"clear {max(tokens, padded)}"]
            steps += [f"get {capacity}"] if draw.random() < 0.5 else []
        sizes = (_HIDDEN[number % len(_HIDDEN)], _LEVELS[number % len(_LEVELS)])
        dtype = f"dtype {DTYPES[number % len(DTYPES)]}"
        mode = "mode inference" if number % 3 == 0 else ""
        header = " ".join(filter(None, (f"cap {capacity}", sizes[1], sizes[0], dtype, mode)))
        yield f"{header}: {'; '.join(steps)}"


def _counts(capacity: int) -> list[int]:
    """Return the counts in [0, capacity] at which buffers broke: powers of two, both ends, the neighbours."""
    powers = [1 << bits for bits in range(capacity.bit_length())]
    near = {at + by for at in (0, *powers, capacity // 2, capacity) for by in (-1, 0, 1)}
    return sorted(count for count in near if 0 <= count <= capacity)


def _failing_growth() -> Iterator[str]:
    """Iterate over traces in which each allocation of a growth fails in turn, and the call is made again."""
    for fails in range(1, 9):
        for call in ("set 24", "get 24", "resize 24"):
            yield f"cap 16: set 9; get 16; {call} fail={fails}; get 9; get 16; {call}; get 16; set 5; get 16"
    for call in ("set 12", "get 12", "clear 12", "clear 40"):
        for fails in (1, 2, 3):
            yield f"cap 16: set 9; get 16; {call} fail={fails}; get 16; {call}; get 16"


def _many_calls() -> Iterator[str]:
    """Iterate over traces with hundreds of calls of one kind, and over growth that goes up and down."""
    yield "cap 16: set 9; get 16 times=300; get 9; clear 16; get 16 times=300; set 3; get 16"
    yield "cap 16: set 9 times=300; get 16; clear 16 times=300; get 16; set 5; get 16"
    yield (
        "cap 16: "
        + "; ".join(f"set {n % 17}; get 16; clear 16" for n in range(5, 5 + 7 * 60, 7))
        + "; get 16"
    )
    grown = (f"resize {rows}; get 5; set {rows // 3}; get {rows // 2}" for rows in (48, 6, 33, 17, 64, 5) * 8)
    yield f"cap 16: set 5; get 16; {'; '.join(grown)}"
    up = (f"set {rows}; get {rows}; clear {rows}; get {rows}" for rows in range(1, 64, 3))
    yield f"cap 1: {'; '.join(up)}"
    both = (f"set {n}; get 16; set {17 - n} on=b; get 16 on=b; clear 16; get 16 on=b" for n in range(1, 17))
    yield f"cap 16 buffers 2: {'; '.join(both)}"


def _real_sizes() -> Iterator[str]:
    """Iterate over traces of the capacity and the hidden size that engines use."""
    yield (
        f"cap {_REAL} hidden {_HIDDEN_2B} dtype bfloat16: profile {_REAL}; set 5000 layout=permuted; "
        f"get {_REAL}; clear 5008; get 4999; set 64; get {_REAL}"
    )
    captured = f"cap {_REAL}: capture {_REAL}; capture 512"
    yield f"{captured}; set 300; replay 512; set 8000; replay {_REAL}; get 8001"
    near = [count for count in _counts(_REAL) if count > 255]
    steps = (f"set {count}; get {min(_REAL, count + 7)}; clear {count}" for count in near)
    yield f"cap {_REAL}: {'; '.join(steps)}; get {_REAL}"
    yield f"cap {_REAL}: set 4097; get 8193; get 4097; set 8256; get 4096; resize 9000; get 8193"


def _histories() -> Iterator[str]:
    """Iterate over random histories of hundreds of steps, in both regimes."""
    for seed in range(_LIVE_HISTORIES):
        yield _History(Random(1000 + seed)).live()
    for seed in range(_CAPTURED_HISTORIES):
        yield _History(Random(2000 + seed)).captured()


@dataclass
class _History:
    """Writer of one random history beside a model of the buffer: its rows, and the tokens set."""

    draw: Random
    made: int = 16
    rows: int = 16
    tokens: int = 0
    steps: list[str] = field(default_factory=list)

    def live(self) -> str:
        """Return a history of calls, in one of all shapes of buffers."""
        self.made = self.rows = self.draw.choice((1, 7, 16, 16, 17, 32))
        kinds = (
            self._set,
            self._read,
            self._read,
            self._clear,
            self._micro_batches,
            self._engine,
            self._refused,
        )
        while len(self.steps) < _STEPS:
            self.draw.choice((*kinds, self._grow) if self.draw.random() < 0.3 else kinds)()
        header = (self.draw.choice(_LEVELS), self.draw.choice(("", "", f"dtype {self.draw.choice(DTYPES)}")))
        return self._trace_text(" ".join(filter(None, header)))

    def captured(self) -> str:
        """Return a history of replays with live steps between them; all sizes are captured first."""
        self.steps += [f"capture {size}" for size in _CAPTURE_SIZES]
        kinds = (self._replay, self._replay, self._replay, self._read, self._engine, self._clear)
        while len(self.steps) < _STEPS:
            self.draw.choice((*kinds, self._grow) if self.draw.random() < 0.05 else kinds)()
        return self._trace_text(self.draw.choice(("", "mode inference")))

    def _trace_text(self, header: str) -> str:
        return f"{f'cap {self.made} {header}'.strip()}: {'; '.join(self.steps)}"

    def _count(self, most: int) -> int:
        return self.draw.choice((self.draw.randint(0, most), self.draw.choice(_counts(most))))

    def _set(self, most: int | None = None) -> None:
        self.tokens = self._count(self.rows if most is None else most)
        options = {"layout": LAYOUTS, "values": VALUES, "dtype": DTYPES}
        chosen = [f" {key}={self.draw.choice(of)}" for key, of in options.items() if self.draw.random() < 0.2]
        self.steps.append(f"set {self.tokens}{''.join(chosen)}")

    def _read(self) -> None:
        self.steps.append(f"get {self.draw.choice((self.rows, self.tokens, self._count(self.rows)))}")

    def _clear(self) -> None:
        self.steps += [f"clear {self.draw.choice((self.rows, self.tokens, self._count(self.rows)))}"]
        self.steps += [f"get {self.rows}"]
        self.tokens = 0

    def _micro_batches(self) -> None:
        half = -(-self.tokens // 2)
        self.steps += [f"get {half}", f"clear {half}"] * 2 if half else []
        self.steps.append(f"get {self.rows}")
        self.tokens = 0

    def _engine(self) -> None:
        """Do a step as engines do: set, run on a padded count; one in three has text alone."""
        if self.draw.random() < 0.7:
            self._set(min(self.rows, self.made))
        padded = min(self.rows, -(-max(1, self.tokens) // 8) * 8)
        self.steps.append(f"forward {max(self.tokens, padded)}")
        self.tokens = 0

    def _refused(self) -> None:
        bad = ("set 3 hidden=1", "set 3 levels=5", "set 40 hidden=7", "get -1", "clear -9", "resize -2")
        self.steps += [self.draw.choice(bad), f"get {self.rows}"]

    def _grow(self) -> None:
        rows = self.draw.randint(1, 2 * self.rows)
        if rows > _MOST_GROWTH * self.made or rows < self.tokens:
            rows = max(self.tokens, self.made)
        self.steps.append(self.draw.choice((f"resize {rows}", f"get {rows}", f"resize {rows}")))
        self.rows = max(self.made, self.tokens) if rows < self.rows else self.rows
        self._read()

    def _replay(self) -> None:
        size = self.draw.choice([size for size in _CAPTURE_SIZES if size >= min(self.tokens, self.made)])
        if self.draw.random() < 0.7:
            self._set(size)
        self.steps.append(f"replay {size}")
        self.tokens = 0
