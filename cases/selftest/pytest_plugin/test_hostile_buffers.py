"""The contract fixture fails for buffers that end or excuse themselves; it is never skipped or ended."""

from pathlib import Path

import pytest

from cases.by_day import by_day
from cases.selftest.play import misbehaving_buffers
from cases.selftest.play.misbehaving_buffers import misbehaving
from deepstack_harness.play.loading import load_buffer
from deepstack_harness.pytest_plugin.fixtures import DeepstackContract

Failed, Skipped = pytest.fail.Exception, pytest.skip.Exception
MODULE = misbehaving_buffers.__name__
TRACES = ["cap 16: set 9; get 9"]


@pytest.mark.parametrize(
    ("name", "said"),
    by_day([
        ("AsksToExit", "SystemExit"), ("EndsTheGenerator", "GeneratorExit"), ("RaisesItsOwn", "Own"),
        ("RaisesOurError", "MachineError"), ("SaysNotMeasured", "NotMeasured"),
    ]),
)  # fmt: skip
@pytest.mark.parametrize("in_worker", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_an_end_of_a_method_is_a_broken_rule(
    deepstack_contract: DeepstackContract, name: str, said: str, in_worker: bool
) -> None:
    buffer = misbehaving(name, "get 9")
    with pytest.raises(Failed) as caught:
        deepstack_contract(buffer if in_worker else load_buffer(buffer), traces=TRACES)
    assert "  broken: R2 boundary: " in str(caught.value)
    assert said in str(caught.value)


@pytest.mark.parametrize("in_worker", [False, True])
def test_a_class_that_cannot_be_made_fails(deepstack_contract: DeepstackContract, in_worker: bool) -> None:
    made = f"{MODULE}:ExitsAtOnce" if in_worker else misbehaving_buffers.ExitsAtOnce
    with pytest.raises(Failed, match="cannot be made with .*SystemExit"):
        deepstack_contract(made, traces=TRACES)


def test_a_method_that_ends_the_process_is_a_broken_rule_in_a_worker(
    deepstack_contract: DeepstackContract,
) -> None:
    with pytest.raises(Failed) as caught:
        deepstack_contract(misbehaving("Leaves", "get 9"), traces=TRACES)
    assert "  broken: R2 boundary: " in str(caught.value)
    assert "exited with 0" in str(caught.value)


def test_a_good_buffer_passes_in_a_worker(deepstack_contract: DeepstackContract) -> None:
    verdicts = deepstack_contract("deepstack_harness.models.reference:ReferenceBuffer", traces=TRACES)
    assert verdicts.kept


@pytest.mark.parametrize("name", ["no_such_module:Buffer", f"{MODULE}:NoSuch", "nonsense"])
def test_a_name_that_leads_nowhere_fails(deepstack_contract: DeepstackContract, name: str) -> None:
    with pytest.raises(Failed):
        deepstack_contract(name, traces=TRACES)


@pytest.mark.slow  # 2 s
def test_a_module_that_ends_its_worker_fails_and_is_not_skipped(
    deepstack_contract: DeepstackContract, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "ending.py").write_text("import os\nos._exit(0)\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(Failed, match="loading ending:Buffer: exited with 0"):
        deepstack_contract("ending:Buffer", traces=TRACES)
