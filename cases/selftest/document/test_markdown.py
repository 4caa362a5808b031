"""Text from outside in Markdown and in annotations: nothing in it comes alive."""

import pytest

from deepstack_harness.document.markdown import annotation, plain, table_head, table_row


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


def test_a_table_begins_with_its_heads() -> None:
    assert table_head(["a", ""]) == ["| a |  |", "| --- | --- |"]
    assert table_row(["1", "2"]) == "| 1 | 2 |"
