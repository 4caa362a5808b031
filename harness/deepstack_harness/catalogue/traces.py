"""Traces in addition to those of incidents: payloads, sizes and histories as engines make them.

They are played without a decoder, in both regimes, and vary what engines vary: vLLM permutes its payload,
engines reuse the memory at once, a Qwen3-VL has 3 levels and others 1 or 4, the dtype of vision towers
differs from that of buffers, a step has several spans. `check --thorough` draws more (`fuzz.strategies`).
"""

from deepstack_harness.contract.trace import COUNTS

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
"""Counts that no promise covers: `check` reports what becomes of them; its exit code ignores them."""

INPUT_TRACES = (*LAYOUT_TRACES, *VALUE_TRACES, *SIZE_TRACES, *HISTORY_TRACES, *GRAPH_TRACES)
"""Part of what `check` and the fixture `deepstack_contract` play."""


_REAL = "cap 8192"
"""vLLM's `max_num_batched_tokens` of an H100 or H200, which is the capacity of its buffers."""
_POWERS = [1 << bits for bits in range(9, 14)]
THOROUGH_TRACES = (
    "cap 16: set 9; get 9; clear 12 fail=1; get 9; clear 12; set 5; clear 40 fail=1; get 9; clear 9; get 9",
    # The hidden size of Qwen3-VL 2B; one output of three levels is 100 MB in bfloat16.
    (
        f"{_REAL} hidden 2048 dtype bfloat16: profile 8192; set 5000 layout=permuted; get 8192; clear 5008; "
        "get 4999; set 64; get 8192"
    ),
    f"{_REAL}: capture 8192; capture 512; set 300; replay 512; set 8000; replay 8192; get 8001",
    f"{_REAL}: "
    + "".join(
        f"set {count}; get {min(8192, count + 7)}; clear {count}; "
        for count in (256, 257, *(power + by for power in _POWERS for by in (-1, 0, 1) if power + by <= 8192))
    )
    + "get 8192",
    f"{_REAL}: set 4097; get 8193; get 4097; set 8256; get 4096; resize 9000; get 8193",
)
"""Part of what `check --thorough` plays: capacities of engines, and an allocation that fails in a clear."""
