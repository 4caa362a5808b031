"""Text from outside cannot write to the terminal, reorder a line, look like a row of ours, or fill a page."""

import ast
import io
import logging
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import msgspec
import pytest
from rich.spinner import Spinner

from deepstack_harness.catalogue import scripts
from deepstack_harness.cli import main as cli
from deepstack_harness.cli.output import Output
from deepstack_harness.contract.rules import Rule
from deepstack_harness.contract.trace import Trace
from deepstack_harness.document.blocks import Column, Line, table_line
from deepstack_harness.errors import ExitCode, UsageError
from deepstack_harness.text import LONGEST, cell, clean, printable

HOSTILE = {
    "escape": "\x1b]0;title\x07\x1b[2J",
    "controls": "\x00\x08\x0b\x0c\x7f\x85\x9b31m",
    "carriage return": "\rPASS",
    "override": "\u202etxet\u202c",
    "isolate": "\u2066a\u2069",
    "marks": "\u200e\u200f\u061c",
    "separators": "\u2028\u2029",
    "tags": "\U000e0041\U000e007f",
    "byte order mark": "\ufeff",
    "half a pair": "\ud800",
}
KEPT = "naïve 東京 \N{GRINNING FACE} \N{HEBREW LETTER ALEF}"
"""Letters of any direction, and pictures, are text."""


@pytest.mark.parametrize("kind", HOSTILE)
def test_nothing_but_text_is_left(kind: str) -> None:
    text = f"{KEPT}{HOSTILE[kind]}{KEPT}"
    cleaned = clean(text)
    assert cleaned.startswith(KEPT)
    assert cleaned.endswith(KEPT)
    assert not set(cleaned) & (set(HOSTILE[kind]) - set("]0;title[2Jmtxea31PASS "))
    assert clean(cleaned) == cleaned


@pytest.mark.parametrize("kind", HOSTILE)
def test_the_terminal_gets_clean_text(kind: str, capsys: pytest.CaptureFixture[str]) -> None:
    output = Output(None, quiet=False)
    output.print(Line(f"a{HOSTILE[kind]}b"))
    output.print(table_line([Column(width=30), Column()], [HOSTILE[kind], "end"]))
    assert capsys.readouterr().out == f"{clean('a' + HOSTILE[kind] + 'b')}\n{cell(HOSTILE[kind]):30}  end\n"


def test_a_cell_cannot_add_rows(capsys: pytest.CaptureFixture[str]) -> None:
    Output(None, quiet=False).print(table_line([Column(), Column()], ["class A\n\nR0 PASS", "  indented"]))
    assert capsys.readouterr().out == "class A R0 PASS    indented\n"


def test_long_text_is_cut_with_a_mark(capsys: pytest.CaptureFixture[str]) -> None:
    Output(None, quiet=False).print(Line("x" * (LONGEST + 1000)))
    printed = capsys.readouterr().out.replace("\n", "").replace(" ", "")
    assert printed == "x" * LONGEST + "..(1,000charactersleftout)"
    assert printable("x" * LONGEST) == "x" * LONGEST


def test_progress_is_clean_and_no_markup(monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    monkeypatch.setattr(sys, "stderr", Terminal())
    shown: list[str] = []

    class Recorded(Spinner):
        def update(self, *, text: object = "", **_: object) -> None:
            shown.append(str(text))

    monkeypatch.setattr("rich.spinner.Spinner", Recorded)
    with Output(None, quiet=False).progress("judging [red]a\x1b[2J") as say:
        say("b\n[/]\u202e")
    drawn = sys.stderr.getvalue()  # type: ignore[union-attr]
    assert shown == ["b [/]\N{REPLACEMENT CHARACTER}"]  # a Text: no markup is read in it
    assert "judging [red]a\N{REPLACEMENT CHARACTER}[2J" in drawn
    assert "\x1b[2J" not in drawn


@pytest.mark.parametrize("kind", HOSTILE)
def test_errors_and_notices_are_clean(
    kind: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def told(*_: object) -> None:
        logging.getLogger("deepstack_harness.any").warning("seen %s", HOSTILE[kind])
        raise UsageError(f"wrong {HOSTILE[kind]}")

    monkeypatch.setattr("deepstack_harness.cli.list.run", told)
    # pytest stores records that reach the root logger, and xdist cannot send half a pair.
    monkeypatch.setattr(logging.getLogger("deepstack_harness"), "propagate", False)
    assert cli.main(["list"]) == ExitCode.USAGE
    shown = clean(HOSTILE[kind])
    assert capsys.readouterr().err == f"deepstack-harness: seen {shown}\ndeepstack-harness: wrong {shown}\n"


@dataclass(frozen=True)
class Kept:
    detail: str


@pytest.mark.parametrize("kind", HOSTILE)
def test_rows_can_be_written_whatever_their_text(kind: str, tmp_path: Path) -> None:
    output = Output(str(tmp_path / "rows.jsonl"), quiet=True)
    output.show(row for row in [Kept(HOSTILE[kind])])
    output.close()
    row = msgspec.json.decode((tmp_path / "rows.jsonl").read_bytes(), type=Kept)
    assert row.detail in (HOSTILE[kind], clean(HOSTILE[kind]))


@pytest.mark.parametrize("kind", HOSTILE)
def test_a_written_program_has_clean_text_only_in_comments(kind: str) -> None:
    lines = scripts._finding_header(
        Trace.parse("cap 4: set 2; get 4"),
        Rule.BOUNDARY,
        f"a\nimport os{HOSTILE[kind]}\n'''",
        scripts.ProgramBuffer(HOSTILE[kind]),
    )
    assert all(line.startswith("#") for line in lines.removesuffix("\n").split("\n"))
    assert clean(lines) == lines
    ast.parse(lines)


def test_a_command_shows_a_hostile_name_clean(tmp_path: Path) -> None:
    words = ["repro", "43602", "--source", "no\x1b[2J\u202esuch"]
    ran = subprocess.run(
        [sys.executable, "-m", "deepstack_harness", *words], capture_output=True, text=True, check=False
    )
    assert ran.returncode == ExitCode.USAGE
    assert "\x1b" not in ran.stderr
    assert "\u202e" not in ran.stderr


# A callback of the garbage collector lets another thread in while a tree is built.
AT_ONCE = """
import gc, inspect, sys, threading, time, typing
from deepstack_harness.text import parse_python

sys.setswitchinterval(1e-6)
gc.set_threshold(50)
gc.callbacks.append(lambda *_: time.sleep(0))
text, wrong = inspect.getsource(typing)[:40_000].rpartition("\\nclass ")[0], []

def parse():
    for _ in range(20):
        try:
            parse_python(text)
        except SystemError as error:
            wrong.append(str(error))

threads = [threading.Thread(target=parse) for _ in range(4)]
for thread in threads: thread.start()
for thread in threads: thread.join()
print(wrong[:1])
"""


def test_threads_that_parse_at_once_do_not_meet() -> None:
    ran = subprocess.run(
        [sys.executable, "-c", AT_ONCE], capture_output=True, text=True, timeout=120, check=False
    )
    assert (ran.returncode, ran.stdout) == (0, "[]\n"), ran.stderr
