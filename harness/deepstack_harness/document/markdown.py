"""Blocks as GitHub renders them: Markdown of a summary or comment. And annotations, its workflow commands.

Text from outside never becomes markup, a link, a mention or an issue reference: what could is put into a code
span, and the rest is escaped with backslashes. Values of a workflow command are escaped as GitHub's own
toolkit does (actions/toolkit, packages/core/src/command.ts).
"""

import html
import re
from collections.abc import Iterable, Iterator

from deepstack_harness.document.blocks import NOTE, Block, Code, Details, Heading, Line, Link, TextTable
from deepstack_harness.text import one_line, plural

MOST_BYTES = 900_000
"""GitHub takes 1 MiB for a step's summary, and shows none of a longer one."""
MOST_ANNOTATIONS = 9
"""GitHub shows ten errors and ten warnings of a step; the last one counts them."""

_MARKUP = re.compile(r"[\\`*\[\]<>&|~$]|(?<![A-Za-z0-9])_|_(?![A-Za-z0-9])|^[#+=-]")
# Only a code span makes these harmless: GitHub finds them in the rendered text, whatever was escaped.
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


def fitted(blocks: Iterable[Block], most: int, left: str, elsewhere: str) -> str:
    """Return blocks as Markdown of at most `most` bytes; the sentence at its end counts what found no room.

    A table is filled line by line, everything else is there or not. `left` is what is counted, and
    `elsewhere` names what has the rest.
    """
    lines: list[str] = []
    size = left_out = 0
    for block in blocks:
        parts = list(_parts(block))
        for number, part in enumerate(parts):
            if size + len(part.encode()) + 1 > most:
                left_out += len(parts) - number
                break
            size += len(part.encode()) + 1
            lines.append(part)
    if left_out:
        lines.append(f"{plural(left_out, left)} found no room here; {elsewhere}")
    return "\n".join(lines).rstrip("\n") + "\n"


def _parts(block: Block) -> Iterator[str]:
    """Yield a block in parts that may each be the last one."""
    match block:
        case Heading(text, level):
            yield f"{'#' * level} {plain(text)}\n"
        case Line(text, style, lead, command):
            note = "> " if style == NOTE else ""
            yield note + " ".join(filter(None, (plain(lead), _inline(text), code(command)))) + "\n"
        case TextTable(columns, rows):
            aligned = _row("---:" if column.right else "---" for column in columns)
            lines = [_row(_inline(text, in_table=True) for text in cells) for cells, _ in rows]
            # A part is the head with the first line, or one more line.
            first = "\n".join([_row(column.head for column in columns), aligned, *lines[:1]])
            *parts, last = [first, *lines[1:]]
            yield from (*parts, f"{last}\n")
        case Details(summary, inner):
            # An HTML block: nothing in it is read as Markdown before the empty line.
            title = html.escape(one_line(summary.text), quote=False)
            within = "\n".join(part for content in inner for part in _parts(content))
            yield f"<details><summary>{title}</summary>\n\n{within}\n</details>\n"


def _row(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _inline(text: str, *, in_table: bool = False) -> str:
    match text:
        case Code():
            return code(text, in_table=in_table)
        case Link():
            return f"[{plain(text, in_table=in_table)}]({text.address})"
    return plain(text, in_table=in_table)


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
