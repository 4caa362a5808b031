"""Fixtures of the harness's own tests."""

import pytest
import torch

from deepstack_harness.play import Model


@pytest.fixture(scope="session")
def qwen() -> Model:
    """The tiny Qwen3-VL decoder, drawn once."""
    torch.set_num_threads(1)
    return Model.build("qwen3_vl")
