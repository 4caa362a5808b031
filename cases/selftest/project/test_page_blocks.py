"""README and docs/: every code block runs, in the order of its page, and commands print what the page shows.

A page is played in an empty folder.  Commands of ours run in this process, others in a shell.  What cannot
run here is marked with a reason (`tools.page_blocks`).
"""

import contextlib
import importlib
import io
import json
import os
import pkgutil
import re
import shlex
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from cases.by_day import by_day
from deepstack_harness.cli import steps
from deepstack_harness.cli.main import main
from deepstack_harness.workers.child import Channel
from tools.page_blocks import ROOT, Block, State, blocks, pages

pytestmark = pytest.mark.skipif(not (ROOT / "docs").exists(), reason="needs a checkout")

SHELL = re.compile(r"[|&;<>$`]|^(?!deepstack-harness |python -m deepstack_harness )")
"""A command that is more than one of ours."""
OURS = ("deepstack-harness", "python -m deepstack_harness", "python3 -m deepstack_harness")
REASONS = ("GPU", "minutes", "network", "installs", "excerpt of", "for your", "needs")
"""How a reason begins for which a block may stay unrun."""
SHOWN = pages()


def shown_in(shown: str, printed: str) -> str | None:
    """Return the first part of what a page shows that was not printed; None where all was, in this order.

    `..` matches anything, and white space is one blank, because a terminal folds long lines.
    """
    rest = " ".join(printed.split())
    for part in re.split(r"(?:^|\s)\.\.(?=\s|$)|(?<=\S)\.\.$", shown, flags=re.MULTILINE):
        words = " ".join(part.split())
        if words not in rest:
            return words
        rest = rest[rest.index(words) + len(words) :]
    return None


class NoChannel(Channel):
    """Channel to nobody."""

    def __init__(self) -> None:
        """Open nothing."""

    def phase(self, name: str) -> None:
        """Do nothing."""


@contextlib.contextmanager
def calls_here(_doing: str) -> Iterator[Any]:
    """Call in this process what `steps` calls in a worker."""
    yield lambda remote, arguments: pkgutil.resolve_name(remote.target)(NoChannel(), **arguments)


