"""A hunt in a process of its own: what ends the process is a finding, and what was found stays."""

import json
from pathlib import Path

import pytest

from cases.selftest.fuzzing.hunting import campaign
from deepstack_harness.contract.trace import Trace
from deepstack_harness.errors import UsageError
from deepstack_harness.fuzzing.campaign import RUN, Campaign, Hunted, HuntLimits, read_journal, start
from deepstack_harness.fuzzing.finding import Finding, FindingKind
from deepstack_harness.fuzzing.hunt import Progress
from deepstack_harness.fuzzing.request import Asked
from deepstack_harness.fuzzing.worker_process import carry_on

PR43617 = Asked(revision="pr43617")


class Killed(Exception):
    """The end of the command."""


def nothing(progress: Progress, findings: list[Finding]) -> None:
    pass


def run(one: Campaign) -> Hunted:
    return carry_on(one, start(one), nothing)


def test_a_crash_is_a_finding_and_the_run_goes_on(tmp_path: Path) -> None:
    done = run(campaign("Crashes", tmp_path, 50))
    assert {finding.kind for finding in done.findings} == {FindingKind.CRASH}
    assert len(Trace.parse(done.findings[0].trace).steps) <= 2
    assert done.rounds == len(done.findings) + 1
    assert done.progress.examples == 50


@pytest.mark.slow
@pytest.mark.parametrize(
    ("buffer", "kind"),
    [("Hangs", FindingKind.HANG), ("EatsMemory", FindingKind.MEMORY), ("Floods", FindingKind.OUTPUT)],
)
def test_whatever_ends_a_process_is_a_finding_of_its_kind(
    tmp_path: Path, buffer: str, kind: FindingKind
) -> None:
    done = run(campaign(buffer, tmp_path, 40))
    assert {finding.kind for finding in done.findings} == {kind}
    assert done.findings[0].trace.count(";") <= 3
    assert done.complete


def test_a_run_that_is_killed_keeps_its_findings_and_goes_on(tmp_path: Path) -> None:
    one = Campaign(PR43617, tmp_path, 60)

    def kill(progress: Progress, findings: list[Finding]) -> None:
        if findings:
            raise Killed

    with pytest.raises(Killed):
        carry_on(one, start(one), kill)
    kept = read_journal(tmp_path)
    resumed = start(one)
    assert kept
    assert resumed.resumed == len(kept)
    done = carry_on(one, resumed, nothing)
    assert done.findings[: len(kept)] == kept
    assert len(done.findings) > len(kept)
    assert done.progress.examples == one.examples
    # What is complete is begun anew: the same command gives the same findings.
    assert start(one).findings == []


def test_a_folder_of_another_run_is_refused(tmp_path: Path) -> None:
    (tmp_path / RUN).write_text(json.dumps({"campaign": {}, "finished": False}))
    with pytest.raises(UsageError, match="unfinished run of something else"):
        start(Campaign(PR43617, tmp_path, 10))
    (tmp_path / RUN).write_text("nothing")
    with pytest.raises(UsageError, match="not what a fuzz run writes"):
        start(Campaign(PR43617, tmp_path, 10))


@pytest.mark.slow
def test_what_the_process_cannot_do_is_said_as_every_command_says_it(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="unknown revision 'nobody'"):
        run(Campaign(Asked(revision="nobody"), tmp_path, 10))


@pytest.mark.slow
def test_time_that_is_up_leaves_examples_for_later(tmp_path: Path) -> None:
    one = Campaign(Asked(revision="reference"), tmp_path, 10**6, limits=HuntLimits(seconds=0.1))
    done = run(one)
    assert not done.complete
    assert 0 < done.progress.examples < 10**6
    assert start(one).progress.examples == done.progress.examples
