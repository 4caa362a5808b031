"""Specimens: planted faults and right twins, each under every detector, and all of them find the same."""

import subprocess
import sys
from collections.abc import Hashable
from itertools import chain

import pytest
import torch

from cases.by_day import by_day
from cases.selftest.models.checking import CAUGHT_BY
from cases.specimens import buffers, kit
from cases.specimens.collection import PROGRAMS
from cases.specimens.kit import Specimen
from cases.specimens.playing import UNSEEN, findings, watch_replays

GROUP = pytest.mark.xdist_group("eager")


def kind(specimen: Specimen) -> Hashable:
    """Return the collection, promise and first arm; a day plays some of each."""
    return specimen.source, specimen.breaks, specimen.arms[0]


def fits(found: dict[str, str], specimen: Specimen) -> bool:
    words = {"found"} if specimen.breaks else {"right"}
    return all(word in words or word.startswith("unseen") for word in found.values())


# Inductor takes 7 s to start in a process: tests that need it share one.
GENERATED = [program for program in PROGRAMS.values() if program.generates_code]
INTERPRETED = [program for program in PROGRAMS.values() if not program.generates_code]


@pytest.mark.parametrize(
    "specimen",
    [
        *(
            parameter._replace(marks=[GROUP, *parameter.marks])
            for parameter in by_day(INTERPRETED, kind, count=5)
        ),
        # 5 s for one; by day these detectors see other backends, and 43602 is compiled by Inductor.
        *(
            pytest.param(program, marks=[pytest.mark.xdist_group("inductor"), pytest.mark.slow])
            for program in GENERATED
        ),
    ],
    ids=lambda each: each.name,
)
def test_all_detectors_find_the_fault_of_a_program_and_no_other(specimen: Specimen) -> None:
    found = dict(findings(specimen))
    assert fits(found, specimen), found
    assert len(found) > 1 or not specimen.kept_by_guards


OURS = [
    pytest.param(specimen, marks=[pytest.mark.slow] if specimen.generates_code else [])
    for specimen in sorted(
        chain(kit.regions(), kit.histories()), key=lambda each: any("aot" in arm for arm in each.arms)
    )
]
"""Data of the package; kernels take 10 s to compile, and a region under AOTAutograd as well."""


@GROUP
@pytest.mark.parametrize(
    "specimen",
    by_day(OURS, lambda each: each.values[0].breaks),
    ids=lambda each: each.name,
)
def test_all_detectors_find_what_a_region_of_ours_states(specimen: Specimen) -> None:
    found = dict(findings(specimen))
    assert fits(found, specimen), found


BUFFERS = [*buffers.buffers()]
WRONG = [buffer for buffer in BUFFERS if buffer.breaks]
MEASURED = [
    buffer for buffer in WRONG if CAUGHT_BY.keys() & {f"mutant {buffer.name}", f"written {buffer.name}"}
]
"""Buffers that only unusual inputs show wrong: the trace that does is known, and takes 0.1 s."""


@pytest.mark.parametrize(
    "specimen",
    [*MEASURED, *by_day((buffer for buffer in WRONG if buffer not in MEASURED), kind)],
    ids=lambda buffer: buffer.name,
)
def test_check_finds_the_fault_of_a_buffer(specimen: Specimen) -> None:
    assert buffers.trace_that_shows(specimen) is not None


@pytest.mark.parametrize(
    "specimen",
    by_day(BUFFERS, lambda buffer: (bool(buffer.breaks), buffer.source)),  # 1 s each
    ids=lambda buffer: buffer.name,
)
def test_an_audit_of_its_copy_finds_what_check_finds_of_a_buffer(specimen: Specimen) -> None:
    found = dict(buffers.findings(specimen))
    assert fits(found, specimen), found


def test_each_buffer_that_an_audit_does_not_find_is_a_specimen() -> None:
    assert set(buffers.UNSEEN_BY_AUDIT) <= {buffer.name for buffer in WRONG}


@pytest.mark.gpu
@pytest.mark.parametrize("name", [name for name, program in PROGRAMS.items() if program.fact], ids=str)
def test_graphs_of_a_gpu_are_watched_as_those_of_a_cpu_are(name: str) -> None:
    with torch.device("cuda"):
        decisive = watch_replays(PROGRAMS[name], device="cuda").decisive
    assert any(PROGRAMS[name].names in guard.name for guard in decisive)


def test_each_fault_that_a_detector_does_not_see_is_one_of_a_specimen() -> None:
    assert UNSEEN.keys() <= {specimen.name for specimen in chain(PROGRAMS.values(), kit.regions())}


@pytest.mark.slow  # 6 s
def test_a_watch_of_another_process_sees_a_specimen_that_runs_as_a_program() -> None:
    watched = [sys.executable, "-m", "cases.specimens", "optional_tensor"]
    command = [sys.executable, "-m", "deepstack_harness", "watch", "--", *watched]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "`mask` was None when compiled" in done.stdout + done.stderr
