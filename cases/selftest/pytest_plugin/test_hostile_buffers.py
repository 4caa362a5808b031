"""The contract fixture fails for buffers that end or excuse themselves; it is never skipped or ended."""

from pathlib import Path

import pytest

from cases.selftest.pytest_plugin import hostile_buffers
from deepstack_harness.pytest_plugin.contract_fixture import DeepstackContract

Failed, Skipped = pytest.fail.Exception, pytest.skip.Exception
MODULE = "cases.selftest.pytest_plugin.hostile_buffers"
TRACES = ["cap 16: set 9; get 9"]


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("Exits", "SystemExit"), ("EndsTheGenerator", "GeneratorExit"), ("RaisesItsOwn", "Own"),
        ("BlamesTheMachine", "MachineError"), ("SaysNotMeasured", "NotMeasured"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("in_worker", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_an_end_of_a_method_is_a_broken_rule(
    deepstack_contract: DeepstackContract, name: str, said: str, in_worker: bool
) -> None:
    with pytest.raises(Failed) as caught:
        deepstack_contract(f"{MODULE}:{name}" if in_worker else getattr(hostile_buffers, name), traces=TRACES)
    assert "  broken: R2 boundary: " in str(caught.value)
    assert said in str(caught.value)


@pytest.mark.parametrize("in_worker", [False, True])
def test_a_class_that_cannot_be_made_fails(deepstack_contract: DeepstackContract, in_worker: bool) -> None:
    made = f"{MODULE}:ExitsAtOnce" if in_worker else hostile_buffers.ExitsAtOnce
    with pytest.raises(Failed, match="cannot be made with .*SystemExit"):
        deepstack_contract(made, traces=TRACES)


def test_a_method_that_ends_the_process_is_a_broken_rule_in_a_worker(
    deepstack_contract: DeepstackContract,
) -> None:
    with pytest.raises(Failed) as caught:
        deepstack_contract(f"{MODULE}:Dies", traces=TRACES)
    assert "  broken: R2 boundary: " in str(caught.value)
    assert "exited with 0" in str(caught.value)


def test_a_good_buffer_passes_in_a_worker(deepstack_contract: DeepstackContract) -> None:
    standing = deepstack_contract("deepstack_harness.revisions.reference:ReferenceBuffer", traces=TRACES)
    assert standing.kept


@pytest.mark.parametrize("name", ["no_such_module:Buffer", f"{MODULE}:NoSuch", "nonsense"])
def test_a_name_that_leads_nowhere_fails(deepstack_contract: DeepstackContract, name: str) -> None:
    with pytest.raises(Failed):
        deepstack_contract(name, traces=TRACES)


def test_a_module_that_ends_its_worker_fails_and_is_not_skipped(
    deepstack_contract: DeepstackContract, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "ending.py").write_text("import os\nos._exit(0)\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(Failed, match="loading ending:Buffer: exited with 0"):
        deepstack_contract("ending:Buffer", traces=TRACES)
