"""Fixtures of the harness's own tests."""

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
import torch

from cases.selftest.workers.processes import Witness
from deepstack_harness.play.model import Model


@pytest.fixture(scope="session")
def qwen() -> Model:
    """The tiny Qwen3-VL decoder, drawn once."""
    torch.set_num_threads(1)
    return Model.build("qwen3_vl")


@pytest.fixture
def witness(tmp_path: Path) -> Iterator[Witness]:
    """A FIFO whose end of file shows that no process of a test is left."""
    with closing(Witness(tmp_path)) as found:
        yield found
