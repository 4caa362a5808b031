"""Released vLLM sources, fetched from the configured index, return what their revision does for S1..S10."""

import linecache
from contextlib import AbstractContextManager, suppress
from dataclasses import replace

import pytest
import torch

from cases.by_day import by_day
from cases.released import released
from cases.selftest.models.sequences import SEQUENCES, Read
from deepstack_harness.contract.trace import Op, Trace
from deepstack_harness.engines.bound_class import MethodsBuffer, MethodsClass
from deepstack_harness.engines.classes import methods_of
from deepstack_harness.engines.kinds.vllm import VLLM
from deepstack_harness.engines.known import open_source
from deepstack_harness.engines.stand_ins import Surroundings
from deepstack_harness.errors import UsageError

pytestmark = pytest.mark.network  # the sources of released wheels are read, a few hundred kB each

REVISION_OF = {
    "0.33.0": "pr49397",
    "0.11.1": "original",
    "0.19.1": "original",
    "0.20.0": "pr40145",
    "0.20.1": "pr40145",
    "0.22.1": "pr40932",
    "0.23.0": "pr43617",
}
LEVELS, HIDDEN = 3, 8


ANSWERING_NONE = {"pr40145", "pr40932"}
of_each_revision = pytest.mark.parametrize(
    "release",
    by_day(REVISION_OF, lambda release: REVISION_OF[release] in ANSWERING_NONE),
)
"""The import of a release takes 10 s: the newest by day, and one that returns None; an audit has 0.22.1."""


def new_buffer(bound: MethodsClass, capacity: int = 16) -> MethodsBuffer:
    return bound(capacity, HIDDEN, LEVELS, dtype=torch.float32, device=torch.device("cpu"))


def reads(buffer: MethodsBuffer, trace: Trace) -> list[Read]:
    """Return what each get of the trace returns; clear may raise, as it does in some revisions."""
    answers: list[Read] = []
    for step in trace:
        if step.op is Op.SET:
            buffer.set(torch.ones(LEVELS, step.tokens, HIDDEN))
        elif step.op is Op.CLEAR:
            with suppress(ValueError):
                buffer.clear(step.tokens)
        else:
            answers.append(read(buffer, step.tokens))
    return answers


def read(buffer: MethodsBuffer, tokens: int) -> Read:
    """Rows and rows that hold data, None, or the exception; every level must agree."""
    try:
        levels = buffer.get(tokens)
    except ValueError as error:
        return type(error).__name__
    if levels is None:
        return None
    assert len(levels) == LEVELS
    (counts,) = {(len(level), int(level.any(dim=1).sum())) for level in levels}
    return counts


@of_each_revision
@pytest.mark.parametrize("model", by_day(VLLM.by_methods, count=4))
def test_sequences(release: str, model: str) -> None:
    bound = methods_of(released(release), model)
    assert bound.model_class == VLLM.by_methods[model].class_name
    found = {name: reads(new_buffer(bound), Trace.parse(case.trace)) for name, case in SEQUENCES.items()}
    assert found == {name: case.reads_of(REVISION_OF[release]) for name, case in SEQUENCES.items()}


@of_each_revision
def test_growth_moves_the_storage(release: str) -> None:
    buffer = new_buffer(methods_of(released(release)))
    buffer.set(torch.ones(LEVELS, 9, HIDDEN))
    before = buffer.get(9)
    buffer.set(torch.ones(LEVELS, 20, HIDDEN))
    after = buffer.get(20)
    assert before is not None
    assert after is not None
    assert buffer.capacity == 20
    assert {level.data_ptr() for level in before}.isdisjoint(level.data_ptr() for level in after)


@of_each_revision
def test_the_line_that_returns_from_an_empty_get_is_quoted(release: str) -> None:
    bound = methods_of(released(release))
    name, _, line = new_buffer(bound).where_returned(4).rpartition(":")
    assert name == bound.filename
    quoted = linecache.getline(name, int(line)).strip()
    answers_none = REVISION_OF[release] in ANSWERING_NONE
    assert quoted.startswith("return None" if answers_none else "return IntermediateTensors(")


def meta_device() -> AbstractContextManager[object]:
    return torch.device("meta")


@pytest.mark.parametrize(
    ("release", "leaves"), by_day([("0.33.0", None), ("0.23.0", {torch.device("meta")})])
)
def test_a_skipped_tower_leaves_meta_rows_or_from_0_28_on_none(release: str, leaves: object) -> None:
    skipped = replace(methods_of(released(release)), surroundings=Surroundings(meta_device, vision=False))
    levels = new_buffer(skipped).get(4)
    assert (levels and {level.device for level in levels}) == leaves


def test_a_release_before_deepstack_is_refused() -> None:
    with pytest.raises(UsageError, match=r"^vllm 0\.10\.2 has no .*qwen3_vl\.py; .* since vllm 0\.11\.0$"):
        methods_of(open_source("vllm==0.10.2"))


def test_a_release_that_does_not_exist_is_refused() -> None:
    with pytest.raises(
        UsageError, match=r"there is no vllm 0\.22\.99: near it are 0\.22\.0, 0\.22\.1, 0\.23\.0"
    ):
        methods_of(open_source("vllm==0.22.99"))
