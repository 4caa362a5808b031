"""Live faults: each has a command or a reason, and what it names is there."""

import re
import shlex
from pathlib import Path

import pytest

from deepstack_harness.catalogue.incidents import find
from deepstack_harness.catalogue.live_faults import FaultState, LiveFault, live_faults, load
from deepstack_harness.cli import build_parser
from deepstack_harness.errors import UsageError

ROOT = Path(__file__).parents[3]
FILE = """
schema_version = 1

[[fault]]
id = "F1"
package = "acme"
versions = "1.0"
title = "a title"
state = "reproduced"
seen = "run"
reach = "unknown"
incident = "43602"
commands = ["repro 43602"]
"""
each_fault = pytest.mark.parametrize("fault", live_faults(), ids=lambda fault: fault.id)


def read(folder: Path, text: str) -> LiveFault:
    path = folder / "live_faults.toml"
    path.write_text(text)
    (fault,) = load(path).fault
    return fault


def test_every_fault_that_was_read_has_a_verdict() -> None:
    names = [fault.id for fault in live_faults()]
    assert len(set(names)) == len(names)
    assert {name.partition("-")[0] for name in names} == {f"F{number}" for number in range(1, 12)}


@each_fault
def test_a_reproduced_fault_names_an_incident_and_commands_that_are_taken(fault: LiveFault) -> None:
    played = set()
    for command in fault.commands:
        words = shlex.split(command)
        build_parser(words).parse_args(words)
        assert words[0] == "repro" or words[:2] == ["audit", "--source"]
        played |= {find(words[1]).id} if words[0] == "repro" else set()
    assert (fault.incident in played) == (fault.state is FaultState.REPRODUCED)


@each_fault
def test_an_incident_that_a_reason_names_is_there(fault: LiveFault) -> None:
    for number in re.findall(r"incident (\S+)", fault.why):
        assert find(number).id == number


@pytest.mark.skipif(not (ROOT / "tox.ini").exists(), reason="needs a checkout")
def test_each_text_for_upstream_is_there_and_names_the_program_of_its_incident() -> None:
    texts = {fault.upstream: fault.incident for fault in reversed(live_faults()) if fault.upstream}
    assert len(texts) == 3
    for path, incident in texts.items():
        text = (ROOT / path).read_text()
        assert f"repro {incident} --script" in text
        assert "Not sent yet." in text
        assert "## What was run" in text


def test_an_entry_is_read_whole(tmp_path: Path) -> None:
    fault = read(tmp_path, FILE)
    assert fault.outcome == "reproduced: deepstack-harness repro 43602"
    unknown = FILE.replace('state = "reproduced"', 'state = "unknown"\nwhy = "it takes a GPU"')
    unknown = unknown.replace('commands = ["repro 43602"]\n', "")
    assert read(tmp_path, unknown).outcome == "unknown: it takes a GPU"


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ('commands = ["repro 43602"]', "", "fault F1 is reproduced: say in 'commands' and 'incident'"),
        ('incident = "43602"', "", "fault F1 is reproduced: say in 'commands' and 'incident'"),
        ('state = "reproduced"', 'state = "unknown"', "fault F1 is unknown: say why"),
        ('state = "reproduced"', 'state = "refuted"\nwhy = "seen"', "leave 'commands' out"),
        ('state = "reproduced"', 'state = "fixed"', "Invalid enum value 'fixed'"),
        ('seen = "run"', 'seen = "heard"', "Invalid enum value 'heard'"),
    ],
)
def test_an_entry_that_contradicts_itself_is_refused(tmp_path: Path, old: str, new: str, said: str) -> None:
    assert old in FILE
    with pytest.raises(UsageError, match=re.escape(said)):
        read(tmp_path, FILE.replace(old, new, 1))
