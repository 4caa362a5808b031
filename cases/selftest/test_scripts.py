"""What is written for an upstream issue: red on its own, green with its marked line changed as it says."""

import ast
import os
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import pytest

import harness
from harness.errors import UsageError
from harness.incidents import Incident, find
from harness.registry import REVISIONS
from harness.scripts.standalone import SHOWN, render_pytest, render_script

FAMILY = "qwen3_vl"
MARK = re.compile(r"^( +)\S.*  # THE FAULT; the fix: (.+)$", re.MULTILINE)
# Importing the harness is an error in the child, also where it is installed.
SCRIPT = "import runpy, sys; sys.modules['harness'] = None; runpy.run_path(sys.argv[1], run_name='__main__')"
PYTEST = "import pytest, sys; sys.modules['harness'] = None; sys.exit(pytest.main(sys.argv[1:]))"
# Without the settings of a project that the temporary folder may lie in.
OPTIONS = ("-c", os.devnull, "--rootdir", ".", "-p", "no:cacheprovider", "-rA", "--tb=line")
OUTCOME = re.compile(r"^(PASSED|FAILED|ERROR) (\w+)\.py::", re.MULTILINE)
every_incident = pytest.mark.parametrize("incident", [find(number) for number in SHOWN], ids=SHOWN)
both = pytest.mark.parametrize("render", [render_script, render_pytest])

Ran = subprocess.CompletedProcess[str]
Render = Callable[[Incident, str], str]


def fixed(text: str) -> str:
    """`text` with the statement that its mark gives in place of the marked one."""
    changed, marks = MARK.subn(r"\1\2", text)
    assert marks == 1
    return changed


def run_python(folder: Path, *arguments: str, **variables: str) -> Ran:
    environment = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", **variables}
    command = [sys.executable, *arguments]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)


def run_script(folder: Path, text: str) -> Ran:
    (folder / "shown.py").write_text(text)
    return run_python(folder, "-I", "-c", SCRIPT, "shown.py")


def run_pytest(folder: Path, texts: dict[str, str]) -> Ran:
    for name, text in texts.items():
        (folder / f"test_{name}.py").write_text(text)
    return run_python(folder, "-I", "-c", PYTEST, *OPTIONS)


def outcomes(ran: Ran) -> dict[str, set[str]]:
    """What became of the tests of each file."""
    found: dict[str, set[str]] = {}
    for outcome, name in OUTCOME.findall(ran.stdout):
        found.setdefault(name.removeprefix("test_"), set()).add(outcome)
    return found


def with_trace(incident: Incident, trace: str) -> Incident:
    return replace(incident, run=tuple(replace(run, trace=trace) for run in incident.run))


def variants() -> dict[str, str]:
    """The pytest file of every incident, and of other traces that show the same."""
    shown = {number: find(number) for number in SHOWN}
    shown["43602_padded"] = with_trace(
        find("43602"), "cap 32: profile 32; set 7; get 8; forward 8; forward 1"
    )
    shown["41485_forward"] = with_trace(find("41485"), "cap 24: profile 24; set 9; forward 16; set 3; get 4")
    return {name: render_pytest(incident, FAMILY) for name, incident in shown.items()}


def test_the_script_of_43602_measures_the_dropped_payload(tmp_path: Path) -> None:
    ran = run_script(tmp_path, render_script(find("43602"), FAMILY))
    assert (ran.returncode, ran.stderr.endswith("the payload was not added\n")) == (1, True)
    profile, forward = (list(map(float, re.findall(r"\d\.\d{5}", line))) for line in ran.stdout.splitlines())
    assert profile == [0, 0]
    assert forward[0] > 1
    assert forward[1] == 0


def test_the_script_of_43602_with_the_fix_equals_eager(tmp_path: Path) -> None:
    ran = run_script(tmp_path, fixed(render_script(find("43602"), FAMILY)))
    assert ran.returncode == 0
    assert re.search(r"compiled - eager 0\.00000, compiled - no deepstack [1-9]", ran.stdout)


def test_the_script_of_43602_does_not_judge_where_the_payload_does_nothing(tmp_path: Path) -> None:
    text = MARK.sub(r"\1return None", render_script(find("43602"), FAMILY))
    assert run_script(tmp_path, text).returncode == 2


def test_the_script_of_41485_shows_both_sites(tmp_path: Path) -> None:
    ran = run_script(tmp_path, render_script(find("41485"), FAMILY))
    assert (ran.returncode, ran.stderr.endswith("2 padded calls were refused\n")) == (1, True)
    raised = "ValueError: 16 tokens asked for, 9 set, room for 16"
    assert ran.stdout.splitlines() == [f"get(16): {raised}", f"clear(16): {raised}"]


def test_the_script_of_41485_with_the_fix_gives_the_payload_and_zeros(tmp_path: Path) -> None:
    ran = run_script(tmp_path, fixed(render_script(find("41485"), FAMILY)))
    assert ran.returncode == 0
    assert ran.stdout.splitlines() == ["get(16): accepted, 9 of 16 rows in use", "clear(16): accepted"]


def test_every_test_of_the_pytest_files_is_red(tmp_path: Path) -> None:
    ran = run_pytest(tmp_path, variants())
    assert ran.returncode == pytest.ExitCode.TESTS_FAILED
    assert outcomes(ran) == {name: {"FAILED"} for name in variants()}


