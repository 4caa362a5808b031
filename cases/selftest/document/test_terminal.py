"""Blocks as text of 40 columns: sentences, commands to copy, tables that grow and tables that are whole."""

import pytest

from deepstack_harness.document.blocks import (
    BLANK,
    Block,
    Column,
    Heading,
    Line,
    TextTable,
    outcome,
    table_line,
)
from deepstack_harness.document.terminal import columns_here, folded, rendered


def lines_of(block: Block, width: int = 40) -> list[str]:
    return rendered(block, width).splitlines()


def test_a_sentence_is_folded_at_blanks_below_its_indentation() -> None:
    assert lines_of(Line("  a sentence that is longer than forty columns can hold")) == [
        "  a sentence that is longer than forty",
        "    columns can hold",
    ]
    assert folded("a sentence that is longer than forty columns", 40).splitlines() == [
        "a sentence that is longer than forty",
        "  columns",
    ]


def test_a_text_goes_on_below_its_lead() -> None:
    assert lines_of(Line("a sentence that does not fit beside it", lead="tested by ")) == [
        "tested by a sentence that does not fit",
        "          beside it",
    ]


def test_a_command_is_never_broken() -> None:
    command = "deepstack-harness repro 43602 --source vllm==0.22.1"
    assert lines_of(Line("  play it:", command=command)) == ["  play it:", f"    {command}"]
    assert lines_of(Line("play it:", command=command), 80) == [f"play it: {command}"]
    assert lines_of(Line("    ", command="deepstack-harness list")) == ["    deepstack-harness list"]
    long = Line("a sentence that is longer than forty columns can hold", command="deepstack-harness list")
    assert lines_of(long) == [
        "a sentence that is longer than forty",
        "  columns can hold",
        "  deepstack-harness list",
    ]


def test_a_word_that_fits_no_line_is_folded() -> None:
    assert max(map(len, lines_of(Line("see " + "x" * 100)))) == 40


def test_an_empty_line_and_a_heading() -> None:
    assert rendered(BLANK, 40) == "\n"
    assert rendered(Heading("rows"), 40) == "rows\n"


def test_styles_are_on_terminals_only() -> None:
    good = outcome("all is well", good=True)
    assert rendered(good, 40) == "all is well\n"
    assert "\x1b[1;32mall is well" in rendered(good, 40, color=True)


GROWING = (Column("name", 16), Column("seen", 16), Column("figure", 6, right=True), Column("why"))


def test_rows_of_a_growing_table_are_below_each_other() -> None:
    head, *rest = lines_of(TextTable(GROWING), 80)
    row, *below = lines_of(table_line(GROWING, ["a", "b" * 20, "12", "one two " * 8]), 80)
    assert not rest
    assert [head.index("figure") + 6, head.index("why")] == [row.index("12") + 2, row.index("one")]
    assert row.startswith(f"a{' ' * 17}{'b' * 16}")
    assert below[0].startswith(f"{' ' * 18}{'b' * 4}")


def test_a_growing_table_leaves_room_for_its_last_cell() -> None:
    lines = lines_of(table_line(GROWING, ["a" * 16, "b" * 16, "12", "7 cells"]), 50)
    assert max(map(len, lines)) <= 50
    assert "7 cells" in lines[0]


def test_columns_without_a_width_are_as_wide_as_their_cells() -> None:
    table = TextTable(
        [Column("rule"), Column("n", right=True)], [(["R1", "3"], ""), (["structure", "12"], "red")]
    )
    assert lines_of(table) == ["rule        n", "R1          3", "structure  12"]


def test_no_cell_can_look_like_another_row() -> None:
    assert lines_of(table_line([Column(width=3), Column()], ["R1", "a\nR2  b"])) == ["R1   a R2  b"]


@pytest.mark.parametrize(
    ("variable", "columns"), [("200", 200), ("40", 40), ("3", 20), ("", 80), ("wide", 80)]
)
def test_the_width_is_at_most_80_unless_it_is_stated(
    monkeypatch: pytest.MonkeyPatch, variable: str, columns: int
) -> None:
    monkeypatch.setenv("COLUMNS", variable)
    assert columns_here() == columns
