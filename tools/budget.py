"""`python -m tools.budget`: the size of the code per room, held against the table in pyproject.toml.

A room is a package right under `harness/deepstack_harness`; `top` has the files next to them, and `cases` the
whole folder. Comments, docstrings and line ends are no tokens, and a name is one token whatever its length,
so that neither formatting nor names matter. An f-string is one token on every Python. `dialect` are the
private words in docstrings and comments, and names such as `each` (`tools.prose`).

Exits with 1 where a figure is above its number, and where a room's tokens are more than 3 % below it: then
`--write` lowers the numbers, in the same change. A number is raised by `--write --raise ROOM`, with the
reason in the commit.
"""

from __future__ import annotations

import argparse
import ast
import io
import re
import sys
import tokenize
import tomllib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from tools.prose import comments_in, private_words

ROOT = Path(__file__).parents[1]
FIGURES = ("tokens", "functions", "classes", "records", "dialect")
SLACK = 0.03
"""Share of the allowed tokens that may be unused before the number has to be lowered."""
_TABLE = re.compile(r"(?<=\[tool\.deepstack-budget\.rooms\]\n)(?:\w+ = .*\n)*")
_NO_CODE = frozenset((tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT))
_RECORDS = frozenset(("NamedTuple", "Struct", "TypedDict"))
_F_STRING = {"FSTRING_START": 1, "FSTRING_END": -1, "TSTRING_START": 1, "TSTRING_END": -1}

Table = dict[str, dict[str, int]]


def measure(root: Path) -> dict[str, Counter[str]]:
    """Return the figures of each room, and the `lines` that hold code."""
    rooms: dict[str, Counter[str]] = {}
    package = root / "harness" / "deepstack_harness"
    for path in sorted(package.rglob("*.py")):
        inside = path.relative_to(package).parts
        rooms.setdefault(inside[0] if len(inside) > 1 else "top", Counter()).update(count(path.read_text()))
    for path in sorted((root / "cases").rglob("*.py")):
        rooms.setdefault("cases", Counter()).update(count(path.read_text()))
    return rooms


def count(text: str) -> Counter[str]:
    """Return the figures of one file; a string that is a statement is a docstring, wherever it is."""
    nodes = list(ast.walk(ast.parse(text)))
    docstrings = {
        (node.lineno, node.col_offset)
        for node in nodes
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
        if isinstance(node.value.value, str)
    }
    figures: Counter[str] = Counter()
    lines: set[int] = set()
    tokens = list(tokenize.generate_tokens(io.StringIO(text).readline))
    for token in _code_tokens(tokens):
        if token.start not in docstrings or token.type != tokenize.STRING:
            figures["tokens"] += 1
            lines.update(range(token.start[0], token.end[0] + 1))
    classes = [node for node in nodes if isinstance(node, ast.ClassDef)]
    figures["functions"] = sum(isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) for node in nodes)
    figures["classes"] = len(classes)
    figures["records"] = sum(_is_record(node) for node in classes)
    figures["dialect"] = private_words(nodes, comments_in(tokens)).total()
    figures["lines"] = len(lines)
    return figures


def _code_tokens(tokens: Iterable[tokenize.TokenInfo]) -> Iterator[tokenize.TokenInfo]:
    inside = 0
    for token in tokens:
        change = _F_STRING.get(tokenize.tok_name[token.type], 0)
        if token.type not in _NO_CODE and token.type != tokenize.ENDMARKER and not inside:
            yield token
        inside += change


def _is_record(node: ast.ClassDef) -> bool:
    """Return whether a class is a dataclass, a named tuple, a struct or a typed dict."""
    bases = {ast.unparse(base).partition("[")[0].rpartition(".")[2] for base in node.bases}
    decorators = {ast.unparse(each).partition("(")[0].rpartition(".")[2] for each in node.decorator_list}
    return bool(bases & _RECORDS) or "dataclass" in decorators


