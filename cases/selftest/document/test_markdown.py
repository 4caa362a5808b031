"""Text from outside in Markdown and in annotations: nothing in it comes alive."""

import re

import pytest

from deepstack_harness.document.blocks import (
    NOTE,
    Block,
    Code,
    Column,
    Details,
    Heading,
    Line,
    Link,
    TextTable,
)
from deepstack_harness.document.markdown import annotation, fitted, plain


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("step 3 'forward 16': 4.6 from eager", "step 3 'forward 16': 4.6 from eager"),
        ("a_b and _c_ and *d*", "a_b and \\_c\\_ and \\*d\\*"),
        ("a | <b> `c`", "a \\| \\<b\\> \\`c\\`"),
        ("# a heading", "\\# a heading"),
        ("ask @me in #12", "`ask @me in #12`"),
        ("see https://x.org | `y`", "`` see https://x.org | `y` ``"),
    ],
)
def test_text_for_markdown_is_escaped_where_it_must_be(text: str, sentence: str) -> None:
    assert plain(text) == sentence


def test_a_text_cannot_end_its_annotation() -> None:
    assert annotation("error", "a:b,c", "100%\n::error::x") == "::error title=a%3Ab%2Cc::100%25%0A::error::x"


TABLE = TextTable(
    [Column("place"), Column("rows", right=True), Column("")],
    [
        ([Code("a|b:1"), "2", Link("known", "https://github.com/a/b/issues/1")], ""),
        (["<b>", "", "@me"], "red"),
    ],
)
BLOCKS: list[Block] = [
    Heading("a *title*"),
    Line("one node", NOTE),
    Line(Code("cap 16"), lead="trace: ", command="run it"),
    Details(Line("<b> x"), [Line("inside")]),
    TABLE,
]


def test_each_block_has_its_markdown() -> None:
    assert fitted(BLOCKS, 1_000, "line", "the page has them.").split("\n") == [
        "## a \\*title\\*", "",
        "> one node", "",
        "trace: `cap 16` `run it`", "",
        "<details><summary>&lt;b&gt; x</summary>", "", "inside", "", "</details>", "",
        "| place | rows |  |", "| --- | ---: | --- |",
        "| `a\\|b:1` | 2 | [known](https://github.com/a/b/issues/1) |",
        "| \\<b\\> |  | `@me` |", "",
    ]  # fmt: skip


@pytest.mark.parametrize("most", range(0, 330, 7))
def test_what_finds_no_room_is_counted(most: int) -> None:
    whole, text = (fitted(BLOCKS, size, "line", "the page has them.").splitlines() for size in (1_000, most))
    if text != whole:
        assert re.fullmatch(r"\d lines? found no room here; the page has them\.", text.pop())
        assert len("\n".join(text).encode()) <= most
    assert set(text) <= set(whole)
    assert ("| place | rows |  |" in text) is any(line.startswith("| `a") for line in text)