class Played:
    """One page in its folder: the names of its Python blocks, and how its last command ended."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.names: dict[str, Any] = {"__name__": "page"}
        self.code, self.printed = 0, ""
        self.steps = 0
        self._before = set(sys.modules)

    def forget_modules(self) -> None:
        """Drop what was imported from the folder: a page may write a file again."""
        for name in set(sys.modules) - self._before:
            if str(getattr(sys.modules[name], "__file__", "")).startswith(str(self.folder)):
                del sys.modules[name]
        importlib.invalidate_caches()

    def play(self, block: Block) -> None:
        """Run one block; fails with its place."""
        if block.file is not None:
            path = self.folder / block.file
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(block.text)
            self.forget_modules()
        if block.language == "python" and block.file is None:
            padded = "\n" * (block.line - 1) + block.text
            with contextlib.redirect_stdout(io.StringIO()) as stdout:
                exec(compile(padded, block.page, "exec"), self.names)
            self.printed = stdout.getvalue()
        elif block.language == "python":
            compile(block.text, block.place, "exec")
        elif block.language == "console":
            self._play_commands(block)
        elif block.language == "text":
            self._expect(block, block.text, "the block before it")
        elif block.language == "toml":
            tomllib.loads(block.text)
        elif block.language == "yaml":
            assert yaml.safe_load(block.text), block.place
        elif block.language == "json":
            json.loads(block.text)

    def _play_commands(self, block: Block) -> None:
        calls = list(block.calls())
        assert calls, f"{block.place}: a console block without a '$ command'"
        for at, (command, shown) in enumerate(calls):
            if command == "echo $?":
                assert shown.strip() == str(self.code), f"{block.place}: exit code {self.code}, not {shown}"
                continue
            self._call(command)
            told = at + 1 < len(calls) and calls[at + 1][0] == "echo $?"
            # A finding that the page shows is no failure of the page.
            allowed = {0, 1} if command.startswith(OURS) and shown else {0}
            assert told or self.code in allowed, (
                f"{block.place}: {command}: exit code {self.code}\n{self.printed}"
            )
            self._expect(block, shown, command)

    def _call(self, command: str) -> None:
        if not SHELL.search(command):
            words = shlex.split(command.replace("python -m deepstack_harness", "deepstack-harness"))
            self.steps += words[1] == "steps"
            # A worker each takes 2 s of processor time, of which the promises have seventeen: one is enough.
            alone = words[1] == "steps" and self.steps > 1
            with (
                pytest.MonkeyPatch.context() as patched,
                contextlib.redirect_stdout(io.StringIO()) as stdout,
                contextlib.redirect_stderr(io.StringIO()) as stderr,
            ):
                if alone:
                    patched.setattr(steps, "worker_calls", calls_here)
                # Another path would need another fork server, 3 s; commands add the current folder.
                patched.setattr(sys, "path", [entry for entry in sys.path if entry != str(self.folder)])
                self.code = main(words[1:])
            # At the end: lines of progress would be anywhere between those of a table.
            self.printed = stdout.getvalue() + stderr.getvalue()
            return
        shim = f'deepstack-harness() {{ "{sys.executable}" -m deepstack_harness "$@"; }}\n'
        ended = subprocess.run(
            ["bash", "-c", shim + command],
            cwd=self.folder,
            env=os.environ
            | {
                "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
                "PYTEST_PLUGINS": "deepstack_harness.pytest_plugin",
                "PYTHONPATH": str(ROOT / "harness"),
            },
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            check=False,
        )
        self.code, self.printed = ended.returncode, ended.stdout

    def _expect(self, block: Block, shown: str, command: str) -> None:
        missing = shown_in(shown, self.printed)
        assert missing is None, (
            f"{block.place}: not printed by {command}:\n{missing}\n-- but:\n{self.printed}"
        )


@pytest.fixture
def played(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Played]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    monkeypatch.setenv("COLUMNS", "80")
    played = Played(tmp_path)
    yield played
    played.forget_modules()


def play(played: Played, page: Path, states: set[State]) -> int:
    """Play the blocks of a page in the given states, and return how many ran."""
    wanted = [block for block in blocks(page) if block.state in states]
    for block in wanted:
        played.play(block)
    return len(wanted)


def pages_with(state: State) -> list[Path]:
    return [page for page in SHOWN if any(block.state is state for block in blocks(page))]


def name_of(page: Path) -> str:
    return str(page.relative_to(ROOT))


EXPENSIVE = ("promises.md", "a-function-of-your-own.md", "steps.md", "R0.md")
"""Pages that take 4 s to 10 s each; others show the same commands every day."""


@pytest.mark.parametrize(
    "page",
    by_day(pages_with(State.RUN), lambda page: page.name in EXPENSIVE or page),
    ids=name_of,
)
def test_every_block_of_a_page_runs(played: Played, page: Path) -> None:
    assert play(played, page, {State.RUN})


@pytest.mark.slow
@pytest.mark.parametrize("page", pages_with(State.SLOW), ids=name_of)
def test_every_block_that_takes_long_runs_at_night(played: Played, page: Path) -> None:
    assert play(played, page, {State.RUN, State.SLOW})


@pytest.mark.slow
def test_the_readme_shows_what_repro_prints(played: Played) -> None:
    (command,) = [b for b in blocks(ROOT / "README.md") if "-e repro -- 43602" in b.text]
    (shown,) = [b for b in blocks(ROOT / "README.md") if b.language == "text"]
    words = command.text.partition("-e repro -- ")[2].strip()
    played.play(Block(shown.page, shown.line, "console", f"$ deepstack-harness repro {words}\n{shown.text}"))


def test_what_does_not_run_has_a_reason() -> None:
    marked = [block for page in SHOWN for block in blocks(page) if block.state is not State.RUN]
    wrong = [
        f"{block.place}: {block.reason}"
        for block in marked
        if not block.reason.startswith(REASONS) or len(block.reason.split()) < 2
    ]
    assert wrong == [], f"a reason begins with one of {', '.join(REASONS)}"
    assert not [block.place for block in marked if block.state is State.NOT_RUN and "minutes" in block.reason]
    everything = [block for page in SHOWN for block in blocks(page)]
    shown = [block for block in everything if block.language in ("python", "console")]
    run = [block for block in shown if block.state is not State.NOT_RUN]
    assert len(run) >= 0.6 * len(shown), "most blocks of the pages should run"


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("```python\nassert 1 == 2, 'not equal'\n```\n", "not equal"),
        ("```python\n# mine.py\ndef (\n```\n", "invalid syntax"),
        (
            "```console\n$ deepstack-harness show 43602\nincident 43603\n```\n",
            "not printed by deepstack-harness",
        ),
        (
            "```console\n$ deepstack-harness show 43602\nincident\ncause\n```\n",
            "not printed by deepstack-harness",
        ),
        ("```console\n$ deepstack-harness show\n```\n", "exit code 2"),
        ("```console\n$ python -c 'exit(1)'\n```\n", "exit code 1"),
        ("```console\n$ python -c 'exit(1)'\n$ echo $?\n0\n```\n", "exit code 1, not 0"),
        ("```console\nls\n```\n", "without a"),
        ("```python\nprint(1)\n```\n\n```text\n2\n```\n", "not printed by the block before it"),
        ("```toml\na = \n```\n", "Invalid value"),
        ("```\nls\n```\n", "no language"),
        ("<!-- slow: minutes of fuzzing -->\n\nText.\n", "no block follows"),
    ],
)
def test_a_block_that_is_wrong_fails(played: Played, tmp_path: Path, text: str, fault: str) -> None:
    page = tmp_path / "page.md"
    page.write_text(text)
    with pytest.raises((AssertionError, SyntaxError, ValueError), match=re.escape(fault)):
        play(played, page, {State.RUN})


def test_a_page_that_is_right_runs_in_order(played: Played, tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(
        "```python\n# mine.py\nVALUE = 3\n```\n\n```python\nimport mine\n\nprint(mine.VALUE)\n```\n\n"
        "```text\n3\n```\n\n"
        "```console\n$ python -c 'import mine; print(mine.VALUE + 1); exit(3)' && \\\n  true\n"
        "4\n$ echo $?\n3\n$ deepstack-harness show 43602\nincident 43602\n..\nsymptom\n..\n```\n\n"
        "<!-- not run: GPU of a runner -->\n```console\n$ nvidia-smi\n```\n"
    )
    assert play(played, page, {State.RUN}) == 4
    assert [block.reason for block in blocks(page) if block.state is State.NOT_RUN] == ["GPU of a runner"]
