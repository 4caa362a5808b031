"""Code blocks of README and docs/: list them, and say which of them no test runs and why.

    python -m tools.page_blocks

`cases/selftest/project/test_page_blocks.py` runs them.  A block that cannot run where CI runs has a
comment before it, which no reader sees: `<!-- not run: REASON -->`, or `<!-- slow: REASON -->` for the night.
"""

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from markdown_it import MarkdownIt

ROOT = Path(__file__).parents[1]
GENERATED = ("engines", "gallery")
"""Folders of docs/ that the build of the site writes."""
LANGUAGES = {
    "python": "runs, in the order of the page; named in its first line (`# mine.py`) it becomes a file",
    "console": "each `$ command` runs, and what stands below it is what it prints; `..` is left out",
    "text": "what the command before it prints",
    "toml": "is parsed; named in its first line it becomes a file",
    "yaml": "is parsed; named in its first line it becomes a file",
    "json": "is parsed",
    "markdown": "is shown",
}
"""The languages of blocks, and what the tests do with each."""
_MARK = re.compile(r"<!-- (not run|slow): (.+?) -->", re.DOTALL)
_NAMED = re.compile(r"# ([\w./-]+\.\w+)$")


class State(StrEnum):
    """When the tests run a block."""

    RUN = "run"
    SLOW = "slow"
    NOT_RUN = "not run"


@dataclass(frozen=True)
class Block:
    """One fenced block: its page and first line of code, its language, its text, and when it runs.

    `file` is the name in its first line (`# mine.py`), None where there is none.  `reason` is empty for a
    block that runs every day.
    """

    page: Path
    line: int
    language: str
    text: str
    state: State = State.RUN
    reason: str = ""

    @property
    def place(self) -> str:
        """Page and line, to be clicked at."""
        return f"{self.page.relative_to(ROOT) if self.page.is_relative_to(ROOT) else self.page}:{self.line}"

    @property
    def file(self) -> str | None:
        """The file that the block becomes."""
        match = _NAMED.match(self.text.partition("\n")[0])
        return match[1] if match and self.language in ("python", "toml", "yaml") else None

    def calls(self) -> Iterator[tuple[str, str]]:
        """Yield each command of a console block with the lines below it."""
        for part in re.split(r"^\$ ", self.text, flags=re.MULTILINE)[1:]:
            lines = part.splitlines()
            end = next((at for at, line in enumerate(lines) if not line.endswith("\\")), len(lines) - 1)
            yield "\n".join(lines[: end + 1]), "\n".join(lines[end + 1 :])


def pages() -> list[Path]:
    """Return README and every page of the site that somebody wrote."""
    written = [
        path
        for path in sorted((ROOT / "docs").glob("**/*.md"))
        if path.relative_to(ROOT / "docs").parts[0] not in GENERATED
    ]
    return [ROOT / "README.md", *written]


def blocks(page: Path) -> list[Block]:
    """Return the fenced blocks of a page; directives of Sphinx (```` ```{name} ````) are none.

    Raises `ValueError` for a block in no known language, and for a mark that no block follows.
    """
    found: list[Block] = []
    mark: re.Match[str] | None = None
    for token in MarkdownIt("commonmark").parse(page.read_text()):
        line = token.map[0] + 2 if token.map else 0
        if token.type == "html_block" and (match := _MARK.search(token.content)):
            mark = match
        elif token.type == "fence":
            language = token.info.strip()
            if not language.startswith("{"):
                if language not in LANGUAGES:
                    raise ValueError(
                        f"{page}:{line - 1}: a block in {language or 'no language'!r}; "
                        f"known are {', '.join(LANGUAGES)}"
                    )
                state, reason = (State(mark[1]), " ".join(mark[2].split())) if mark else (State.RUN, "")
                found.append(Block(page, line, language, token.content, state, reason))
            mark = None
        elif mark and token.type.endswith("_open"):
            raise ValueError(f"{page}:{line - 1}: a mark '{mark[0]}' that no block follows")
    return found


def main() -> int:
    """Print every block that does not run in CI with its reason, and count all of them."""
    every = [block for page in pages() for block in blocks(page)]
    for block in every:
        if block.state is not State.RUN:
            print(f"{block.place}: {block.language}, {block.state}: {block.reason}")
    counted = Counter((block.state, block.language) for block in every)
    for state in State:
        of_state = {language: number for (its, language), number in counted.items() if its is state}
        parts = ", ".join(f"{number} {language}" for language, number in of_state.items())
        print(f"{state}: {sum(of_state.values())} ({parts or 'none'})")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
