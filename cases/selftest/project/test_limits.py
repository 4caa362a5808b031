"""Each number that a module names has a note: its measurement or reason, and what it means to reach it."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[3] / "harness" / "deepstack_harness"
ROOMS = [
    "audit", "catalogue", "cli", "compile", "contract", "document", "engines", "fuzz", "models", "play",
    "pytest_plugin", "runs", "sources", "workers",
]  # fmt: skip


def numbers_without_note(text: str) -> Iterator[str]:
    """Yield the names of numbers of a module that neither a docstring nor a comment explains."""
    body, lines = ast.parse(text).body, text.splitlines()
    for node, after in zip(body, [*body[1:], None], strict=True):
        match node:
            case ast.Assign(targets=[ast.Name(id=name)], value=value):
                pass
            case ast.AnnAssign(target=ast.Name(id=name), value=ast.expr() as value):
                pass
            case _:
                continue
        leaves = [leaf for leaf in ast.walk(value) if not isinstance(leaf, ast.expr_context | ast.operator)]
        number = all(
            isinstance(leaf, ast.BinOp | ast.UnaryOp | ast.unaryop)
            or (isinstance(leaf, ast.Constant) and type(leaf.value) in (int, float))
            for leaf in leaves
        )
        noted = isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant)
        commented = "#" in lines[node.lineno - 1] or lines[node.lineno - 2].startswith("#")
        if number and re.fullmatch(r"_?[A-Z][A-Z0-9_]*", name) and not noted and not commented:
            yield name


@pytest.mark.parametrize("room", ROOMS)
def test_each_number_has_a_note(room: str) -> None:
    found = {
        path.relative_to(PACKAGE).as_posix(): names
        for path in sorted((PACKAGE / room).rglob("*.py"))
        if (names := list(numbers_without_note(path.read_text(encoding="utf-8"))))
    }
    assert found == {}


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("A = 3\nB = 2**20\n", ["A", "B"]),
        ('A = 3\n"""Tries."""\n', []),
        ("A = -3  # tries\n", []),
        ("A = (1, 2)\nB = 'x'\nC = len('x')\n", []),
    ],
)
def test_a_number_without_note_is_found(text: str, names: list[str]) -> None:
    assert list(numbers_without_note(text)) == names
