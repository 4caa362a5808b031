"""Programs of incidents and of findings: what is rendered, inlined and refused."""

import ast
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest
from msgspec.structs import replace

from cases.by_day import by_day
from cases.selftest.catalogue.written_scripts import FAMILY, MARK, WRITTEN, family_of, run_scripts, with_trace
from cases.selftest.engines.synthetic_vllm import ModelFile, Vllm, write_compiling
from deepstack_harness.catalogue import scripts
from deepstack_harness.catalogue.incidents import Incident, catalogue, find
from deepstack_harness.catalogue.scripts import (
    ProgramBuffer,
    ProgramText,
    SourceProgram,
    render_finding,
    render_pytest,
    render_script,
    render_source_script,
)
from deepstack_harness.cli.main import main
from deepstack_harness.contract.rules import Rule
from deepstack_harness.contract.trace import Trace
from deepstack_harness.engines.known import open_source
from deepstack_harness.errors import ExitCode, UsageError

every_incident = pytest.mark.parametrize("incident", WRITTEN, ids=lambda incident: incident.id)
both = pytest.mark.parametrize("render", [render_script, render_pytest])

Render = Callable[[Incident, str], str]


def test_every_incident_has_a_script() -> None:
    # But those of generated code, which `kernels` shows with figures: no short program can.
    assert {incident.id for incident in WRITTEN} == {
        incident.id for incident in catalogue() if incident.system != "kernels"
    }


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
    # Programs of one kind share their engine: what a script has of it is the price of one text for all.
    assert len(lines) < 180
    assert max(map(len, lines)) <= 110


@both
@every_incident
def test_the_header_states_what_is_shown_and_where_it_was_reported(
    incident: Incident, render: Render
) -> None:
    text = render(incident, family_of(incident))
    header, begun, _ = re.split(r"\n(import|from) ", text, maxsplit=1)
    facts = [incident.title, incident.symptom, incident.cause, "Inlined: ", "Run: "]
    facts += [incident.script.subject] if incident.script else []
    facts += incident.references if incident.reported else []
    unwrapped = header.replace("\n#  ", "")
    assert begun
    assert [fact for fact in facts if fact not in unwrapped] == []
    assert re.search(r"THIS_FILE, with torch >= 2\.1[012]", unwrapped)
    assert all(line.startswith("#") for line in header.splitlines() if line)


def test_the_header_names_the_flag_and_the_releases() -> None:
    text = render_script(find("43602"), FAMILY)
    assert """--compilation-config '{"mode": 3, "backend": "eager"}'""" in text
    assert "vLLM 0.20.2 .. 0.22.1" in text
    assert "--enforce-eager" in render_script(find("41485"), FAMILY)


def test_the_header_names_what_is_needed_beyond_the_usual() -> None:
    written = {number: render_script(find(number), family_of(find(number))) for number in ("40917", "50891")}
    assert "with torch >= 2.12, a C++ compiler, alone" in written["40917"]
    assert "with torch >= 2.11, alone" in written["50891"]


