"""Text that GitHub renders: Markdown of a summary or comment, and annotations, which are workflow commands.

Text from outside never becomes markup, a link, a mention or an issue reference: what could is put into a code
span, and the rest is escaped with backslashes.  Values of a workflow command are escaped as GitHub's own
toolkit does (actions/toolkit, packages/core/src/command.ts).
"""

import re
from collections.abc import Iterable, Sequence

from deepstack_harness.text import one_line

MOST_BYTES = 900_000
"""GitHub takes 1 MiB for a step's summary, and shows none of a longer one."""
MOST_ANNOTATIONS = 9
"""GitHub shows ten errors and ten warnings of a step; the last one says how many there are."""

_MARKUP = re.compile(r"[\\`*\[\]<>&|~$]|(?<![A-Za-z0-9])_|_(?![A-Za-z0-9])|^[#+=-]")
# A code span keeps these dead: GitHub finds them in the rendered text, whatever was escaped.
_ALIVE = re.compile(r"@\w|#\d|\w#\d|://|www\.|:[\w+-]+:|GH-\d")


def plain(text: str, *, in_table: bool = False) -> str:
    """Return `text` on one line, for a paragraph or a cell of a table; nothing in it comes alive.

    GitHub takes the backslash before a `|` away in a table, and shows it in a span outside of one.
    """
    line = one_line(text)
    if _ALIVE.search(line):
        return code(line, in_table=in_table)
    return _MARKUP.sub(lambda match: f"\\{match[0]}", line)


def code(text: str, *, in_table: bool = False) -> str:
    """Return `text` on one line as a code span."""
    line = one_line(text).strip()
    fence = "`" * (max((len(run) for run in re.findall("`+", line)), default=0) + 1)
    room = " " if line.startswith("`") or line.endswith("`") else ""
    shown = line.replace("|", "\\|") if in_table else line
    return f"{fence}{room}{shown}{room}{fence}" if line else ""


def cell_text(text: str) -> str:
    """Return `text` for a cell of a table, as `plain` does."""
    return plain(text, in_table=True)


def table_row(cells: Iterable[str]) -> str:
    """Return a line of a Markdown table from cells that are escaped already."""
    return f"| {' | '.join(cells)} |"


def table_head(heads: Sequence[str]) -> list[str]:
    """Return the two lines that a Markdown table begins with."""
    return [table_row(heads), table_row(["---"] * len(heads))]


def annotation(
    level: str, title: str, message: str, place: str = "", lines: tuple[int, int] | None = None
) -> str:
    """Return the workflow command `::level file=..,line=..,endLine=..,title=..::message`.

    `level` is `error`, `warning` or `notice`.  `place` is a file below the root of the repository, "" for
    none, and `lines` are its first and last line.
    """
    properties = {"file": place} if place else {}
    if place and lines is not None:
        properties |= {"line": str(lines[0]), "endLine": str(lines[1])}
    properties["title"] = one_line(title)
    listed = ",".join(f"{name}={_property(value)}" for name, value in properties.items())
    return f"::{level} {listed}::{_data(message)}"


def _data(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")
