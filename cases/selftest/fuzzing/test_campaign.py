"""A campaign: what ends a worker is a finding, what was found stays, and what was killed goes on."""

import json
from pathlib import Path

import pytest

from cases.selftest.fuzzing.hunting import campaign
from deepstack_harness.contract.trace import Trace
from deepstack_harness.errors import UsageError
from deepstack_harness.fuzzing.campaign import (
    RUN,
    Campaign,
    Hunted,
    HuntLimits,
    carry_on,
    read_journal,
    start,
)
from deepstack_harness.fuzzing.finding import Finding
from deepstack_harness.fuzzing.hunt import MOST_DEATHS
from deepstack_harness.fuzzing.player import FindingKind
from deepstack_harness.fuzzing.request import FuzzRequest
from deepstack_harness.fuzzing.watch import Progress

PR43617 = FuzzRequest(revision="pr43617")


class Killed(Exception):
    """The end of the command."""


def nothing(progress: Progress, findings: list[Finding]) -> None:
    pass


def run(one: Campaign) -> Hunted:
    return carry_on(one, start(one), nothing)


@pytest.mark.slow
def test_a_crash_is_a_finding_and_a_hunt_that_only_crashes_is_given_up(tmp_path: Path) -> None:
    done = run(campaign("Crashes", tmp_path, 10**4))
    assert {finding.kind for finding in done.findings} == {FindingKind.CRASH}
    assert len(Trace.parse(done.findings[0].trace).steps) <= 3
    assert done.progress.deaths == MOST_DEATHS
    assert not done.complete


@pytest.mark.slow
def test_a_hang_is_shrunk_like_any_other_finding(tmp_path: Path) -> None:
    done = run(campaign("Hangs", tmp_path, 4, HuntLimits(step_s=1)))
    assert {finding.kind for finding in done.findings} == {FindingKind.HANG}
    assert len(Trace.parse(done.findings[0].trace).steps) <= 3


@pytest.mark.slow  # 13 s
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
    with pytest.raises(UsageError, match="unfinished run with other options"):
        start(Campaign(PR43617, tmp_path, 10))
    (tmp_path / RUN).write_text("nothing")
    with pytest.raises(UsageError, match="not written by a fuzz run"):
        start(Campaign(PR43617, tmp_path, 10))


@pytest.mark.slow
def test_what_the_process_cannot_do_is_said_as_every_command_says_it(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="unknown revision 'nobody'"):
        run(Campaign(FuzzRequest(revision="nobody"), tmp_path, 10))


@pytest.mark.slow
def test_time_that_is_up_leaves_examples_for_later(tmp_path: Path) -> None:
    one = Campaign(FuzzRequest(revision="reference"), tmp_path, 10**6, limits=HuntLimits(seconds=0.1))
    done = run(one)
    assert not done.complete
    assert 0 < done.progress.examples < 10**6
    assert start(one).progress.examples == done.progress.examples