@pytest.mark.skipif(find_spec("ruff") is None, reason="ruff is not installed")
@pytest.mark.parametrize(
    "command",
    # B905: a zip that must be strict is noise in an issue.
    by_day([["check", "--select", "B,E,F,I,UP,W", "--ignore", "B905"], ["format", "--diff"]]),
    ids=["check", "format"],
)
def test_a_linter_and_a_formatter_find_nothing(command: list[str], tmp_path: Path) -> None:
    for incident in WRITTEN:
        for render in (render_script, render_pytest):
            text = render(incident, family_of(incident))
            (tmp_path / f"{render.__name__}_{incident.id.replace('-', '_')}.py").write_text(text)
    ruff = [sys.executable, "-m", "ruff", *command, "--isolated", "--no-cache", "--line-length", "110", "."]
    ran = subprocess.run(ruff, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stdout


def test_the_sizes_and_steps_are_those_of_the_catalogue() -> None:
    text = render_script(with_trace(find("43602"), "cap 32: profile 31; set 7; clear 5; forward 8"), FAMILY)
    assert "\nLEVELS, HIDDEN, WIDTH, CAPACITY = 3, 128, 128, 32\n" in text
    assert '\nSTEPS = [("profile", 31), ("set", 7), ("clear", 5), ("forward", 8)]\n' in text


def test_a_payload_of_zeros_is_a_step_without_one() -> None:
    text = render_script(find("18207"), family_of(find("18207")))
    assert '\nSTEPS = [("capture", 16), ("set", 16), ("replay", 16), ("replay", 16)]\n' in text


def test_many_steps_are_one_to_a_line() -> None:
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
def test_an_incident_without_a_script_is_refused_with_those_that_have_one(render: Render) -> None:
    other = replace(find("43602"), id="1", name="unknown", script=None)
    with pytest.raises(UsageError, match=r"no script .* incident 1 \(unknown\); 43602, 41485, .* have one"):
        render(other, FAMILY)


@both
@pytest.mark.parametrize(
    ("changed", "sentence"),
    [
        ({"program": ""}, r"its \[incident.script\] has no 'program'"),
        ({"fix": "return None"}, "'return None' is 0 lines of deepstack.*:CompiledEngine, not one"),
        ({"fix": "self.tokens = 0"}, "'self.tokens = 0' is 2 lines of"),
    ],
)
def test_a_script_without_a_program_or_its_line_is_refused(
    render: Render, changed: dict[str, str], sentence: str
) -> None:
    incident = find("43602")
    assert incident.script
    with pytest.raises(UsageError, match=rf"incident 43602 \(none-while-profiling\): {sentence}"):
        render(replace(incident, script=replace(incident.script, **changed)), FAMILY)


def unshown(folder: Path) -> set[str]:
    """Return the definitions of the programs in a folder that no script has."""
    texts = [render_script(incident, family_of(incident)) for incident in WRITTEN]
    texts.append(render_source_script(find("43602"), FAMILY, SourceProgram(UPSTREAM, "vLLM", "vllm")))
    texts.append(program("cap 16: get 4", Rule.STRUCTURE, UPSTREAM))
    bound = {name for path in folder.glob("*.py") for name in definitions(path.read_text())}
    return bound - {name for text in texts for name in definitions(text)}


def definitions(text: str) -> Iterator[str]:
    """Yield the names that a module defines."""
    for node in ast.parse(text).body:
        names = (name.id for name in ast.walk(node) if isinstance(name, ast.Name))
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            yield node.name
        elif isinstance(node, ast.Assign):
            yield from names


def test_every_definition_of_the_programs_is_shown_by_some_script(tmp_path: Path) -> None:
    folder = Path(scripts.__file__).parents[1] / "models" / "programs"
    assert len(list(folder.glob("*.py"))) > 5
    assert unshown(folder) == set()
    (tmp_path / "unshown.py").write_text("class Unshown:\n    pass\n\n\nLEVELS, WORDS = 3, 4\n")
    assert unshown(tmp_path) == {"Unshown", "WORDS"}


def test_a_family_missing_in_the_incident_is_refused() -> None:
    with pytest.raises(UsageError, match="has no family 'gpt2'; it has qwen3_vl"):
        render_script(find("43602"), "gpt2")


def test_an_incident_without_the_run_that_a_script_shows_is_refused() -> None:
    narrowed = replace(find("34690"), families=("qwen3_vl", "granite4_vision"))
    assert render_script(narrowed, "qwen3_vl")
    with pytest.raises(UsageError, match="no run of family 'granite4_vision' in which .* under 'eager"):
        render_script(narrowed, "granite4_vision")


GET = """\
def _get_deepstack_input_embeds(self, num_tokens: int) -> NoSuchType:
    if self.filled == 0:
        return None
    held = enumerate(self.deepstack_input_embeds)
    return IntermediateTensors({f"{level}": rows[:num_tokens] for level, rows in held})
"""
UPSTREAM = ProgramBuffer("Qwen3VLForConditionalGeneration", "vllm/model_executor/models/qwen3_vl.py")
HEALTHY = (
    "cap 16: set 9; set 3; get 9; set 20; get 20; clear 3; get 16; get -1; resize 40; get 40; set 4 levels=4"
)


def program(trace: str, rule: Rule, whose: ProgramBuffer) -> str:
    return render_finding(Trace.parse(trace), rule, "as it was\n  seen", whose)


def ended(folder: Path, text: str, *arguments: object) -> tuple[int, str]:
    file = folder / "finding.py"
    file.write_text(text)
    command = [sys.executable, "-W", "error", str(file), *map(str, arguments)]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert not done.stderr
    return done.returncode, done.stdout.strip()


INLINED = [
    ("pr43617", "cap 16: set 9; set 3; get 9", Rule.FRESHNESS, "get 9: wrong rows, or None"),
    ("pr43617", "cap 16: get 9; set 20; get 9", Rule.ADDRESS, "get 9 gave other storage"),
    ("pr40145", "cap 16: set 9; forward 16", Rule.BOUNDARY, "get 16 raised ValueError"),
    ("pr43617", "cap 16: set 4 levels=4", Rule.REJECTION, "set 4 was accepted"),
    ("keeps_callers_tensor", "cap 16: set 9; get 9", Rule.FRESHNESS, "get 9: wrong rows, or None"),
    (
        "three_levels_only",
        "cap 16 levels 4 hidden 9: set 9; get 9",
        Rule.BOUNDARY,
        "get 9: wrong rows, or None",
    ),
    ("reference", HEALTHY, Rule.FRESHNESS, "no fault"),
]


@pytest.mark.slow  # 4 s
def test_our_buffers_are_inlined(tmp_path: Path) -> None:
    texts = {
        f"program_{number}": program(trace, rule, ProgramBuffer(name))
        for number, (name, trace, rule, _) in enumerate(INLINED)
    }
    printed = run_scripts(tmp_path, texts)
    seen = [(code, out.partition("\n")[0]) for code, out in printed.values()]
    assert [
        (line, wanted)
        for line, (*_, wanted) in zip(seen, INLINED, strict=True)
        if line[0] != int(wanted != "no fault") or not line[1].startswith(wanted)
    ] == []
    assert [text for text in texts.values() if "harness" in text] == []


@pytest.mark.slow  # 8 s
def test_an_upstream_class_is_read_from_the_users_copy(tmp_path: Path) -> None:
    Vllm(qwen=str(ModelFile(get=GET))).tree(tmp_path)
    text = program("cap 16: set 9; get 9; clear 9; get 4", Rule.STRUCTURE, UPSTREAM)
    assert len(text.splitlines()) < 110
    assert ended(tmp_path, text, tmp_path) == (1, "get 4: wrong rows, or None")
    assert ended(tmp_path, text, tmp_path / str(UPSTREAM.member))[0] == 1
    assert ended(tmp_path, program("cap 16: set 9; get 9", Rule.STRUCTURE, UPSTREAM), tmp_path) == (
        0,
        "no fault",
    )


@pytest.mark.slow  # 2 s
def test_a_users_class_is_imported(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(
        "import torch\n"
        "class Mine:\n"
        "    def __init__(self, capacity, hidden, levels, *, dtype, device):\n"
        "        self.levels, self.capacity = torch.ones(levels, capacity, hidden), capacity\n"
        "    def get(self, tokens):\n"
        "        return tuple(self.levels[:, :tokens])\n"
    )
    text = program("cap 16: get 4", Rule.BOUNDARY, ProgramBuffer("mine:Mine"))
    assert ended(tmp_path, text) == (1, "get 4: wrong rows, or None")
    assert len(text.splitlines()) < 80


def test_what_was_seen_is_printed_on_one_line() -> None:
    text = program("cap 16: get 4", Rule.STRUCTURE, ProgramBuffer("pr40145"))
    assert "# Seen: as it was seen\n# The trace: cap 16: get 4\n" in text


def test_graphs_cannot_be_written_out() -> None:
    with pytest.raises(UsageError, match="a script cannot play 'capture 16'"):
        program("cap 16: capture 16; set 9; replay 16", Rule.CLEAR, ProgramBuffer("pr43617"))


@pytest.mark.parametrize(
    ("trace", "sentence"),
    [
        ("cap 16: set 9 layout=strided values=nan grad; get 9", "it has no layout=, values=, grad="),
        ("cap 16 dtype bfloat16 mode inference buffers 2: get 9 on=b", "it has no dtype, mode, buffers"),
        ("cap 16: set 9; get 24 fail=1; get 9", "it has no fail="),
    ],
)
def test_inputs_that_a_program_does_not_make_are_not_written_out(trace: str, sentence: str) -> None:
    with pytest.raises(UsageError, match=f"a script cannot play '{trace}': {sentence}"):
        program(trace, Rule.BOUNDARY, ProgramBuffer("replaces_nan"))


MODULE = """
from typing import ClassVar

LEVELS = MORE = 2
ROWS: int = LEVELS + 1
UNUSED = 5

class Made:
    '''A docstring.'''
    name = "made"
    kept = ROWS

    def rows(self):
        return MORE * self.kept
"""


def test_constants_of_a_module_come_before_the_class_and_what_only_we_read_is_dropped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "acme_inlined.py").write_text(MODULE)
    monkeypatch.syspath_prepend(tmp_path)
    collected = ProgramText()
    collected.add("acme_inlined", "Made")
    text = collected.as_program()
    names: dict[str, type] = {}
    exec(text, names)
    assert names["Made"]().rows() == 6
    assert not hasattr(names["Made"], "name")
    assert "UNUSED" not in text
    assert "docstring" not in text


MEMBER = "vllm/model_executor/models/qwen3_vl.py"
CLASS = """\
class Qwen3VLForConditionalGeneration:
    def _get_deepstack_input_embeds(self, num_tokens):
        {none}
        return IntermediateTensors(
            {{
                f"deepstack_input_embeds_{{idx}}": self.deepstack_input_embeds[idx][:num_tokens]
                for idx in range(self.deepstack_num_level)
            }}
        )

    def _set_deepstack_input_embeds(self, payload):
        self.deepstack_input_embeds_num_tokens = payload.size(1)
        for idx in range(self.deepstack_num_level):
            self.deepstack_input_embeds[idx][: payload.size(1)].copy_(payload[idx])

    def _clear_deepstack_input_embeds(self, num_tokens):
        self.deepstack_input_embeds_num_tokens = 0
        for rows in self.deepstack_input_embeds:
            rows[:num_tokens].zero_()

    def forward(self, input_ids, positions, intermediate_tensors=None, inputs_embeds=None):
        payload = self._get_deepstack_input_embeds(inputs_embeds.size(0))
        hidden = self.language_model.model(
            input_ids=input_ids, positions=positions, intermediate_tensors=intermediate_tensors,
            inputs_embeds=inputs_embeds, deepstack_input_embeds=payload,
        )
        self._clear_deepstack_input_embeds(inputs_embeds.size(0))
        return hidden
"""
FAULTY = CLASS.format(none="if not self.deepstack_input_embeds_num_tokens: return None")
FIXED = CLASS.format(none="")


def outcome(folder: Path, text: str) -> tuple[int, str]:
    """Write the test next to a package with the class of `text`, and run it as that project would."""
    write_compiling(folder, text)
    (folder / "pytest.ini").write_text("[pytest]\n")  # else a checkout above TMPDIR is taken for its root
    path = folder / "test_deepstack_compile.py"
    assert main(["repro", "43602", "--upstream-test", str(path), "--quiet"]) == ExitCode.HOLDS
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:deepstack_harness"]
    environment = {**os.environ, "PYTHONPATH": str(folder), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    ran = subprocess.run(
        [*command, str(path)], cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    return ran.returncode, ran.stdout


def test_it_and_a_script_are_written_together(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--script", str(tmp_path / "show.py"), "--upstream-test", str(tmp_path / "test_it.py")]
    assert main(["repro", "43602", *words]) == ExitCode.HOLDS
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()] == ["wrote", "wrote", "in"]
    assert {path.name for path in tmp_path.glob("*.py")} == {"show.py", "test_it.py"}


def test_it_imports_the_engine_and_nothing_of_ours(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "test_it.py"
    assert main(["repro", "43602", "--upstream-test", str(path)]) == ExitCode.HOLDS
    text = path.read_text()
    compile(text, path, "exec")
    assert "harness" not in text
    place = "tests/compile/test_qwen3_vl_deepstack.py"
    assert capsys.readouterr().out == f"wrote {path}\nin the engine it is {place}\n"
    licence, holder, *rest = text.splitlines()
    assert licence == "# SPDX-License-Identifier: Apache-2.0"
    assert holder.startswith("# SPDX-FileCopyrightText: Copyright contributors to the ")
    assert f"In vLLM this file is {place}." in rest
    assert [line for line in text.splitlines() if len(line) > 88] == []
    assert set(re.findall(r"^(?:from|import) (\w+)", text, re.MULTILINE)) == {
        "pytest",
        "torch",
        "types",
        "vllm",
    }


@pytest.mark.slow  # 6 s; its program by test_scripts_run.py by day
def test_it_is_red_if_none_is_returned_while_profiling(tmp_path: Path) -> None:
    code, text = outcome(tmp_path, FAULTY)
    assert (code, "1 failed, 1 passed" in text) == (1, True), text
    assert "step 1: Tensor-likes are not close" in text


@pytest.mark.slow  # 5 s, as its red half above
def test_it_is_green_where_zeros_are(tmp_path: Path) -> None:
    code, text = outcome(tmp_path, FIXED)
    assert (code, "2 passed" in text) == (0, True), text


@pytest.mark.slow  # 6 s each
@pytest.mark.network
@pytest.mark.parametrize(("release", "code"), [("0.22.1", 1), ("0.23.0", 0)])
def test_releases(release: str, code: int, tmp_path: Path) -> None:
    text = open_source(f"vllm=={release}").read(MEMBER).text
    actual, output = outcome(tmp_path, text)
    assert actual == code, output
