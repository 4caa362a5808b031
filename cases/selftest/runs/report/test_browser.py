"""The HTML page in headless Chromium: it renders, filters and opens cells, and makes no request."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from cases.by_day import by_day
from cases.selftest.runs.report.chromium import Browser, browser, missing
from cases.selftest.runs.report.written_runs import write_beside, write_history, write_run
from deepstack_harness.runs.report.page import render_page
from deepstack_harness.runs.report.run_data import load_run

pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(missing() is not None, reason=missing() or ""),
    pytest.mark.xdist_group("browser"),  # one worker, so that it is started once
]

LINES = "return [...document.querySelectorAll('#matrix tbody tr')].filter((one) => !one.hidden).length"
FINDINGS = "return [...document.querySelectorAll('#incidents .finding')].filter((one) => !one.hidden).length"
COLUMNS = (
    "return [...new Set([...document.querySelectorAll('#matrix [data-rule]')]"
    ".filter((one) => !one.hidden).map((one) => one.dataset.rule))]"
)
CELL = "document.querySelector('#matrix td.FAIL[data-rule=R10] a')"
DIALOG = "document.querySelector('#opened')"


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    with browser() as opened:
        yield opened


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    where = tmp_path_factory.mktemp("browser")
    history = write_history(where / "history")
    write_beside(write_run(history / "night-20"))
    target = where / "report.html"
    target.write_text(render_page(load_run(history / "night-20", history)), encoding="utf-8")
    return target


def choose(chromium: Browser, selector: str, value: str) -> None:
    """Set a control of the filters, as a person would."""
    chromium.run(
        f"const one = document.querySelector({json.dumps(f'#filters {selector}')});"
        f"if (one.type === 'checkbox') one.checked = true; else one.value = {json.dumps(value)};"
        "one.dispatchEvent(new Event('input', {bubbles: true}));"
    )


@pytest.mark.parametrize(
    ("scheme", "width"), by_day([("light", 1200), ("dark", 1200), ("light", 390), ("dark", 390)])
)
def test_it_renders_without_an_error_and_without_a_request(
    chromium: Browser, page: Path, scheme: str, width: int
) -> None:
    chromium.open(page, scheme, width)
    assert chromium.run("return document.querySelectorAll('.plot svg').length") == 5
    assert chromium.run(
        "return [...document.querySelectorAll('.plot svg')].every((one) => one.clientHeight > 50)"
    )
    assert chromium.run("return document.documentElement.scrollWidth <= innerWidth")
    assert chromium.run("return innerWidth") == width
    assert chromium.said() == []
    assert chromium.requests() == [page.as_uri()]


def test_no_text_from_outside_was_run(chromium: Browser, page: Path) -> None:
    chromium.open(page)
    assert str(chromium.run("return document.title")).startswith("5 unexpected")
    assert chromium.run("return document.querySelectorAll('script').length") == 1
    assert chromium.run("return document.querySelectorAll('img').length") == 0


def test_every_text_is_readable_in_both_themes(chromium: Browser, page: Path) -> None:
    colours = (
        "return [...document.querySelectorAll('.plot svg text, td, th, p')].map("
        "(one) => getComputedStyle(one)[one.closest('svg') ? 'fill' : 'color'])"
    )
    paper = "return getComputedStyle(document.body).backgroundColor"
    for scheme in ("light", "dark"):
        chromium.open(page, scheme)
        ground, texts = brightness(chromium.run(paper)), chromium.run(colours)
        assert isinstance(texts, list)
        assert len(texts) > 500
        assert min(abs(brightness(colour) - ground) for colour in set(texts)) > 250


def brightness(colour: object) -> int:
    """Red, green and blue of `rgb(r, g, b)` together."""
    return sum(map(int, str(colour).removeprefix("rgb(").removesuffix(")").split(",")))


def test_it_filters_by_family_rule_verdict_and_words(chromium: Browser, page: Path) -> None:
    chromium.open(page)
    assert (chromium.run(LINES), chromium.run(FINDINGS)) == (15, 13)
    choose(chromium, "[data-name='0']", "granite4_vision")
    assert (chromium.run(LINES), chromium.run(FINDINGS)) == (5, 5)
    choose(chromium, "[data-verdict=FAIL]", "")
    assert (chromium.run(LINES), chromium.run(FINDINGS)) == (1, 1)
    choose(chromium, "[data-rule]", "R1")
    assert chromium.run(COLUMNS) == ["R1"]
    assert (chromium.run(LINES), chromium.run(FINDINGS)) == (0, 0)
    chromium.run("document.querySelector('#filters button[type=reset]').click()")
    chromium.run("return new Promise((done) => setTimeout(done))")
    assert (chromium.run(LINES), chromium.run(FINDINGS)) == (15, 13)
    choose(chromium, "[data-search]", "crashed: SIGNAL")
    assert (chromium.run(LINES), chromium.run(FINDINGS)) == (1, 1)
    assert (
        chromium.run("return document.querySelector('#left').textContent")
        == "1 of 15 lines, 1 of 13 findings"
    )


@pytest.mark.slow  # the page, its filters and its colours by day
def test_a_cell_opens_trace_figures_diagnosis_and_script(chromium: Browser, page: Path) -> None:
    chromium.open(page)
    assert chromium.run(f"return {DIALOG}.open") is False
    chromium.run(f"{CELL}.click()")
    assert chromium.run(f"return {DIALOG}.open") is True
    shown = str(chromium.run(f"return {DIALOG}.innerText"))
    assert shown.startswith("granite4_vision inductor/drop_all cpu, R10 work")
    assert "trace cap 16: profile 16; set 9; forward 16; set 5; forward 8" in shown
    assert "4,096 rows, limit 0" in shown
    assert "diagnosis step 3 'forward 16': argument 'payload' was None" in shown
    assert "print('</script><script>stolen()</script>')" in shown
    assert "off by 1.32: <script>document.title='owned'</script><img src=x onerror=alert(1)>" in shown
    marked = str(chromium.run(f"return {DIALOG}.querySelector('tr.asked').cells[0].innerText"))
    assert marked.startswith("R10")
    chromium.run(f"{DIALOG}.querySelector('[data-close]').click()")
    assert chromium.run(f"return {DIALOG}.open") is False
    assert chromium.said() == []


@pytest.mark.slow  # the page, its filters and its colours by day
def test_a_link_to_a_known_finding_shows_it(chromium: Browser, page: Path) -> None:
    chromium.open(page)
    shown = "return document.querySelector('.known .finding .body').checkVisibility()"
    assert chromium.run(shown) is False
    chromium.run("location.hash = document.querySelector('.known .finding').id")
    chromium.run("return new Promise((done) => setTimeout(done, 50))")
    assert chromium.run(shown) is True


@pytest.mark.slow  # the page, its filters and its colours by day
def test_on_paper_the_unexpected_findings_are_open(chromium: Browser, page: Path) -> None:
    chromium.open(page)
    chromium.run("dispatchEvent(new Event('beforeprint'))")
    assert chromium.run("return document.querySelectorAll('#incidents .finding[open]').length") == 4


@pytest.mark.slow  # the page, its filters and its colours by day
def test_the_keyboard_opens_and_closes_a_cell(chromium: Browser, page: Path) -> None:
    from selenium.webdriver import ActionChains, Keys

    chromium.open(page)
    chromium.run(f"{CELL}.focus()")
    ActionChains(chromium.driver).send_keys(Keys.ENTER).perform()
    assert chromium.run(f"return {DIALOG}.open") is True
    ActionChains(chromium.driver).send_keys(Keys.ESCAPE).perform()
    assert chromium.run(f"return {DIALOG}.open") is False
    assert chromium.run(f"return document.activeElement === {CELL}") is True


@pytest.mark.slow  # the page, its filters and its colours by day
def test_the_copy_button_copies_the_script(chromium: Browser, page: Path) -> None:
    chromium.open(page)
    chromium.run(f"{CELL}.click()")
    chromium.run("navigator.clipboard.writeText = async (text) => { window.copied = text; }")
    chromium.run(f"{DIALOG}.querySelector('[data-copy]').click()")
    assert str(chromium.run("return window.copied")).startswith("import torch\n\nprint('</script>")
    assert chromium.run(f"return {DIALOG}.querySelector('[data-copy]').textContent") == "Copied"


@pytest.mark.slow  # the page, its filters and its colours by day
def test_the_theme_can_be_switched_and_is_stored(chromium: Browser, page: Path) -> None:
    chromium.open(page, "light")
    paper = "return getComputedStyle(document.body).backgroundColor"
    light = chromium.run(paper)
    try:
        for _ in range(2):
            chromium.run("document.querySelector('#theme').click()")
        assert chromium.run("return document.querySelector('#theme').textContent") == "Theme: dark"
        assert brightness(light) - brightness(chromium.run(paper)) > 400
        chromium.reload()
        assert chromium.run("return document.documentElement.dataset.theme") == "dark"
    finally:
        chromium.run("localStorage.clear()")


@pytest.mark.slow  # the page, its filters and its colours by day
def test_a_cell_of_a_release_opens_too(chromium: Browser, page: Path) -> None:
    chromium.open(page)
    chromium.run("document.querySelector('#release-matrix td.FAIL a').click()")
    shown = str(chromium.run(f"return {DIALOG}.innerText"))
    assert shown.startswith("vllm 0.20.0 Qwen3VLForConditionalGeneration live, R0 output")
    assert "(default)" in shown


def test_every_figure_has_its_table(chromium: Browser, page: Path) -> None:
    chromium.open(page)
    counted = (
        "return Object.fromEntries([...document.querySelectorAll('.chart')].map("
        "(one) => [one.id, one.querySelectorAll('details.table tbody tr').length]))"
    )
    assert chromium.run(counted) == {
        "distances": 14, "work": 66, "kernels": 3, "graphs": 26, "history": 6, "fuzz": 1,
    }  # fmt: skip


@pytest.mark.slow  # the page, its filters and its colours by day
def test_the_filters_are_in_the_address(chromium: Browser, page: Path) -> None:
    chromium.open(page)
    choose(chromium, "[data-name='0']", "granite4_vision")
    choose(chromium, "[data-verdict=FAIL]", "")
    assert chromium.run("return location.hash") == "#?name0=granite4_vision&verdicts=FAIL"
    chromium.reload()
    assert (chromium.run(LINES), chromium.run(FINDINGS)) == (1, 1)
    chromium.run("document.querySelector('#filters button[type=reset]').click()")
    chromium.run("return new Promise((done) => setTimeout(done))")
    assert chromium.run("return location.hash") == ""


@pytest.mark.slow  # the page, its filters and its colours by day
def test_incidents_without_a_finding_that_is_left_are_hidden(chromium: Browser, page: Path) -> None:
    chromium.open(page)
    shown = (
        "return [...document.querySelectorAll('.incident')].filter((one) => !one.hidden).map((one) => one.id)"
    )
    assert chromium.run(shown) == ["incident-none", "incident-43602"]
    choose(chromium, "[data-verdict=XFAIL]", "")
    assert chromium.run(shown) == ["incident-43602"]


@pytest.mark.slow  # the page, its filters and its colours by day
def test_a_table_is_sorted_by_the_column_that_is_clicked(chromium: Browser, page: Path) -> None:
    chromium.open(page)
    column = (
        "return [...document.querySelectorAll('#incident-none table[data-sort] tbody tr')]"
        ".map((row) => row.cells[1].textContent)"
    )
    control = "document.querySelectorAll('#incident-none table[data-sort] thead .sort')[1]"
    chromium.run(f"{control}.click()")
    rising = chromium.run(column)
    assert isinstance(rising, list)
    assert rising == sorted(rising, key=int)
    assert len(set(rising)) > 2
    chromium.run(f"{control}.click()")
    assert chromium.run(column) == rising[::-1]
    assert chromium.run(f"return {control}.parentElement.getAttribute('aria-sort')") == "descending"
