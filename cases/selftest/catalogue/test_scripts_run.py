"""What is written for an upstream issue, run: red as it is, green with its marked line changed."""

import re
from pathlib import Path

import pytest

import deepstack_harness
from cases.selftest.catalogue.written_scripts import (
    FAMILY,
    MARK,
    OPTIONS,
    WRITTEN,
    family_of,
    fixed,
    outcomes,
    run_pytest,
    run_python,
    run_scripts,
    with_trace,
)
from deepstack_harness.catalogue.buffers import REVISIONS
from deepstack_harness.catalogue.incidents import find
from deepstack_harness.catalogue.scripts import render_pytest, render_script

INDUCTOR, RANKS = ("40917", "17211"), "18098"
# The scripts of nightly incidents too, 0.3 s each: daily nothing else compiles these.
TOGETHER = [incident.id for incident in WRITTEN if incident.id not in (*INDUCTOR, RANKS)]
WITH_FIXTURES = ("43602", "41485", "53516")
OTHERS = [number for number in TOGETHER if number not in WITH_FIXTURES]
# Few child processes: whatever needs none of its own shares one.
in_groups = pytest.mark.parametrize(
    "numbers",
    [
        pytest.param(TOGETHER, id="together", marks=pytest.mark.xdist_group("eager")),
        pytest.param(
            [*INDUCTOR], id="inductor", marks=[pytest.mark.xdist_group("inductor"), pytest.mark.slow]
        ),
        # Two real processes, which a busy machine may tear down in another order: nightly.
        pytest.param([RANKS], id="ranks", marks=[pytest.mark.xdist_group("ranks"), pytest.mark.slow]),
    ],
)
# A pytest file and its script have the same result: all but a few are nightly.
pytest_files_in_groups = pytest.mark.parametrize(
    "numbers",
    [
        pytest.param([*WITH_FIXTURES], id="few", marks=pytest.mark.xdist_group("eager")),
        pytest.param(OTHERS, id="together", marks=[pytest.mark.xdist_group("eager"), pytest.mark.slow]),
        pytest.param(
            [*INDUCTOR], id="inductor", marks=[pytest.mark.xdist_group("inductor"), pytest.mark.slow]
        ),
        pytest.param([RANKS], id="ranks", marks=[pytest.mark.xdist_group("ranks"), pytest.mark.slow]),
    ],
)


def scripts(numbers: list[str]) -> dict[str, str]:
    return {number: render_script(find(number), family_of(find(number))) for number in numbers}


def pytest_files(numbers: list[str]) -> dict[str, str]:
    """Of each incident, and with other traces that show the same."""
    texts = {
        number.replace("-", "_"): render_pytest(find(number), family_of(find(number))) for number in numbers
    }
    if "43602" in numbers:
        padded = with_trace(find("43602"), "cap 32: profile 32; set 7; get 8; forward 8; forward 1")
        stepped = with_trace(find("41485"), "cap 24: profile 24; set 9; forward 16; set 3; get 4")
        texts["43602_padded"] = render_pytest(padded, FAMILY)
        texts["41485_forward"] = render_pytest(stepped, FAMILY)
    return texts


@in_groups
def test_a_script_exits_1_with_its_fault_and_0_with_its_fix(numbers: list[str], tmp_path: Path) -> None:
    texts = scripts(numbers)
    repaired = {f"{number}_fixed": fixed(text) for number, text in texts.items()}
    ended = run_scripts(tmp_path, texts | repaired)
    assert {name: code for name, (code, _) in ended.items()} == dict.fromkeys(texts, 1) | dict.fromkeys(
        repaired, 0
    )
    assert [name for name, (_, output) in ended.items() if not output.strip() or len(output) > 1000] == []


@pytest_files_in_groups
@pytest.mark.slow  # 5 s; one is run by test_cli.py by day
def test_every_test_of_the_pytest_files_is_red(numbers: list[str], tmp_path: Path) -> None:
    texts = pytest_files(numbers)
    ran = run_pytest(tmp_path, texts)
    assert ran.returncode == pytest.ExitCode.TESTS_FAILED
    assert outcomes(ran) == {name: {"FAILED"} for name in texts}


@pytest_files_in_groups
@pytest.mark.slow  # 11 s; the scripts are fixed every day
def test_every_test_of_the_pytest_files_is_green_with_the_fix(numbers: list[str], tmp_path: Path) -> None:
    texts = pytest_files(numbers)
    ran = run_pytest(tmp_path, {name: fixed(text) for name, text in texts.items()})
    assert (ran.returncode, outcomes(ran)) == (0, {name: {"PASSED"} for name in texts}), ran.stdout


@pytest.mark.xdist_group("eager")
@pytest.mark.slow  # 5 s
def test_what_the_scripts_measure(tmp_path: Path) -> None:
    none, refused = render_script(find("43602"), FAMILY), render_script(find("41485"), FAMILY)
    nothing = MARK.sub(r"\1return ()", none)
    ended = run_scripts(tmp_path, {"none": none, "nothing": nothing, "refused": refused})
    (line,) = ended["none"][1].splitlines()
    off = re.fullmatch(r"forward 16: off from eager by (\d.*), from no payload by 0", line)
    assert off
    assert float(off[1]) > 1
    # A payload that is never there is a fault, too: outputs are compared with what was set.
    assert ended["nothing"][0] == 1
    raised = "ValueError: 16 tokens requested, 9 set, room for 16"
    assert ended["refused"][1].splitlines() == [f"get 16: {raised}", f"clear 16: {raised}"]


@pytest.mark.xdist_group("eager")
@pytest.mark.slow  # 7 s
def test_the_pytest_files_judge_each_revision_as_the_catalogue_does(tmp_path: Path) -> None:
    expected = {}
    for number in WITH_FIXTURES:
        for revision in find(number).revisions:
            name = f"test_{number}_{revision}"
            (tmp_path / f"{name}.py").write_text(_of_revision(render_pytest(find(number), FAMILY), revision))
            expected[name.removeprefix("test_")] = revision in find(number).faulty
    checkout = str(Path(deepstack_harness.__file__).parents[1])
    ran = run_python(tmp_path, "-m", "pytest", *OPTIONS, PYTHONPATH=checkout)
    assert {name: "FAILED" in seen for name, seen in outcomes(ran).items()} == expected
    assert "ERROR" not in ran.stdout


def _of_revision(text: str, revision: str) -> str:
    """The pytest file with its fixture changed to give a revision of the harness, as its comment invites."""
    module, name = REVISIONS[revision].target.split(":")
    place = 'dtype=torch.float32, device=torch.device("cpu")'
    made = f"made_by = staticmethod(functools.partial({name}, CAPACITY, HIDDEN, LEVELS, {place}))"
    made = f"import functools\n    from {module} import {name}\n    {made}"
    changed, places = re.subn(r"made_by = .*  # to test a buffer of your own.*", made, text)
    assert places == 1
    return changed