def test_every_test_of_the_pytest_files_is_green_with_the_fix(tmp_path: Path) -> None:
    ran = run_pytest(tmp_path, {name: fixed(text) for name, text in variants().items()})
    assert ran.returncode == pytest.ExitCode.OK
    assert outcomes(ran) == {name: {"PASSED"} for name in variants()}


def test_the_pytest_files_judge_each_revision_as_the_catalogue_does(tmp_path: Path) -> None:
    expected = {}
    for number in SHOWN:
        for revision in find(number).revisions:
            name = f"test_{number}_{revision}"
            (tmp_path / f"{name}.py").write_text(_of_revision(render_pytest(find(number), FAMILY), revision))
            expected[name.removeprefix("test_")] = revision in find(number).faulty
    checkout = str(Path(harness.__file__).parents[1])
    ran = run_python(tmp_path, "-m", "pytest", *OPTIONS, PYTHONPATH=checkout)
    assert {name: "FAILED" in seen for name, seen in outcomes(ran).items()} == expected
    assert "ERROR" not in ran.stdout


def _of_revision(text: str, revision: str) -> str:
    """The pytest file with its fixture changed to give a revision of the harness, as its comment invites."""
    module, name = REVISIONS[revision].target.split(":")
    place = 'dtype=torch.float32, device=torch.device("cpu")'
    made = f"from {module} import {name}\n    return {name}(CAPACITY, HIDDEN, LEVELS, {place})"
    changed, fixtures = re.subn(r"return Buffer\(\)  # to test a buffer of your own.*", made, text)
    assert fixtures == 1
    return changed


@every_incident
def test_only_torch_and_pytest_are_imported(incident: Incident) -> None:
    assert _imported(render_script(incident, FAMILY)) == {"torch"}
    assert _imported(render_pytest(incident, FAMILY)) == {"torch", "pytest"}


def _imported(text: str) -> set[str]:
    nodes = list(ast.walk(ast.parse(text)))
    assert not [node for node in nodes if isinstance(node, ast.ImportFrom)]
    return {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}


@every_incident
def test_a_script_is_short(incident: Incident) -> None:
    lines = render_script(incident, FAMILY).splitlines()
    assert len(lines) < 60
    assert max(map(len, lines)) <= 100


@every_incident
@both
def test_the_header_says_what_is_shown_and_where_it_was_reported(incident: Incident, render: Render) -> None:
    text = render(incident, FAMILY)
    header = text.partition("\nimport ")[0].replace("\n#  ", "")
    facts = [incident.title, incident.symptom, incident.cause, *incident.references, "torch >= 2.10"]
    assert [fact for fact in facts if fact not in header] == []
    assert all(line.startswith("#") for line in header.splitlines() if line)


def test_the_header_names_the_flag_and_the_releases() -> None:
    text = render_script(find("43602"), FAMILY)
    assert """--compilation-config '{"mode": 3, "backend": "eager"}'""" in text
    assert "vLLM 0.20.2 .. 0.22.1" in text
    assert "--enforce-eager" in render_script(find("41485"), FAMILY)


@pytest.mark.skipif(find_spec("ruff") is None, reason="ruff is not installed")
@both
@every_incident
def test_a_linter_has_nothing_to_say(incident: Incident, render: Render, tmp_path: Path) -> None:
    (tmp_path / "shown.py").write_text(render(incident, FAMILY))
    rules = ["--isolated", "--no-cache", "--select", "B,E,F,I,UP,W", "--line-length", "100"]
    ran = run_python(tmp_path, "-m", "ruff", "check", *rules, "shown.py")
    assert ran.returncode == 0, ran.stdout


def test_the_steps_are_those_of_the_catalogue() -> None:
    text = render_script(with_trace(find("43602"), "cap 32: profile 31; set 7; clear 5; forward 8"), FAMILY)
    calls = ["forward(31)", "set(torch.randn(LEVELS, 7, HIDDEN", "clear(5)", "forward(8)"]
    places = [text.find(call) for call in calls]
    assert -1 not in places
    assert places == sorted(places)
    assert "CAPACITY = 3, 128, 32\n" in text
    assert "16" not in text.partition("\nimport ")[2]


@pytest.mark.parametrize(
    ("trace", "quoted"),
    [
        ("cap 16: set 9; resize 12", "'resize 12'"),
        ("cap 16: profile 16; capture 16", "'capture 16'"),
        ("cap 16: set 20", "'set 20' at capacity 16"),
        ("cap 16: set 9; get 0", "'get 0'"),
        ("cap 16: set 9 levels=4; forward 16", "'set 9 levels=4'"),
    ],
)
def test_a_step_that_no_script_has_is_quoted(trace: str, quoted: str) -> None:
    with pytest.raises(UsageError, match=re.escape(quoted)):
        render_script(with_trace(find("43602"), trace), FAMILY)


@both
def test_an_incident_without_a_script_is_told_which_have_one(render: Render) -> None:
    other = replace(find("43602"), id="40917", name="whole-buffer")
    sentence = r"no script .* incident 40917 \(whole-buffer\); 43602 and 41485 have one"
    with pytest.raises(UsageError, match=sentence):
        render(other, FAMILY)


def test_a_family_that_the_incident_has_not_is_refused() -> None:
    with pytest.raises(UsageError, match="has no family 'gpt2'; it has qwen3_vl"):
        render_script(find("43602"), "gpt2")


def test_an_incident_without_the_run_that_a_script_shows_is_refused() -> None:
    with pytest.raises(UsageError, match="pr40932 breaks a rule under 'eager/drop_all'"):
        render_script(replace(find("43602"), run=()), FAMILY)
