"""A misspelt word costs no import of torch and makes no folder, whatever the command."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

WORDS = [
    ["repro", "4360"], ["repro", "43602", "--arm", "eager/dropall"], ["repro", "43602", "--trace", ""],
    ["repro", "43602", "--trace", "cap 16: sett 1"], ["repro", "43602", "--family", "gpt"],
    ["repro", "43602", "--family", "qwen3_vl:typo"], ["repro", "43602", "--dtype", "int3"],
    ["repro", "43602", "--device", "tpu"], ["repro", "43602", "--source", "/nowhere"],
    ["repro", "43602", "--source", ""], ["repro", "43602", "--arm", ""], ["repro", "43602", "--json", ""],
    ["repro", "43602", "--workload", ""], ["repro", "43602", "--script", ""],
    ["repro", "43602", "--full", "--script", "f.py"],
    ["audit"], ["audit", "--source", "/nowhere"], ["check", "nomodule"],
    ["check", "a:b", "--device", "tpu"], ["check", "a:b", "--dtype", "int3"],
    ["fuzz", "--revision", "pr4361"], ["fuzz", "--family", "qwen3_vl:typo"], ["fuzz", "--arm", "x"],
    ["fuzz", "--buffer", "x"], ["fuzz", "--examples", "0"], ["fuzz", "--minutes", "0"],
    ["fuzz", "--source", "/nowhere"], ["kernels", "--family", "gpt"], ["kernels", "--revision", "x"],
    ["selftest", "none"], ["run", "--tier", "x"], ["run", "--device", "tpu"], ["run", "--buffer", "x"],
    ["run", "famly == 'x'"], ["nightly", "--device", "tpu"], ["nightly", "--stage", "x"],
    ["nightly", "-n", "0"], ["compare", "a", "b"], ["report", "nowhere"], ["show", "x"], ["list", "x"],
]  # fmt: skip

CODE = """
import json, sys
from deepstack_harness.cli import main
for words in json.load(sys.stdin):
    code = main(words)
    assert code == 2, (words, code)
    assert "torch" not in sys.modules, words
"""


def test_it_is_refused_before_anything_is_made(tmp_path: Path) -> None:
    import json

    done = subprocess.run(
        [sys.executable, "-c", CODE], input=json.dumps(WORDS), cwd=tmp_path, env=dict(os.environ),
        capture_output=True, text=True, check=False, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout == ""
    assert done.stderr.count("\n") == len(WORDS)
    assert list(tmp_path.iterdir()) == []


def test_a_source_is_a_target_before_its_class_is_known() -> None:
    from deepstack_harness.fuzzing.request import FuzzRequest

    assert FuzzRequest(source="vllm==0.33.0").target().buffer.name == "vllm==0.33.0"
    assert FuzzRequest(buffer="mine:Buffer").target().buffer.name == "mine:Buffer"


@pytest.mark.parametrize("number", ["0", "-1"])
def test_the_limit_that_is_wrong_is_named(number: str, capsys: pytest.CaptureFixture[str]) -> None:
    from deepstack_harness.cli import main

    assert main(["fuzz", "--minutes", number]) == 2
    assert capsys.readouterr().err == f"deepstack-harness: --minutes {number} must be above 0\n"