def refusals(counted: Mapping[str, Mapping[str, int]], allowed: Table) -> Iterator[str]:
    """Yield a sentence for each room that grew, shrank without its numbers, or has none."""
    command = "python -m tools.budget --write"
    for room in sorted(counted.keys() | allowed.keys()):
        if room not in allowed:
            yield f"{room}: has no number in pyproject.toml: `{command} --raise {room}`"
            continue
        if room not in counted:
            yield f"{room}: has a number in pyproject.toml and no code: `{command}`"
            continue
        for figure in FIGURES:
            now, most = counted[room][figure], allowed[room][figure]
            found = f"{room}: {now:,} {figure} counted, {most:,} allowed"
            if now > most:
                yield (
                    f"{found}: take out {now - most:,}, or raise it with `{command} --raise {room}` and "
                    "give the reason in the commit"
                )
            elif figure == "tokens" and now < (1 - SLACK) * most:
                yield f"{found}, more than {SLACK:.0%} above: lower it in this change: `{command}`"


def rewritten(pyproject: str, counted: Mapping[str, Mapping[str, int]], raised: Sequence[str]) -> str:
    """Return pyproject.toml with the counted numbers, where they are lower or the room is to be raised."""
    allowed = read_table(pyproject)
    lines = []
    for room, figures in counted.items():
        if room not in allowed and room not in raised:
            continue
        kept = {} if room in raised else allowed[room]
        numbers = {figure: min(figures[figure], kept.get(figure, figures[figure])) for figure in FIGURES}
        lines.append(
            f"{room} = {{ {', '.join(f'{name} = {number}' for name, number in numbers.items())} }}\n"
        )
    return _TABLE.sub("".join(lines), pyproject, count=1)


def read_table(pyproject: str) -> Table:
    """Return the allowed figures of each room."""
    rooms: Table = tomllib.loads(pyproject)["tool"]["deepstack-budget"]["rooms"]
    return rooms


def show(counted: Mapping[str, Mapping[str, int]], goals: Mapping[str, int]) -> None:
    """Print the figures of each room, their sums over the package, and the goals."""
    package = Counter[str]()
    print(f"{'room':14}" + "".join(f"{name:>11}" for name in (*FIGURES, "lines")))
    for room, figures in counted.items():
        print(f"{room:14}" + "".join(f"{figures[name]:>11,}" for name in (*FIGURES, "lines")))
        if room != "cases":
            package.update(figures)
    print(f"{'package':14}" + "".join(f"{package[name]:>11,}" for name in (*FIGURES, "lines")))
    per_lines = 1000 * package["functions"] / max(package["lines"], 1)
    print(
        f"goals: package {goals['package_tokens']:,} tokens, cases {goals['cases_tokens']:,}, "
        f"{goals['functions_per_1000_lines']} functions per 1,000 lines of code (now {per_lines:.0f}), "
        f"{goals['records']} record types"
    )


def main(words: Sequence[str] | None = None, root: Path = ROOT) -> int:
    """Print the table and what is refused."""
    parser = argparse.ArgumentParser(prog="python -m tools.budget", description=__doc__.partition("\n")[0])
    parser.add_argument("--write", action="store_true", help="lower the numbers in pyproject.toml")
    parser.add_argument(
        "--raise", dest="raised", action="append", default=[], metavar="ROOM",
        help="with --write, also raise those of this room; repeatable",
    )  # fmt: skip
    args = parser.parse_args(words)
    path, counted = root / "pyproject.toml", measure(root)
    unknown = set(args.raised) - counted.keys()
    if args.raised and not args.write:
        parser.error("--raise changes nothing without --write")
    if unknown:
        parser.error(f"unknown room '{min(unknown)}'; known are {', '.join(counted)}")
    if args.write:
        path.write_text(rewritten(path.read_text(), counted, args.raised))
    show(counted, tomllib.loads(path.read_text())["tool"]["deepstack-budget"]["goals"])
    refused = list(refusals(counted, read_table(path.read_text())))
    print(*refused, sep="\n", end="\n" if refused else "")
    return int(bool(refused))


if __name__ == "__main__":
    sys.exit(main())
