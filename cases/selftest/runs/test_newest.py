"""The newest releases of a night: a class that cannot be called any more is a finding with its place."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from cases.selftest.audit.written_verdicts import audited, row
from cases.selftest.engines.synthetic_omni import READS_ONLY, REST, THINKER, omni_files
from cases.selftest.engines.synthetic_vllm import write
from deepstack_harness.audit.account import Account, UnjudgedCarrier
from deepstack_harness.audit.audited_source import AuditedSource
from deepstack_harness.contract.rules import Rule
from deepstack_harness.contract.verdicts import Verdict
from deepstack_harness.engines.known import RELEASED
from deepstack_harness.errors import ExitCode, MachineError, Reason, UsageError
from deepstack_harness.runs.newest import audit_newest, main
from deepstack_harness.sources.source import KnownPackage

Capture = pytest.CaptureFixture[str]
PLACE = "vllm/models/qwen3_vl.py:12"
KNOWN = row(Rule.STRUCTURE, Verdict.XFAIL, "default")
DRIVEN = replace(audited(KNOWN), places={"Qwen3VL": PLACE, "graphs of Qwen3VL": "vllm/runner.py:7"})
FILE = PLACE.partition(":")[0]
REFUSED = UnjudgedCarrier("Qwen3VL", FILE, 20, "no x")
LOST = f"no longer judged: Qwen3VL, {PLACE} of vllm 0.22.1"
NO_GRAPHS = Reason("no replay")
LOST_GRAPHS = "no longer judged: graphs of Qwen3VL, vllm/runner.py:7 of vllm 0.22.1"
ONLY_VLLM = "the newest {} cannot be looked up: no network"


def newest(package: KnownPackage) -> str:
    if package.name != "vllm":
        raise MachineError(ONLY_VLLM.format(package.name))
    return "vllm==0.22.1"


def offline(package: KnownPackage) -> str:
    raise MachineError(ONLY_VLLM.format(package.name))


def refuse(text: str) -> AuditedSource:
    raise UsageError(f"{text} has no class with a deepstack buffer")


Night = Callable[..., tuple[ExitCode, list[str]]]


@pytest.fixture
def night(tmp_path: Path, capsys: Capture) -> Night:
    """Run one night after the other over the results of `audit`."""

    def run(
        audited_source: AuditedSource | Callable[[str], AuditedSource],
        newest: Callable[[KnownPackage], str] = newest,
    ) -> tuple[ExitCode, list[str]]:
        folder = tmp_path / str(len(list(tmp_path.iterdir())))
        audit = audited_source if callable(audited_source) else lambda _: audited_source
        code = audit_newest(folder, tmp_path, newest, audit)
        return code, capsys.readouterr().out.splitlines()

    return run


def lost(sentences: list[str]) -> list[str]:
    return [line for line in sentences if line.startswith("no longer judged: ")]


def test_nights_that_run_the_same_hold(night: Night) -> None:
    for _ in range(2):
        code, printed = night(DRIVEN)
        assert (code, lost(printed)) == (ExitCode.HOLDS, [])
        assert printed[-1] == f"1 of {len(RELEASED)} engines audited, 0 unexpected verdicts"


def test_a_refused_class_is_reported_with_its_place(night: Night) -> None:
    night(DRIVEN)
    code, printed = night(
        replace(DRIVEN, label="vllm 0.22.2", account=Account(unjudged=(REFUSED,)), places={}, classes=())
    )
    assert code is ExitCode.BROKEN
    assert lost(printed)[0] == "no longer judged: Qwen3VL, vllm/models/qwen3_vl.py:20: no x (vllm 0.22.2)"
    assert printed[-2:] == lost(printed)


def test_a_reason_without_a_line_is_reported_with_the_line_before(night: Night) -> None:
    night(DRIVEN)
    without = replace(REFUSED, line=None, why="no list of rows")
    code, printed = night(
        replace(DRIVEN, account=Account(unjudged=(without,)), places={}, no_graphs=(NO_GRAPHS,))
    )
    assert code is ExitCode.BROKEN
    assert lost(printed) == [
        f"{LOST}: {FILE}: no list of rows (vllm 0.22.1)",
        f"{LOST_GRAPHS}: its graphs cannot be replayed: {NO_GRAPHS} (vllm 0.22.1)",
    ]


NEW = UnjudgedCarrier("Fresh", "vllm/models/fresh.py", 7, "it was not called")


def test_a_carrier_that_is_new_is_red_unless_it_is_known(night: Night, tmp_path: Path) -> None:
    night(DRIVEN)
    code, printed = night(replace(DRIVEN, account=Account(unjudged=(NEW,))))
    assert code is ExitCode.BROKEN
    assert "vllm 0.22.1: not judged: Fresh: vllm/models/fresh.py:7: it was not called" in printed
    *_, written = (tmp_path / "1" / "newest.jsonl").read_text().splitlines()
    assert [json.loads(written)[name] for name in ("model_class", "rule", "verdict")] == [
        "Fresh",
        None,
        "ERROR",
    ]
    known_carrier = replace(NEW, reason="no encoder writes it")
    assert night(replace(DRIVEN, account=Account(unjudged=(known_carrier,))))[0] is ExitCode.HOLDS


def test_a_known_carrier_that_ran_before_is_red(night: Night) -> None:
    night(DRIVEN)
    known_carrier = replace(REFUSED, reason="no encoder writes it")
    code, printed = night(replace(DRIVEN, account=Account(unjudged=(known_carrier,)), places={}))
    assert (code, len(lost(printed))) == (ExitCode.BROKEN, 2)


def test_a_known_carrier_that_can_be_run_is_red(night: Night) -> None:
    code, printed = night(replace(DRIVEN, account=Account(outdated=("Fresh",))))
    assert code is ExitCode.BROKEN
    assert "vllm 0.22.1: known as not judged, and judged: Fresh" in printed


def test_a_vanished_class_is_reported_with_its_former_place(night: Night) -> None:
    night(DRIVEN)
    _, printed = night(replace(DRIVEN, label="vllm 0.22.2", places={"Other": "a.py:1"}))
    assert lost(printed)[0] == f"{LOST}: nothing of this name can be judged now (vllm 0.22.2)"


def test_a_release_of_which_nothing_can_be_judged_is_no_silence(night: Night) -> None:
    code, printed = night(refuse)
    assert (code, lost(printed)) == (ExitCode.HOLDS, [])
    assert printed[0] == "vllm==0.22.1: not judged: vllm==0.22.1 has no class with a deepstack buffer"
    night(DRIVEN)
    code, printed = night(refuse)
    assert code is ExitCode.BROKEN
    assert lost(printed)[0].startswith(
        f"no longer judged: Qwen3VL, {PLACE} of vllm 0.22.1: vllm==0.22.1 has no class"
    )


def test_a_night_without_a_network_is_reported_and_does_not_forget(night: Night) -> None:
    night(DRIVEN)
    code, printed = night(DRIVEN, offline)
    assert code is ExitCode.HOLDS
    assert printed[0] == "vllm: not audited: the newest vllm cannot be looked up: no network"
    code, printed = night(replace(DRIVEN, places={}))
    assert (code, len(lost(printed))) == (ExitCode.BROKEN, 2)


def test_an_unexpected_verdict_is_red_and_changes_are_reported(night: Night, tmp_path: Path) -> None:
    night(DRIVEN)
    new = replace(
        audited(row(Rule.FRESHNESS, Verdict.FAIL, "latent")), label="vllm 0.22.2", places=DRIVEN.places
    )
    code, printed = night(new)
    assert code is ExitCode.BROKEN
    assert any(line.startswith("vllm 0.22.2: broken since vllm 0.22.1: Qwen3VL R3") for line in printed)
    assert any(line.startswith("vllm 0.22.2: no longer broken: Qwen3VL R1") for line in printed)
    assert '"R3"' in (tmp_path / "1" / "newest.jsonl").read_text()


def test_a_record_that_is_torn_is_none(night: Night, tmp_path: Path) -> None:
    night(DRIVEN)
    (tmp_path / "0" / "newest.json").write_text("{")
    code, printed = night(replace(DRIVEN, places={}))
    assert (code, lost(printed)) == (ExitCode.HOLDS, [])


def test_both_folders_have_to_be_named() -> None:
    with pytest.raises(UsageError, match="name two folders"):
        main(["one"])


@pytest.mark.slow
def test_a_changed_source_is_reported_with_file_and_line(tmp_path: Path, capsys: Capture) -> None:
    lacking = REST.replace("        ours.zero_()", "        no_such_import(ours)")
    changed = dict(omni_files(READS_ONLY, rest=lacking, version="0.31.0"))
    changed[THINKER] = f"from vllm.elsewhere import no_such_import\n{changed[THINKER]}"
    for name, files in (("first", omni_files(READS_ONLY)), ("second", changed)):
        root = str(write(tmp_path / "sources" / name, files))

        def only_omni(package: KnownPackage, root: str = root) -> str:
            return root if package.name == "vllm-omni" else newest(replace(package, name="other"))

        code = audit_newest(tmp_path / "nights" / name, tmp_path / "nights", only_omni)
    assert code is ExitCode.BROKEN
    (output,) = lost(capsys.readouterr().out.splitlines())
    name = "Qwen3OmniMoeThinkerForConditionalGeneration"
    assert output.startswith(f"no longer judged: {name}, {THINKER}:")
    assert "no_such_import" in output
    assert "(0.31.0)" in output
