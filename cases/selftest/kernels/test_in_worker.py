"""A worker that measures kernels and misbehaves is one sentence, and the exit code that belongs to it."""

import pytest

from cases.selftest.workers.misbehaving import ALWAYS
from deepstack_harness.errors import HarnessError, MachineError, UsageError
from deepstack_harness.kernels import costs, in_worker
from deepstack_harness.kernels.subject import Subject

MISBEHAVING = "cases.selftest.workers.misbehaving"
SUBJECT = Subject("qwen3_vl", "reference", tokens=1, capacity=4, profile_tokens=4)


def kind_of(name: str) -> type[HarnessError]:
    return HarnessError if name == "refuse_always" else MachineError


@pytest.mark.parametrize("name", ALWAYS)
def test_kernels_are_not_measured(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(in_worker, "_WORK", f"{MISBEHAVING}:{name}")
    monkeypatch.setattr(in_worker, "_SUBJECT_S", 0.5 if name == "hang_always" else 60.0)
    with pytest.raises(HarnessError, match=f"measuring kernels for target 'cpu': {ALWAYS[name]}") as caught:
        in_worker.measure([SUBJECT])
    assert type(caught.value) is kind_of(name)


@pytest.mark.parametrize("name", ALWAYS)
def test_costs_are_not_measured(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(costs, "_WORK", f"{MISBEHAVING}:{name}")
    monkeypatch.setattr(costs, "_SECONDS", 0.5 if name == "hang_always" else 60.0)
    with pytest.raises(HarnessError, match=f"timing decode steps: {ALWAYS[name]}") as caught:
        costs.measure_costs()
    assert type(caught.value) is kind_of(name)


def test_an_error_of_ours_goes_on_as_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(in_worker, "_WORK", f"{MISBEHAVING}:refuse_as_a_user")
    with pytest.raises(UsageError, match="^unknown name 'x'$"):
        in_worker.measure([SUBJECT])
