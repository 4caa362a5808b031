"""Thirty nights: since when a cell is red and with which versions, which flip or are not tested any more."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from cases.selftest.runs.planted import NoneWhenEmpty, play
from cases.selftest.runs.written_results import about
from deepstack_harness.contract.rules import Rule
from deepstack_harness.contract.verdicts import Verdict
from deepstack_harness.models.reference import ReferenceBuffer
from deepstack_harness.runs.case_result import CaseResult
from deepstack_harness.runs.nights import EndedStage, StageOutcome, write_summary
from deepstack_harness.runs.records import Files
from deepstack_harness.runs.report.nights_strip import CellState, Nights, Strip, nights_of
from deepstack_harness.runs.report.page import render_page
from deepstack_harness.runs.report.run_data import load_run
from deepstack_harness.runs.store import RunWriter

Results = Sequence[CaseResult]


def green() -> Results:
    return play(ReferenceBuffer)[:6]


def red() -> Results:
    return play(NoneWhenEmpty)[:6]


def with_verdict(results: Results, rule: Rule, verdict: Verdict) -> Results:
    return [
        replace(
            result,
            rows=tuple(replace(row, verdict=verdict) if row.rule is rule else row for row in result.rows),
        )
        for result in results
    ]


def untested() -> Results:
    return with_verdict(green(), Rule.PLACEMENT, Verdict.SKIP)


def unjudged() -> Results:
    return with_verdict(green(), Rule.PLACEMENT, Verdict.ERROR)


def history(folder: Path, nights: Sequence[Results], torch: Sequence[str] = ()) -> Path:
    """Write nights of the real store, a day apart; return the folder of the last one."""
    last = folder
    for number, results in enumerate(nights):
        last = folder / f"night-{number:02d}"
        settings = about(len(results))
        version = torch[number] if torch else "2.13.0"
        settings = replace(
            settings, started=f"2026-11-{number + 1:02d}T02:00:00.000+00:00",
            environment=replace(settings.environment, torch=version),
        )  # fmt: skip
        writer = RunWriter(Files(last), settings, resume=False)
        for result in results:
            writer.append([replace(row, torch=version) for row in result.rows], result.case)
        writer.finish()
        writer.close()
        write_summary(last, [EndedStage("run", StageOutcome.HELD, 0, 60.0 * (number + 1))])
    return last


@pytest.fixture
def shown(tmp_path: Path) -> Callable[..., Nights]:
    def show_nights(nights: Sequence[Results], torch: Sequence[str] = ()) -> Nights:
        nights_shown = nights_of(load_run(history(tmp_path, nights, torch), tmp_path))
        assert nights_shown is not None
        return nights_shown

    return show_nights


def strip_of(nights: Nights, rule: Rule) -> Strip:
    return next(strip for strip in nights.strips if strip.rule is rule)


@pytest.mark.slow  # 3 s
def test_a_red_night_after_green_ones_is_shown_with_its_versions(shown: Callable[..., Nights]) -> None:
    nights = shown([green()] * 4 + [red()], ["2.13.0"] * 4 + ["2.15.0"])
    strip = strip_of(nights, Rule.STRUCTURE)
    assert strip.states == (CellState.KEPT,) * 4 + (CellState.RED,)
    assert strip.red_since is nights.nights[-1]
    assert (strip.red_nights, strip.from_the_start, strip.flaky) == (1, False, False)
    assert nights.nights[-1].changed == ("torch 2.15.0",)
    assert [night.seconds for night in nights.nights] == [60, 120, 180, 240, 300]
    assert nights.strips[0] is strip


def test_since_when_is_the_first_of_the_last_red_nights(shown: Callable[..., Nights]) -> None:
    nights = shown([red(), green(), green(), red(), red()])
    strip = strip_of(nights, Rule.STRUCTURE)
    assert strip.red_since is nights.nights[3]
    assert (strip.red_nights, strip.flips) == (2, 2)
    assert not strip.flaky


def test_red_in_all_nights(shown: Callable[..., Nights]) -> None:
    assert strip_of(shown([red(), red()]), Rule.STRUCTURE).from_the_start


def test_a_cell_that_flips_without_end_is_flaky(shown: Callable[..., Nights]) -> None:
    strip = strip_of(shown([green(), unjudged(), green(), unjudged(), green()]), Rule.PLACEMENT)
    assert strip.flips == 4
    assert strip.flaky
    assert strip.red_since is None


def test_a_cell_that_is_not_tested_any_more_is_shown_with_its_last_night(
    shown: Callable[..., Nights],
) -> None:
    nights = shown([green(), green(), untested()])
    strip = strip_of(nights, Rule.PLACEMENT)
    assert strip.last_tested is nights.nights[1]
    assert nights.no_longer_tested == [strip]
    assert not strip.steady
    assert strip_of(nights, Rule.STRUCTURE).steady


@pytest.mark.slow  # 5 s
def test_thirty_nights_are_shown_and_the_others_counted(shown: Callable[..., Nights]) -> None:
    few = green()[:1]
    nights = shown([few] * 30)
    assert (len(nights.nights), nights.left_out) == (30, 0)


def test_the_page_shows_a_red_night_once(tmp_path: Path) -> None:
    last = history(tmp_path, [*[green()] * 3, untested(), red()], ["2.13.0"] * 4 + ["2.15.0"])
    page = render_page(load_run(last, tmp_path))
    assert (
        "R1 structure of qwen3_vl is red since 2026-11-05 02:00 UTC (1 night); new that night: torch 2.15.0."
        in page
    )
    assert page.index('id="changes"') < page.index('id="today"') < page.index('id="nights"')
    assert page.index('id="nights"') < page.index('id="incidents"')
    assert "R1 structure: none in get" in page
    assert "Tested 2026-11-05 02:00 UTC: the buffers reference; qwen3_vl under " in page
    assert "do not apply" not in page
    today = page.partition('id="today"')[2].partition("</section>")[0]
    assert today.count("<li>") == 1
    assert "R1 structure: none in get: " in today
    assert load_run(last).history is None
    assert nights_of(load_run(last)) is None
