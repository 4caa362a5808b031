"""`repro 43602 --upstream-test`: a test for vLLM's own suite, red on faulty code and green on the fix."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from cases.selftest.scripts.stand_in_vllm import write_package
from deepstack_harness.cli import main
from deepstack_harness.engines.known import open_source
from deepstack_harness.errors import ExitCode

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
    """Write the test beside a package with the class of `text`, and run it as that project would."""
    write_package(folder, text)
    (folder / "pytest.ini").write_text("[pytest]\n")  # else a checkout above TMPDIR is taken for its root
    path = folder / "test_deepstack_compile.py"
    assert main(["repro", "43602", "--upstream-test", str(path), "--quiet"]) == ExitCode.HOLDS
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:deepstack_harness"]
    environment = {**os.environ, "PYTHONPATH": str(folder), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    ran = subprocess.run(
        [*command, str(path)], cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    return ran.returncode, ran.stdout


def test_it_imports_the_engine_and_nothing_of_ours(tmp_path: Path) -> None:
    path = tmp_path / "test_it.py"
    assert main(["repro", "43602", "--upstream-test", str(path)]) == ExitCode.HOLDS
    text = path.read_text()
    compile(text, path, "exec")
    assert "harness" not in text
    assert set(re.findall(r"^(?:from|import) (\w+)", text, re.MULTILINE)) == {
        "pytest",
        "torch",
        "types",
        "vllm",
    }


def test_it_is_red_where_none_is_answered_while_profiling(tmp_path: Path) -> None:
    code, said = outcome(tmp_path, FAULTY)
    assert (code, "1 failed, 1 passed" in said) == (1, True), said
    assert "step 1: Tensor-likes are not close" in said


@pytest.mark.slow  # 5 s, as its red half above
def test_it_is_green_where_zeros_are(tmp_path: Path) -> None:
    code, said = outcome(tmp_path, FIXED)
    assert (code, "2 passed" in said) == (0, True), said


@pytest.mark.slow  # 6 s each
@pytest.mark.network
@pytest.mark.parametrize(("release", "code"), [("0.22.1", 1), ("0.23.0", 0)])
def test_releases(release: str, code: int, tmp_path: Path) -> None:
    text = open_source(f"vllm=={release}").read(MEMBER).text
    found, said = outcome(tmp_path, text)
    assert found == code, said


@pytest.mark.parametrize("words", [["50891"], ["40143"]])
def test_an_incident_without_one_says_which_has(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["repro", *words, "--upstream-test", "test_it.py"]) == ExitCode.USAGE
    assert "has no test for an engine's own suite, only 43602 has" in capsys.readouterr().err
    assert not Path("test_it.py").exists()
