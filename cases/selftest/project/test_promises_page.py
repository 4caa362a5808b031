"""docs/reference/promises.md: each program of the page runs, and each command shows the lines below it."""

import re
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from deepstack_harness.cli.main import main
from deepstack_harness.contract.oracles.promises import judge_steps, report_lines
from deepstack_harness.contract.rules import Promise, Rule
from deepstack_harness.errors import ExitCode
from deepstack_harness.play.steps_work import run_steps
from deepstack_harness.workers.child import Channel

PAGE = Path(__file__).parents[3] / "docs" / "reference" / "promises.md"
pytestmark = [
    pytest.mark.skipif(not PAGE.exists(), reason="needs a checkout"),
    pytest.mark.xdist_group("eager"),
]
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def programs() -> dict[str, str]:
    """Return the text of each Python block by the file that its first line names."""
    blocks = [text for language, text in BLOCK.findall(PAGE.read_text()) if language == "python"]
    return {text.partition("\n")[0].removeprefix("# "): text for text in blocks}


def shown() -> Iterator[tuple[list[str], list[str]]]:
    """Yield each command of the page, and the lines below it."""
    for language, text in BLOCK.findall(PAGE.read_text()):
        if not language:
            for part in re.split(r"^\$ ", text, flags=re.MULTILINE)[1:]:
                command, *lines = part.splitlines()
                yield shlex.split(command), lines


class NoChannel(Channel):
    """Channel to nobody."""

    def __init__(self) -> None:
        """Open nothing."""

    def phase(self, name: str) -> None:
        """Say nothing."""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    for name, text in programs().items():
        (tmp_path / name).write_text(text)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    yield tmp_path
    for name in programs():
        sys.modules.pop(Path(name).stem, None)


def test_every_block_is_a_program_or_a_command_of_one() -> None:
    languages = [language for language, _ in BLOCK.findall(PAGE.read_text())]
    assert set(languages) == {"", "python"}
    assert len(programs()) == languages.count("python") == 6
    wanted = [command[2].partition(":")[0] for command, _ in shown()]
    assert sorted(set(wanted)) == sorted(programs())
    assert all(command[:2] == ["deepstack-harness", "steps"] for command, _ in shown())


@pytest.mark.usefixtures("folder")
def test_the_first_program_leads_to_the_finding(capsys: pytest.CaptureFixture[str]) -> None:
    (command, lines), *_ = shown()
    assert len(programs()["mine.py"].splitlines()) <= 15
    assert main(command[1:]) == ExitCode.BROKEN
    printed = capsys.readouterr().out
    assert [line for line in lines if line not in printed.splitlines()] == []
    for word in ("`mask` was None in the warm-up", "step 2", "L['mask'] is None", "mine.py:6"):
        assert word in printed
    assert "deepstack" not in printed


@pytest.mark.usefixtures("folder")
def test_each_command_shows_the_lines_below_it() -> None:
    """In this process: the command of each would start a worker of its own."""
    for command, lines in list(shown())[1:]:
        target, *words = command[2:]
        arms = words[1::2] or ["eager/stock", "eager/drop_all", "aot_eager/drop_all"]
        (history,) = run_steps(NoChannel(), target, arms, warm_up=1, examples=0, seed=0)
        judged = judge_steps(history.region)
        report = list(report_lines(judged))
        right = [line for line in lines if "keeps what it promises" in line]
        assert judged.good == bool(right), (target, report)
        if right:
            chances = sum(finding.chances for finding in judged.findings)
            noun = "chance" if chances == 1 else "chances"
            assert lines == [f"{target}: keeps what it promises of its inputs ({chances} {noun})"]
        else:
            assert [line for line in lines if line not in report] == [], report


def test_the_table_has_the_rules_of_each_promise() -> None:
    rows = dict(re.findall(r"^\| (I\d) \w+(?: rows)? \| (.*) \|$", PAGE.read_text(), re.MULTILINE))
    named = {name: set(re.findall(r"R\d+", cell)) for name, cell in rows.items()}
    assert named == {
        str(promise): {str(rule) for rule in Rule if rule.instance_of is promise} for promise in Promise
    }
    alone = re.search(r"^(R4 .*) stand alone", PAGE.read_text(), re.MULTILINE)
    assert alone is not None
    assert set(re.findall(r"R\d+", alone[1])) == {str(rule) for rule in Rule if rule.instance_of is None}
