"""Rows in words: rules, promises, and what could not be judged by either."""

from dataclasses import replace

import pytest

from deepstack_harness.contract.rules import Promise, Rule
from deepstack_harness.contract.verdicts import Effect, FaultKind, Row, Verdict
from deepstack_harness.document.shown import problem_of, shown

BROKEN = Row(
    rule=Rule.BOUNDARY, verdict=Verdict.FAIL, revision="pr40145", trace="cap 16: get 4", arm="eager/drop_all",
    value=3, limit=0, unit="rows", reach="default", detail="rows 1\n to 3 are zeros", shape=FaultKind.ZEROS,
    effect=Effect.OUTPUT,
)  # fmt: skip


def test_a_broken_rule_has_figure_limit_place_and_reason() -> None:
    words = shown(BROKEN)
    assert words.measured == "3 rows, limit 0"
    assert words.seen == "on 'cap 16: get 4' under eager/drop_all: rows 1 to 3 are zeros"
    assert words.sentence == (
        "R2 boundary: 3 rows, limit 0, on 'cap 16: get 4' under eager/drop_all: rows 1 to 3 are zeros"
    )


def test_a_promise_is_shown_in_the_same_words() -> None:
    row = Row[Promise](
        rule=Promise.SPECIALISATION, verdict=Verdict.FAIL, revision="mine.py:calls", arm="eager/drop_all",
        value=0.25, limit=1.8e-05, detail="answer differs",
    )  # fmt: skip
    assert shown(row).sentence == (
        "I1 specialisation: 0.25, limit 1.8e-05, under eager/drop_all: answer differs"
    )


def test_a_row_without_a_rule_was_not_judged() -> None:
    row = Row[None](rule=None, verdict=Verdict.ERROR, revision="C", where="vllm/a.py:7", detail="no caller")
    assert shown(row).sentence == "not judged: in vllm/a.py:7: no caller"


@pytest.mark.parametrize(
    ("value", "unit", "figure"),
    [
        (None, "rows", ""),
        (1, "rows", "1 row"),
        (0, "graphs", "0 graphs"),
        (8192, "rows", "8,192 rows"),
        (0.000123456, "", "0.0001235"),
        (1.7e308, "", "not finite"),
    ],
)
def test_a_figure_has_no_more_digits_than_matter(value: float | None, unit: str, figure: str) -> None:
    assert shown(replace(BROKEN, value=value, unit=unit)).figure == figure


@pytest.mark.parametrize(
    ("reach", "words"),
    [
        ("default", "with default settings"),
        ("flag: --async-scheduling", "with --async-scheduling"),
        ("latent", "under calls that no engine makes today"),
        ("unknown", "whether the engine makes such calls is not known"),
        (None, ""),
    ],
)
def test_the_reach_is_in_words(reach: str | None, words: str) -> None:
    assert shown(replace(BROKEN, reach=reach)).reach == words


def test_a_problem_is_what_users_of_the_engine_notice() -> None:
    assert problem_of(BROKEN) == (
        "a step is computed without its image features, the output is wrong, with default settings"
    )
    assert problem_of(replace(BROKEN, shape=FaultKind.LIVE, effect=None, reach=None)) == (
        "a step does not get the image features of its own tokens, whether the engine makes such calls is "
        "not known"
    )
