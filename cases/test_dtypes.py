"""Every dtype on every family: a right buffer passes all rules, and a wrong one is seen all the same."""

from functools import cache

import pytest
import torch

from cases.played import Played, play_judged
from cases.shallow import shallow
from deepstack_harness.contract.rules import Rule
from deepstack_harness.contract.verdicts import Verdict
from deepstack_harness.play.model import Model

R = Rule
FAMILIES = ("qwen3_vl", "qwen3_omni_moe_thinker", "granite4_vision")
DTYPES = ("bfloat16", "float16", "float32", "float64")
PROFILED = "cap 16: profile 16; set 9; forward 9; set 16; forward 16; forward 1"
REPLAYED = "cap 16: capture 16; set 9; replay 16; set 16; replay 16; replay 16"


@cache
def model(family: str, dtype: str) -> Model:
    torch.set_num_threads(1)
    return Model.build(family, dtype)


def played(family: str, dtype: str, revision: str, arm: str, trace: str) -> Played:
    return play_judged(model(family, dtype), revision, arm, trace)


def half_of_experts(family: str, dtype: str) -> bool:
    """Where rounding may choose another expert, outputs are not compared."""
    return family == "qwen3_omni_moe_thinker" and dtype in ("bfloat16", "float16")


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("family", FAMILIES)
def test_the_reference_passes_every_rule(family: str, dtype: str) -> None:
    # Captured, and so compared with eager, but not compiled: that costs a second for each of these.
    found = played(family, dtype, "reference", "eager/full", REPLAYED)
    assert not found.broken
    expected = Verdict.SKIP if half_of_experts(family, dtype) else Verdict.PASS
    assert found.judgements[R.OUTPUT].verdict is expected
    assert (found.observation.dtype, found.judgements[R.PLACEMENT].verdict) == (dtype, Verdict.PASS)


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_replay_that_reads_cleared_rows_shows_in_every_dtype(dtype: str) -> None:
    assert played("qwen3_vl", dtype, "pr43617", "eager/full", REPLAYED).broken == {R.OUTPUT, R.CLEAR}


@pytest.mark.slow  # by day in float32: cases/test_none_while_profiling.py
@pytest.mark.xdist_group("eager")
@pytest.mark.parametrize(
    ("family", "dtype"),
    [
        ("qwen3_vl", "bfloat16"),
        ("qwen3_vl", "float64"),
        ("granite4_vision", "float16"),
        ("qwen3_omni_moe_thinker", "bfloat16"),
    ],
)
def test_none_while_profiling_shows_in_every_dtype(family: str, dtype: str) -> None:
    few_layers = shallow(family, getattr(torch, dtype), layers=1)
    found = play_judged(few_layers, "pr40932", "eager/drop_all", PROFILED)
    outputs = set() if half_of_experts(family, dtype) else {R.OUTPUT}
    assert found.broken == {R.STRUCTURE} | outputs
    assert not play_judged(few_layers, "reference", "eager/drop_all", PROFILED).broken
