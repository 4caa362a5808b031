"""The arm `h200`: a planted fault in interpreted code is named first by its rule, right code by none."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import msgspec
import pytest
import torch

from deepstack_harness.catalogue.buffers import buffer_named
from deepstack_harness.compile import interpreted
from deepstack_harness.compile.interpreted import InterpretedSession
from deepstack_harness.compile.torch_compat import targets
from deepstack_harness.compile.torch_compat.targets import ENVIRONMENT, why_not
from deepstack_harness.contract.arm import ArmSpec
from deepstack_harness.contract.case import Case, registered
from deepstack_harness.contract.facts import AccessFacts
from deepstack_harness.contract.oracles.compiler import judge_step
from deepstack_harness.contract.protocols import Profile
from deepstack_harness.contract.rules import Rule
from deepstack_harness.contract.trace import Trace
from deepstack_harness.contract.verdicts import Judgement, Verdict
from deepstack_harness.errors import MachineError, StepUnavailable, UsageError
from deepstack_harness.play.play_case import play_interpreted
from deepstack_harness.workers.outcomes import value_of
from deepstack_harness.workers.worker import Worker

WHY_NOT = why_not()
pytestmark = pytest.mark.skipif(bool(WHY_NOT), reason=WHY_NOT)
CHILD = "cases.selftest.compile.interpreted_child"
TOKENS = 17
DROP_ALL = ArmSpec.parse("h200/drop_all")


@pytest.fixture(scope="module")
def worker() -> Iterator[Worker]:
    with Worker(environment=ENVIRONMENT) as started:
        yield started


def test_one_graph_serves_every_count_and_touches_only_its_rows(worker: Worker) -> None:
    """The daily case: one worker, one graph."""
    found = value_of(worker.call(f"{CHILD}:right"), "interpreting")
    facts = msgspec.convert(found["facts"], AccessFacts)
    assert (found["graphs"], found["checked"]) == (1, 0)
    assert found["apart"] < 1e-6
    read = {access.tensor: (access.read, access.elements_read) for access in facts.accesses if access.read}
    assert read == {
        "hidden": (((0, 17),), 17 * 8), "payload[0]": (((0, 17),), 17 * 8), "weight": (((0, 1),), 8),
    }  # fmt: skip
    (written,) = [access for access in facts.accesses if access.written]
    assert (written.tensor, written.shape, written.written) == ("buffer 0", (17, 8), ((0, 17),))
    assert (facts.launches, facts.share, facts.unwritten_rows) == (1, 1.0, 0)
    assert {judgement.rule: judgement.verdict for judgement in judge_step(facts, TOKENS)} == {
        Rule.WORK: Verdict.PASS, Rule.MEMORY: Verdict.PASS,
    }  # fmt: skip


@pytest.mark.slow  # 6 s
def test_guards_that_are_not_dropped_are_checked_and_hold(worker: Worker) -> None:
    found = value_of(worker.call(f"{CHILD}:guards_kept"), "interpreting")
    assert [(run["graphs"], run["apart"] < 1e-6) for run in found.values()] == [(1, True)] * 2
    assert found["stock"]["checked"] > found["shape_env_only"]["checked"] > 0
    facts = msgspec.convert(found["stock"]["facts"], AccessFacts)
    read = {access.tensor: access.read for access in facts.accesses if access.read}
    assert read == {"hidden": ((0, 17),), "payload[0]": ((0, 17),), "weight": ((0, 1),)}


@pytest.mark.slow  # attention and its patterns take 3 s
def test_a_step_without_tokens_has_a_graph_of_its_own_where_guards_are_checked(worker: Worker) -> None:
    found = value_of(worker.call(f"{CHILD}:no_tokens"), "interpreting")
    assert (found["graphs"], found["apart"] < 1e-6) == (2, True)


def test_a_graph_with_unbacked_sizes_serves_every_count(worker: Worker) -> None:
    found = value_of(worker.call(f"{CHILD}:unbacked"), "interpreting")
    assert (found["graphs"], found["apart"] < 1e-6) == (1, True)
    facts = msgspec.convert(found["facts"], AccessFacts)
    assert {access.read for access in facts.accesses if access.tensor == "hidden"} == {((0, 17),)}


@pytest.mark.slow
def test_a_payload_that_the_module_stores_is_read_where_it_was_written_last(worker: Worker) -> None:
    found = value_of(worker.call(f"{CHILD}:kept_in_the_module"), "interpreting")
    facts = msgspec.convert(found["facts"], AccessFacts)
    assert (found["graphs"], found["apart"] < 1e-5, found["effect"] > 1) == (1, True, True)
    assert {access.read for access in facts.accesses if access.tensor == "level"} == {((0, 17),)}


@pytest.mark.slow
def test_what_cannot_be_interpreted_makes_the_step_unavailable(worker: Worker) -> None:
    said = value_of(worker.call(f"{CHILD}:unavailable"), "interpreting")
    assert said.startswith("kernel triton_poi_fused_")
    assert said.endswith(" is a template")


@pytest.mark.slow
def test_sessions_are_open_one_at_a_time(worker: Worker) -> None:
    assert "close the session" in value_of(worker.call(f"{CHILD}:two_sessions"), "opening")


@pytest.fixture(scope="module")
def faults(worker: Worker) -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = value_of(worker.call(f"{CHILD}:faults"), "interpreting")
    return found


def judged(found: dict[str, Any]) -> dict[Rule, Judgement]:
    facts = msgspec.convert(found["facts"], AccessFacts)
    return {judgement.rule: judgement for judgement in judge_step(facts, TOKENS)}


def broken(found: dict[str, Any]) -> set[Rule]:
    return {rule for rule, judgement in judged(found).items() if judgement.verdict is not Verdict.PASS}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "rule", "words"),
    [
        ("short", Rule.MEMORY, ["payload[0] (in_ptr1), which has 512: row 16 of 16, outside of any memory"]),
        (
            "short view",
            Rule.MEMORY,
            ["payload[0] (in_ptr1)", "row 16 of 16, in the storage of which it is a view"],
        ),
        ("capacity", Rule.WORK, ["rows 0..63 of payload[0] (in_"]),
        ("index", Rule.MEMORY, ["of payload[0] (in_ptr", "row 70 of 64, outside of any memory"]),
        ("left out", Rule.MEMORY, ["17 rows depend on", "read buffer 0 (in_"]),
    ],
)
def test_a_planted_fault_breaks_its_rule_and_its_absence_none(
    faults: dict[str, dict[str, Any]], name: str, rule: Rule, words: list[str]
) -> None:
    judgement = judged(faults[name])[rule]
    assert broken(faults[name]) == {rule}, judgement
    assert judgement.verdict is Verdict.FAIL
    assert "kernel triton_" in judgement.detail
    for part in words:
        assert part in judgement.detail, judgement.detail
    good = faults[f"{name.partition(' view')[0]}, right"]
    assert broken(good) == set()
    assert good["apart"] < 1e-5


@pytest.mark.slow
def test_the_configurations_of_generated_kernels_agree(faults: dict[str, dict[str, Any]]) -> None:
    facts = msgspec.convert(faults["left out, right"]["facts"], AccessFacts)
    assert facts.compared >= 1
    assert judged(faults["left out, right"])[Rule.OUTPUT].verdict is Verdict.PASS


@pytest.mark.parametrize(
    ("torch_version", "triton_version", "words"),
    [
        (None, "3.7.1", "needs torch, which is not installed"),
        ("2.13.0", None, r"needs the package triton 3.7: .* 'triton==3.7.\*'"),
        ("3.0.0", None, "needs the package triton: .* 'triton'"),
        ("2.9.0", "3.5.0", "torch 2.9.0 with triton 3.5.0 is older .* known are torch 2.10 with triton 3.6"),
        ("2.13.0", "3.5.1", "torch 2.13.0 with triton 3.5.1 is older"),
    ],
)
def test_a_torch_or_triton_that_does_not_fit_is_refused_with_one_sentence(
    monkeypatch: pytest.MonkeyPatch, torch_version: str | None, triton_version: str | None, words: str
) -> None:
    monkeypatch.setattr(targets, "installed_version", {"torch": torch_version, "triton": triton_version}.get)
    case = Case(
        "qwen3_vl", registered("reference"), Trace.parse("cap 4: profile 4"), ArmSpec.parse("h200/drop_all")
    )
    with pytest.raises(MachineError, match=words):
        play_interpreted(case)


@pytest.mark.parametrize(
    ("torch_version", "triton_version", "doubtful"),
    [
        ("2.13.0+cpu", "3.7.1", False), ("2.15.0", "3.9.0", False), ("2.13.0", "3.6.0", True),
        ("2.16.0a0+git", "4.0.0", True),
    ],
)  # fmt: skip
def test_a_pair_that_was_never_checked_is_tried_and_reported(
    monkeypatch: pytest.MonkeyPatch, torch_version: str, triton_version: str, doubtful: bool
) -> None:
    monkeypatch.setattr(targets, "installed_version", {"torch": torch_version, "triton": triton_version}.get)
    assert why_not() == ""
    doubt = f"torch {torch_version} with triton {triton_version} was never checked: do not rely on a figure"
    assert targets.unchecked().startswith(doubt) is doubtful
    assert bool(targets.unchecked("2.13.0", "3.8.0")) is True
    assert targets.unchecked("2.14.1", "3.8.0") == ""


def test_a_name_that_is_not_in_an_unknown_torch_is_refused_with_the_pairs_that_have_it() -> None:
    absent = r"lacks a name .*cannot import name 'gone' .*torch 2.15 with triton 3.9"
    with pytest.raises(MachineError, match=absent), targets.naming_what_moved():
        from torch.fx import gone  # type: ignore[attr-defined]  # noqa: F401
    moved = r"lacks a name .*has no attribute 'of_old'"
    with pytest.raises(MachineError, match=moved), targets.naming_what_moved():
        torch.of_old  # type: ignore[attr-defined]  # noqa: B018


def test_a_buffer_of_this_process_and_another_device_are_refused() -> None:
    case = Case(
        "qwen3_vl", registered("reference"), Trace.parse("cap 4: profile 4"), ArmSpec.parse("h200/drop_all")
    )
    with pytest.raises(UsageError, match="'reference' cannot be played under arm h200/drop_all"):
        play_interpreted(case, {case.buffer: buffer_named("reference")})
    with pytest.raises(UsageError, match="interprets on the CPU: leave --device cuda out"):
        play_interpreted(replace(case, device="cuda"))


def test_a_process_that_was_not_started_for_it_is_refused() -> None:
    profile = Profile(4, 4, 1, torch.float32, torch.device("cpu"))
    with pytest.raises(MachineError, match="needs a worker that was started for it"):
        InterpretedSession(DROP_ALL, None, profile)  # type: ignore[arg-type]


def test_no_other_device_is_interpreted_on_and_nothing_is_saved(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(interpreted, "interprets_here", lambda: True)
    monkeypatch.setattr(targets, "check_support", lambda: None)
    profile = Profile(4, 4, 1, torch.float32, torch.device("meta"))
    with pytest.raises(MachineError, match="interprets on the CPU, whatever GPU is here, not on 'meta'"):
        InterpretedSession(DROP_ALL, None, profile)  # type: ignore[arg-type]
    session = InterpretedSession.__new__(InterpretedSession)
    session._spec = DROP_ALL
    with pytest.raises(
        StepUnavailable, match=f"arm {DROP_ALL.name}: torch saves no code that is interpreted"
    ):
        session.reload()


def test_the_reason_against_a_torch_is_that_of_the_check() -> None:
    def lacks() -> None:
        raise MachineError("triton is missing")

    assert (why_not(lacks), why_not(lambda: None)) == ("triton is missing", "")
