"""The functions of a worker that plays cases, called in this process: what is bound, and what is refused."""

import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import msgspec
import pytest
import torch

from cases.selftest.engines.synthetic_vllm import Vllm
from cases.selftest.play.playing import case_of
from deepstack_harness.contract.arm import ArmSpec
from deepstack_harness.contract.case import BufferKind, Compare, live_buffer
from deepstack_harness.errors import HarnessError, UsageError
from deepstack_harness.models.reference import ReferenceBuffer
from deepstack_harness.play import source_work, work
from deepstack_harness.play.case_worker import SourceClass
from deepstack_harness.play.model import factory_of
from deepstack_harness.workers.child import Channel

CASE = case_of("cap 4: set 2; get 2", "reference")


@pytest.fixture
def channel() -> Iterator[Channel]:
    """The messages of a worker, which nobody reads."""
    reads, writes = os.pipe()
    try:
        yield Channel(writes)
    finally:
        os.close(reads)
        os.close(writes)


def test_a_class_is_driven_only_in_the_way_in_which_it_was_bound(
    channel: Channel, monkeypatch: pytest.MonkeyPatch
) -> None:
    bound = SimpleNamespace(splits=None, methods=None, forward=SimpleNamespace(filename="model.py"))
    monkeypatch.setattr(source_work, "_found", lambda *_: bound)
    with pytest.raises(HarnessError, match="Vl was not bound as a splitter"):
        source_work.split(channel, "TREE", "Vl", CASE)
    with pytest.raises(HarnessError, match="Vl was not bound by its methods"):
        source_work._factory(SourceClass("TREE", "Vl", "methods"))
    # A class that is played by its forward has no get whose `return` could be found.
    asked = SourceClass("TREE", "Vl", "forward")
    assert source_work.where_returned(channel, asked, 2, (4, 8, 2), "float32", "cpu") == "model.py"


def test_a_buffer_that_is_of_no_source_or_was_not_bound_is_our_bug() -> None:
    with pytest.raises(HarnessError, match="'reference' is not a buffer of a source") as caught:
        source_work.bind_work(CASE, SourceClass("TREE", "Vl"))
    assert not isinstance(caught.value, UsageError)
    with pytest.raises(HarnessError, match="'mine:Mine' was not bound before its case was played"):
        factory_of(live_buffer("mine:Mine"))


def test_a_gpu_works_that_finishes_what_was_started(monkeypatch: pytest.MonkeyPatch) -> None:
    def lost() -> None:
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    assert work._device_works("cuda:0")
    monkeypatch.setattr(torch.cuda, "synchronize", lost)
    assert work._device_works("cuda:0") is False
    assert work._device_works("cpu")


def test_cases_on_one_session_find_a_class_of_a_source_and_a_class_that_is_alive(tmp_path: Path) -> None:
    bound = source_work.bind_shared(str(Vllm().tree(tmp_path)), "qwen3_vl")
    assert (bound.buffer.kind, bound.buffer.package) == (BufferKind.SOURCE, "vllm")
    of_source = replace(CASE, buffer=bound.buffer, compare=Compare.NOTHING)
    seen = work.play_on_shared_session(of_source, new_session=True)
    assert seen.steps[0].raised is None
    work.bind_live(live_buffer("mine:Mine"), ReferenceBuffer)
    case = replace(CASE, buffer=live_buffer("mine:Mine"), compare=Compare.NOTHING)
    seen = work.play_on_shared_session(case, new_session=True)
    assert [step.answer is not None for step in seen.steps] == [False, True]


_MOST_MODULES = 61
"""Each costs start-up of every worker, and what measures is watched module by module while a method runs."""
_COUNT_MODULES = """
import sys
import msgspec
from deepstack_harness.contract.case import Case
from deepstack_harness.play import work
for text in sys.argv[1:]:
    assert work.play_alone(msgspec.json.decode(text, type=Case)).error is None
print(*(name for name in sys.modules if name.startswith("deepstack_harness")))
"""


@pytest.mark.slow  # costs time where it fails, and no more
def test_a_worker_that_checks_a_buffer_imports_few_modules() -> None:
    cases = [
        replace(CASE, arm=ArmSpec.parse(arm), compare=Compare.NOTHING) for arm in ("eager", "eager/full")
    ]
    command = [sys.executable, "-c", _COUNT_MODULES, *(msgspec.json.encode(case).decode() for case in cases)]
    modules = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
    assert "deepstack_harness.play.observe" in modules
    assert "deepstack_harness.compile.compiled" not in modules
    assert len(modules) <= _MOST_MODULES, modules
