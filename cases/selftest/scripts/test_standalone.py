"""What is written for an upstream issue: its text.  That it shows the fault, `test_scripts_run.py` runs."""

import ast
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import pytest

from cases.selftest.scripts.written_scripts import FAMILY, MARK, WRITTEN, family_of, with_trace
from deepstack_harness.catalogue.incidents import Incident, catalogue, find
from deepstack_harness.errors import UsageError
from deepstack_harness.scripts.standalone import render_pytest, render_script

every_incident = pytest.mark.parametrize("incident", WRITTEN, ids=lambda incident: incident.id)
both = pytest.mark.parametrize("render", [render_script, render_pytest])

Render = Callable[[Incident, str], str]


def test_every_incident_has_a_script() -> None:
    # But those of generated code, which `kernels` shows with figures: no short program can.
    assert {one.id for one in WRITTEN} == {one.id for one in catalogue() if one.system != "kernels"}


@both
@every_incident
def test_one_line_is_marked_as_the_fault(incident: Incident, render: Render) -> None:
    text = render(incident, family_of(incident))
    assert text.count("# THE FAULT; the fix: ") == len(MARK.findall(text)) == 1


@every_incident
def test_only_torch_pytest_and_the_standard_library_are_imported(incident: Incident) -> None:
    own = {"torch", *sys.stdlib_module_names}
    assert _imported(render_script(incident, family_of(incident))) <= own
    assert _imported(render_pytest(incident, family_of(incident))) <= own | {"pytest"}


def _imported(text: str) -> set[str]:
    nodes = list(ast.walk(ast.parse(text)))
    names = [alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names]
    names += [str(node.module) for node in nodes if isinstance(node, ast.ImportFrom)]
    assert "torch" in names
    return {name.partition(".")[0] for name in names}


@both
@every_incident
def test_what_is_written_is_short(incident: Incident, render: Render) -> None:
    lines = render(incident, family_of(incident)).splitlines()
    assert len(lines) < 110
    assert max(map(len, lines)) <= 110


@both
@every_incident
def test_the_header_says_what_is_shown_and_where_it_was_reported(incident: Incident, render: Render) -> None:
    text = render(incident, family_of(incident))
    header, begun, _ = text.partition("\nimport ")
    facts = [incident.title, incident.symptom, incident.cause, "Inlined: ", "Run: "]
    facts += [incident.script.subject] if incident.script else []
    facts += incident.references if incident.reported else []
    unwrapped = header.replace("\n#  ", "")
    assert begun
    assert [fact for fact in facts if fact not in unwrapped] == []
    assert re.search(r"THIS_FILE, with torch >= 2\.1[01]", unwrapped)
    assert all(line.startswith("#") for line in header.splitlines() if line)


def test_the_header_names_the_flag_and_the_releases() -> None:
    text = render_script(find("43602"), FAMILY)
    assert """--compilation-config '{"mode": 3, "backend": "eager"}'""" in text
    assert "vLLM 0.20.2 .. 0.22.1" in text
    assert "--enforce-eager" in render_script(find("41485"), FAMILY)


def test_the_header_says_what_is_needed_beyond_the_usual() -> None:
    written = {number: render_script(find(number), family_of(find(number))) for number in ("40917", "50891")}
    assert "with torch >= 2.10, a C++ compiler, alone" in written["40917"]
    assert "with torch >= 2.11, alone" in written["50891"]


@pytest.mark.skipif(find_spec("ruff") is None, reason="ruff is not installed")
@pytest.mark.parametrize(
    "command",
    # B905: a zip that must be strict is noise in an issue.
    [["check", "--select", "B,E,F,I,UP,W", "--ignore", "B905"], ["format", "--diff"]],
    ids=["check", "format"],
)
def test_a_linter_and_a_formatter_have_nothing_to_say(command: list[str], tmp_path: Path) -> None:
    for incident in WRITTEN:
        for render in (render_script, render_pytest):
            text = render(incident, family_of(incident))
            (tmp_path / f"{render.__name__}_{incident.id.replace('-', '_')}.py").write_text(text)
    ruff = [sys.executable, "-m", "ruff", *command, "--isolated", "--no-cache", "--line-length", "110", "."]
    ran = subprocess.run(ruff, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stdout


def test_the_steps_are_those_of_the_catalogue() -> None:
    text = render_script(with_trace(find("43602"), "cap 32: profile 31; set 7; clear 5; forward 8"), FAMILY)
    calls = ["forward(31)", "set(drawn(LEVELS, 7))", "clear(5)", "forward(8)"]
    places = [text.find(call) for call in calls]
    assert -1 not in places
    assert places == sorted(places)
    assert "CAPACITY = 3, 128, 32\n" in text
    assert "16" not in text.partition("\nimport ")[2]


def test_many_steps_stand_one_to_a_line() -> None:
    steps = "; ".join(f"set {tokens}; forward 16" for tokens in range(1, 10))
    text = render_script(with_trace(find("1635"), f"cap 16: {steps}"), FAMILY)
    assert '\nSTEPS = [\n    ("set", 1),\n    ("forward", 16),\n' in text
    assert '    ("forward", 16),\n]\n' in text


@pytest.mark.parametrize(
    ("number", "trace", "quoted"),
    [
        ("43602", "cap 16: set 9; resize 12", "'resize 12'"),
        ("43602", "cap 16: profile 16; capture 16", "'capture 16'"),
        ("43602", "cap 16: profile 16; reload", "'reload'"),
        ("43602", "cap 16: set 20", "'set 20' at capacity 16"),
        ("43602", "cap 16: set 9; get 0", "'get 0'"),
        ("43602", "cap 16: set 9 levels=4; forward 16", "'set 9 levels=4'"),
        ("replayed-clear", "cap 16: capture 16; set 16; forward 16", "'forward 16'"),
        ("S6", "cap 16: set 16; get 33", "'get 33' at capacity 16"),
    ],
)
def test_a_step_that_no_script_has_is_quoted(number: str, trace: str, quoted: str) -> None:
    with pytest.raises(UsageError, match=re.escape(quoted)):
        render_script(with_trace(find(number), trace), FAMILY)


@both
def test_an_incident_without_a_script_is_told_which_have_one(render: Render) -> None:
    other = replace(find("43602"), id="1", name="unknown", script=None)
    with pytest.raises(UsageError, match=r"no script .* incident 1 \(unknown\); 43602, 41485, .* have one"):
        render(other, FAMILY)


@both
def test_a_script_without_a_template_is_refused(render: Render) -> None:
    # Incidents of other packages have none.
    with pytest.raises(UsageError, match=r"incident acme-7 \(none-while-.*templates has no folder 'acme-7'"):
        render(replace(find("43602"), id="acme-7"), FAMILY)


def test_a_family_that_the_incident_has_not_is_refused() -> None:
    with pytest.raises(UsageError, match="has no family 'gpt2'; it has qwen3_vl"):
        render_script(find("43602"), "gpt2")


def test_an_incident_without_the_run_that_a_script_shows_is_refused() -> None:
    narrowed = replace(find("34690"), families=("qwen3_vl", "granite4_vision"))
    assert render_script(narrowed, "qwen3_vl")
    with pytest.raises(UsageError, match="no run of family 'granite4_vision' in which .* under 'eager"):
        render_script(narrowed, "granite4_vision")
