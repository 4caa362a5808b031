"""Triton's interpreter as it is used here: right arithmetic, refusals by name, and names that may move."""

import re
from collections.abc import Iterator
from typing import Any

import pytest

from deepstack_harness.compile.torch_compat.targets import ENVIRONMENT, why_not
from deepstack_harness.workers.outcomes import value_of
from deepstack_harness.workers.worker import Worker

WHY_NOT = why_not()
# A worker imports torch and Inductor, which takes more than 3 s.
pytestmark = [pytest.mark.skipif(bool(WHY_NOT), reason=WHY_NOT), pytest.mark.slow]
CHILD = "cases.selftest.compile.torch_compat.interpreter_child"


@pytest.fixture(scope="module")
def worker() -> Iterator[Worker]:
    with Worker(environment=ENVIRONMENT) as started:
        yield started


def asked(worker: Worker, function: str) -> Any:  # noqa: ANN401
    return value_of(worker.call(f"{CHILD}:{function}"), function)


def test_casts_functions_reductions_and_atomics_are_torchs(worker: Worker) -> None:
    found = asked(worker, "arithmetic")
    assert (found["rounded"], found["widened"]) == (True, True)
    assert found["roots"] < 1e-6
    assert found["nan"] == "nan"
    assert (found["added"], found["programs"]) == ([6.0, 9.0], 2)
    assert found["rows"] == [
        ["given", "given", [[0, 6]], []],
        ["out", "out", [[0, 2]], [[0, 2]]],
    ]


def test_what_cannot_be_interpreted_is_refused_with_the_name_of_the_kernel(worker: Worker) -> None:
    found = asked(worker, "refusals")
    for what, words in {
        "bfloat16": "kernel summed cannot be interpreted: .*add on bfloat16",
        "libdevice": "kernel unknown cannot be interpreted: .*libdevice.cyl_bessel_i0: torch has no such",
        "assembly": "kernel assembled cannot be interpreted: .*inline_asm",
        "template": "kernel widened is a template",
        "cooperative": "kernel widened is a cooperative reduction",
        "compiled": "kernel widened was loaded to be compiled",
        "nothing": "nothing was refused",
    }.items():
        assert re.search(words, found[what]), found[what]


def test_a_result_that_depends_on_the_configuration_is_named(worker: Worker) -> None:
    found = asked(worker, "configurations")
    assert found["depends"]["told"] == [["told_its_block", "out", "XBLOCK=2", "XBLOCK=8"]]
    assert found["agrees"]["told"] == []
    # The largest one's result stays, and only its programs count.
    assert (found["depends"]["out"], found["depends"]["programs"], found["depends"]["compared"]) == (
        9.0,
        1,
        1,
    )


def test_a_member_that_moved_is_named_with_what_to_do(worker: Worker) -> None:
    found = asked(worker, "moved")
    assert len(found) > 25
    for name, sentence in found.items():
        assert re.search(
            rf"has no {name.rpartition('.')[2]}|generates no {name.rpartition('.')[2]}", sentence
        )
        assert re.match(r"triton 3\.\d+\.\d+ with torch 2\.", sentence), sentence
        assert re.search(r"look there for the new name, and change \S+\.py", sentence), sentence
        assert sentence.endswith("until then install torch 2.13 with triton 3.7")


def test_parameters_in_another_order_are_named(worker: Worker) -> None:
    assert "create_masked_load begins with (mask, ptrs, other), not (ptrs, mask, other)" in asked(
        worker, "reordered"
    )


def test_a_new_method_that_reaches_memory_is_named(worker: Worker) -> None:
    """It would follow a made-up address, and the process would end."""
    assert "reaches memory in InterpreterBuilder.create_far_load, which nothing replaces" in asked(
        worker, "unreplaced"
    )


def test_nothing_is_replaced_after_it(worker: Worker) -> None:
    assert asked(worker, "restored") is True
