"""A limit that ended a worker, or that raised in it, is named with its value and with what raises it."""

import errno
from dataclasses import replace
from typing import Any

import pytest

from deepstack_harness.errors import UsageError
from deepstack_harness.workers.limits import BY_VARIABLE, Limits, advice_about
from deepstack_harness.workers.outcomes import Answered, WorkerEnd
from deepstack_harness.workers.profiles import (
    COMPILE,
    COMPILE_LIMITS,
    CONTRACT,
    CONTRACT_LIMITS,
    CUDA,
    FOREIGN_LIMITS,
    OWN_CLASS,
    RANKS,
    SandboxProfile,
    profile_for,
)
from deepstack_harness.workers.worker import Worker

MODULE = "cases.selftest.workers.misbehaving"
SMALL = replace(
    FOREIGN_LIMITS, call_s=60.0, step_s=60.0, memory=2**29, output=2**20, open_files=40, file_size=2**20,
    processes=4,
)  # fmt: skip
ENDS = {
    "hang": ("the limit of a step is 2 s", "STEP_S"),
    "allocate": ("the limit of private memory is 512 MiB", "MEMORY_MIB"),
    "flood_always": ("the limit of printed output is 1 MiB", "OUTPUT_MIB"),
    "start_processes": ("the limit of processes at a time is 4 processes", "PROCESSES"),
}
ERRORS = {
    "write_much": ("the limit of one written file is 1 MiB", "WRITTEN_MIB"),
    "open_many": ("the limit of open files is 40 files", "OPEN_FILES"),
}


@pytest.mark.parametrize("name", ENDS)
def test_an_end_names_its_limit(name: str) -> None:
    limit, variable = ENDS[name]
    limits = replace(SMALL, step_s=2.0) if name == "hang" else SMALL
    with Worker(limits, preload=MODULE, sandbox=COMPILE) as worker:
        end = worker.call(f"{MODULE}:{name}")
    assert isinstance(end, WorkerEnd), end
    assert f"({limit}, DEEPSTACK_HARNESS_MAX_{variable} raises it)" in end.sentence


def test_an_error_in_a_method_names_its_limit() -> None:
    # The worker imports torch, and a build with CUDA maps more than SMALL has.
    limits = replace(SMALL, memory=2**32)
    with Worker(limits, preload=MODULE, sandbox=COMPILE) as worker:
        for name, (limit, variable) in ERRORS.items():
            result = worker.call(f"{MODULE}:attempted", {"name": name})
            assert isinstance(result, Answered), result
            assert f"({limit}, DEEPSTACK_HARNESS_MAX_{variable} raises it)" in result.value


@pytest.mark.parametrize("field", BY_VARIABLE)
def test_its_variable_replaces_it(field: str, monkeypatch: pytest.MonkeyPatch) -> None:
    limits = replace(FOREIGN_LIMITS, step_s=5.0)
    before = limits.advice(field)
    monkeypatch.setenv(BY_VARIABLE[field], "77")
    assert limits.advice(field) == before  # until a worker starts
    assert " is 77 " in limits.in_force().advice(field)


@pytest.mark.parametrize("value", ["0", "-1", "many", "1.5"])
def test_a_value_that_is_no_count_is_refused(value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DEEPSTACK_HARNESS_MAX_STEP_S", value)
    with pytest.raises(UsageError, match=r"MAX_STEP_S is '.*', but has to be a count above 0"):
        CONTRACT_LIMITS.in_force()


def test_an_option_is_named_and_no_variable_replaces_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DEEPSTACK_HARNESS_MAX_CALL_S", "77")
    limits = Limits(call_s=3.0, raised_by={"call_s": "--case-seconds"})
    assert limits.in_force() == limits
    assert limits.advice("call_s") == "the limit of a call is 3 s, --case-seconds raises it"
    assert limits.advice("memory") == ""


def test_every_limit_of_foreign_code_can_be_raised() -> None:
    for limits in (FOREIGN_LIMITS, CONTRACT_LIMITS, COMPILE_LIMITS):
        assert limits.raised_by.keys() == BY_VARIABLE.keys()
        for field in ("memory", "output", "open_files", "file_size", "processes"):
            assert limits.advice(field)
        assert limits.advice("call_s") or limits.advice("step_s")


@pytest.mark.parametrize("sentence", ["", "{", "[]", '"x"', "7"])
def test_an_environment_that_code_under_test_has_changed_gives_no_advice(
    sentence: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    error = OSError(errno.EMFILE, "Too many open files")
    ((name, text),) = Limits(open_files=40, raised_by={"open_files": "FILES"}).as_environment().items()
    monkeypatch.setenv(name, text)
    assert advice_about(error) == "the limit of open files is 40 files, FILES raises it"
    monkeypatch.setenv(name, sentence)
    assert advice_about(error) == ""


@pytest.mark.parametrize(
    ("asked", "profile"),
    [
        ({"device": "cuda:1", "ranks": 2}, CUDA),
        ({"device": "cpu", "ranks": 2, "within": CONTRACT}, RANKS),
        ({"device": "cpu"}, OWN_CLASS),
        ({"device": "cpu", "within": COMPILE}, COMPILE),
        ({"device": "cpu", "within": CONTRACT}, CONTRACT),
    ],
)
def test_a_device_and_ranks_need_a_weaker_sandbox(asked: dict[str, Any], profile: SandboxProfile) -> None:
    assert profile_for(**asked) is profile
