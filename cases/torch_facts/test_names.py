"""Every private name of torch and triton that `torch_compat` uses is there: a fact for each."""

import importlib.util
from pathlib import Path

import pytest
import torch

import deepstack_harness.compile.torch_compat
from cases.selftest.compile.torch_compat.torch_names import Name, has_at_run_time, used_names
from deepstack_harness.compile.torch_compat.inductor import SPELLINGS

USED = used_names(Path(deepstack_harness.compile.torch_compat.__file__).parent, SPELLINGS)


def test_the_names_are_read_from_the_sources() -> None:
    assert len(USED) > 150


@pytest.mark.parametrize("name", USED, ids=str)
def test_a_name_is_there(name: Name) -> None:
    if str(name).startswith("triton.") and importlib.util.find_spec("triton") is None:
        pytest.skip("triton is not installed: extra `kernels`")
    if not any(map(has_at_run_time, name.spellings)):
        pytest.fail(
            f"torch {torch.__version__}: {name} is gone. torch_compat/{USED[name]} uses it.\n"
            "Where it was renamed, declare both spellings in SPELLINGS of torch_compat/inductor.py.",
            pytrace=False,
        )
