"""A hunt that was interrupted goes on with what its folder keeps, in the sandbox that its code needs."""

import json
from contextlib import ExitStack
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from cases.selftest.binding.synthetic_vllm import Vllm
from deepstack_harness.contract.rules import Rule
from deepstack_harness.errors import UsageError
from deepstack_harness.fuzzing import campaign, finding_files
from deepstack_harness.fuzzing.campaign import JOURNAL, RUN, Campaign, start
from deepstack_harness.fuzzing.finding import Finding
from deepstack_harness.fuzzing.player import FindingKind
from deepstack_harness.fuzzing.request import FuzzRequest
from deepstack_harness.fuzzing.watch import Progress
from deepstack_harness.scripts.findings import Whose
from deepstack_harness.workers.profiles import COMPILE, CONTRACT, SandboxProfile

FINDING = Finding(
    FindingKind.RULE, Rule.R5, "cap 16: set 9; clear 9; get 16", "rows", "row 0 was read", "reference",
    "eager", "qwen3_vl", 3, 0.5, 0,
)  # fmt: skip


def test_an_interrupted_run_goes_on_with_its_findings_and_its_count(tmp_path: Path) -> None:
    asked = Campaign(FuzzRequest(revision="pr43617"), tmp_path, 100)
    told = {"campaign": asked.describe(), "finished": False, "progress": asdict(Progress(examples=40))}
    (tmp_path / RUN).write_text(json.dumps(told))
    torn = FINDING.to_json()[:30]
    (tmp_path / JOURNAL).write_text(f"{FINDING.to_json()}\n{torn}")
    begun = start(asked)
    assert (begun.findings, begun.progress.examples, begun.resumed) == ([FINDING], 40, 1)
    with pytest.raises(UsageError, match="has an unfinished run with other options"):
        start(replace(asked, seed=1))
    (tmp_path / RUN).write_text(json.dumps({**told, "finished": True}))
    assert start(asked).findings == []
    assert not (tmp_path / JOURNAL).exists()


def test_a_folder_that_cannot_be_made_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="cannot keep findings in .*/file/run': Not a directory"):
        start(Campaign(FuzzRequest(), tmp_path / "file" / "run", 100))


@pytest.mark.parametrize(
    ("asked", "profile"),
    [
        (FuzzRequest(revision="pr43617", arm="inductor/drop_all"), None),
        (FuzzRequest(buffer="mine:Mine"), COMPILE),
        (FuzzRequest(source="TREE"), CONTRACT),
        (FuzzRequest(source="TREE", arm="eager/drop_all"), COMPILE),
    ],
)
def test_code_of_others_runs_in_a_sandbox(
    asked: FuzzRequest, profile: SandboxProfile | None, tmp_path: Path
) -> None:
    if asked.source:
        asked = replace(asked, source=str(Vllm().tree(tmp_path)))
    assert campaign._sandbox(asked) is profile
    with ExitStack() as stack:
        assert campaign._environment(asked, stack) is None


@pytest.mark.parametrize(
    "asked", [FuzzRequest(arm="eager/drop_all"), FuzzRequest(revision="reference@state_in_trace")]
)
def test_a_finding_that_needs_a_decoder_has_no_program(asked: FuzzRequest) -> None:
    assert finding_files.script_of(FINDING, asked) is None
    assert finding_files.script_of(replace(FINDING, rule=None), FuzzRequest()) is None
    program = finding_files.script_of(FINDING, FuzzRequest(revision="reference"))
    assert program is not None
    compile(program, "found.py", "exec")


def test_a_program_is_told_the_class_of_a_source_and_its_member(tmp_path: Path) -> None:
    found = replace(FINDING, model_class="Qwen3VLForConditionalGeneration")
    whose = finding_files._whose(found, FuzzRequest(source=str(Vllm().tree(tmp_path))))
    assert whose == Whose("Qwen3VLForConditionalGeneration", "vllm/model_executor/models/qwen3_vl.py")
