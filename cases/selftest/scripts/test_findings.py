"""A finding written out: the program alone shows the fault, and passes where there is none."""

import subprocess
import sys
from pathlib import Path

import pytest

from cases.selftest.binding.synthetic_vllm import ModelFile, Vllm
from cases.selftest.scripts.written_scripts import run_scripts
from deepstack_harness.contract.rules import Rule
from deepstack_harness.contract.trace import Trace
from deepstack_harness.errors import UsageError
from deepstack_harness.scripts.findings import Whose, render_finding

GET = """\
def _get_deepstack_input_embeds(self, num_tokens: int) -> NoSuchType:
    if self.filled == 0:
        return None
    held = enumerate(self.deepstack_input_embeds)
    return IntermediateTensors({f"{level}": rows[:num_tokens] for level, rows in held})
"""
UPSTREAM = Whose("Qwen3VLForConditionalGeneration", "vllm/model_executor/models/qwen3_vl.py")
HEALTHY = (
    "cap 16: set 9; set 3; get 9; set 20; get 20; clear 3; get 16; get -1; resize 40; get 40; set 4 levels=4"
)


def program(trace: str, rule: Rule, whose: Whose) -> str:
    return render_finding(Trace.parse(trace), rule, "as it was\n  seen", whose)


def ended(folder: Path, text: str, *arguments: object) -> tuple[int, str]:
    file = folder / "finding.py"
    file.write_text(text)
    command = [sys.executable, "-W", "error", str(file), *map(str, arguments)]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert not done.stderr
    return done.returncode, done.stdout.strip()


INLINED = [
    ("pr43617", "cap 16: set 9; set 3; get 9", Rule.R3, "get 9: wrong rows, or None"),
    ("pr43617", "cap 16: get 9; set 20; get 9", Rule.R6, "get 9 answered from other storage"),
    ("pr40145", "cap 16: set 9; forward 16", Rule.R2, "get 16 raised ValueError"),
    ("pr43617", "cap 16: set 4 levels=4", Rule.R8, "set 4 was accepted"),
    ("keeps_callers_tensor", "cap 16: set 9; get 9", Rule.R3, "get 9: wrong rows, or None"),
    ("three_levels_only", "cap 16 levels 4 hidden 9: set 9; get 9", Rule.R2, "get 9: wrong rows, or None"),
    ("reference", HEALTHY, Rule.R3, "no fault"),
]


@pytest.mark.slow  # 4 s
def test_our_buffers_are_inlined(tmp_path: Path) -> None:
    texts = {
        f"program_{number}": program(trace, rule, Whose(name))
        for number, (name, trace, rule, _) in enumerate(INLINED)
    }
    printed = run_scripts(tmp_path, texts)
    seen = [(code, out.partition("\n")[0]) for code, out in printed.values()]
    assert [
        (one, wanted)
        for one, (*_, wanted) in zip(seen, INLINED, strict=True)
        if one[0] != int(wanted != "no fault") or not one[1].startswith(wanted)
    ] == []
    assert [text for text in texts.values() if "harness" in text] == []


def test_an_upstream_class_is_read_from_the_users_copy(tmp_path: Path) -> None:
    Vllm(qwen=str(ModelFile(get=GET))).tree(tmp_path)
    text = program("cap 16: set 9; get 9; clear 9; get 4", Rule.R1, UPSTREAM)
    assert len(text.splitlines()) < 80
    assert ended(tmp_path, text, tmp_path) == (1, "get 4: wrong rows, or None")
    assert ended(tmp_path, text, tmp_path / str(UPSTREAM.member))[0] == 1
    assert ended(tmp_path, program("cap 16: set 9; get 9", Rule.R1, UPSTREAM), tmp_path) == (0, "no fault")


def test_a_users_class_is_imported(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(
        "import torch\n"
        "class Mine:\n"
        "    def __init__(self, capacity, hidden, levels, *, dtype, device):\n"
        "        self.levels, self.capacity = torch.ones(levels, capacity, hidden), capacity\n"
        "    def get(self, tokens):\n"
        "        return tuple(self.levels[:, :tokens])\n"
    )
    text = program("cap 16: get 4", Rule.R2, Whose("mine:Mine"))
    assert ended(tmp_path, text) == (1, "get 4: wrong rows, or None")
    assert len(text.splitlines()) < 80


def test_what_was_seen_is_told_on_one_line() -> None:
    text = program("cap 16: get 4", Rule.R1, Whose("pr40145"))
    assert "# Seen: as it was seen\n# The trace: cap 16: get 4\n" in text


def test_graphs_cannot_be_written_out() -> None:
    with pytest.raises(UsageError, match="a script cannot play 'capture 16'"):
        program("cap 16: capture 16; set 9; replay 16", Rule.R5, Whose("pr43617"))


@pytest.mark.parametrize(
    ("trace", "said"),
    [
        ("cap 16: set 9 layout=strided values=nan grad; get 9", "it has no layout=, values=, grad="),
        ("cap 16 dtype bfloat16 mode inference buffers 2: get 9 on=b", "it has no dtype, mode, buffers"),
        ("cap 16: set 9; get 24 fail=1; get 9", "it has no fail="),
    ],
)
def test_inputs_that_a_program_does_not_make_are_not_written_out(trace: str, said: str) -> None:
    with pytest.raises(UsageError, match=f"a script cannot play '{trace}': {said}"):
        program(trace, Rule.R2, Whose("replaces_nan"))
