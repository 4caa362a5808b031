"""The composite action and the hooks for other projects: their steps, run as there."""

import os
import re
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from cases.selftest.engines.synthetic_vllm import COUNTED, HELPERS, QWEN, UTILS, Vllm
from deepstack_harness.cli.main import build_parser
from deepstack_harness.files import data

ROOT = Path(__file__).parents[3]
ACTION = ROOT / "action.yml"
HOOKS = ROOT / ".pre-commit-hooks.yaml"
WORKFLOW = data("examples/gate/.github/workflows/deepstack.yml")
SLOTS = data("examples/adapter/slots.py")
SPLIT, INSTALL, JUDGE = "Split words as a shell does", "Install", "Judge"
"""Steps of the action, by name."""
OURS = "deepstack-harness/"

pytestmark = pytest.mark.skipif(not ACTION.exists(), reason="needs a checkout")


@dataclass
class Job:
    """The folders and files that GitHub gives a step, under one temporary folder."""

    folder: Path

    @property
    def checkout(self) -> Path:
        return self.folder / "checkout"

    @property
    def summary(self) -> str:
        return (self.folder / "summary.md").read_text()

    @property
    def outputs(self) -> Mapping[str, str]:
        lines = (self.folder / "output").read_text().splitlines()
        return dict(line.split("=", 1) for line in lines)

    def run(self, name: str, inputs: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
        """Run a step of the action after the one that splits words; return that one where it fails."""
        split = self._run(SPLIT, inputs)
        return split if split.returncode or name == SPLIT else self._run(name, inputs)

    def _run(self, name: str, inputs: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
        """Run a step by its script, with the shell that GitHub starts."""
        action = yaml.safe_load(ACTION.read_text())
        (step,) = (step for step in action["runs"]["steps"] if step["name"] == name)
        values = {name: entry["default"] for name, entry in action["inputs"].items()}
        values |= inputs
        assert set(inputs) <= set(action["inputs"])
        github = {
            "GITHUB_ACTION_PATH": str(ROOT),
            "GITHUB_OUTPUT": str(self.folder / "output"),
            "GITHUB_STEP_SUMMARY": str(self.folder / "summary.md"),
            "RUNNER_TEMP": str(self.folder),
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
            "PYTHONPATH": str(ROOT / "harness"),
        }
        script = self.folder / "step.sh"
        script.write_text(step["run"])
        return subprocess.run(
            ["bash", "--noprofile", "--norc", "-eo", "pipefail", script],
            env=os.environ | github | {name: _filled(text, values) for name, text in step["env"].items()},
            cwd=self.checkout, capture_output=True, text=True, timeout=240, check=False,
        )  # fmt: skip


def _filled(text: str, inputs: Mapping[str, Any]) -> str:
    return re.sub(r"\$\{\{ inputs\.([\w-]+) \}\}", lambda match: inputs[match[1]], text)


@pytest.fixture
def job(tmp_path: Path) -> Job:
    (tmp_path / "checkout").mkdir()
    return Job(tmp_path)


def committed(folder: Path, message: str) -> str:
    """Commit everything in a folder, and return the commit."""
    git = ["git", "-c", "user.name=n", "-c", "user.email=e@example.org", "-c", "commit.gpgsign=false"]
    for words in (["init", "-q"], ["add", "-A"], ["commit", "-q", "-m", message]):
        subprocess.run([*git, *words], cwd=folder, check=True)
    return subprocess.run(
        ["git", "rev-parse", "HEAD"], cwd=folder, check=True, capture_output=True, text=True
    ).stdout.strip()


LEFT = COUNTED.replace("rows[:count].zero_()", "rows[: count // 2].zero_()")
"""A class whose clear leaves rows: R5."""


def test_audit_counts_what_a_pull_request_adds(job: Job) -> None:
    assert LEFT != COUNTED
    source = Vllm(qwen=COUNTED, omni="", version="9.0.0").tree(job.checkout)
    (source / UTILS).write_text(HELPERS)
    base = committed(source, "before")
    (source / QWEN).write_text(LEFT)
    done = job.run(JUDGE, {"base": base})
    assert done.returncode == 1, done.stdout + done.stderr
    assert job.outputs["exit-code"] == "1"
    assert Path(job.outputs["sarif"]).stat().st_size > 1000
    (first, *_) = [line for line in done.stdout.splitlines() if line.startswith("::error file=")]
    assert QWEN in first
    assert "R5" in done.stdout, done.stdout
    assert "R5" in job.summary


@pytest.mark.slow  # 10 s; `audit` and `steps` by day
def test_check_takes_words_that_are_quoted(job: Job) -> None:
    (job.checkout / "slots.py").write_text(SLOTS.read_text())
    workflow = yaml.safe_load(WORKFLOW.read_text())
    stated = workflow["jobs"]["buffer"]["steps"][-1]["with"]
    done = job.run(JUDGE, stated)
    assert done.returncode == 0, done.stdout + done.stderr
    assert job.outputs == {"exit-code": "0"}
    assert "adapter: dtype int64, levels 1, hidden 1" in job.summary
    assert "::error" not in done.stdout


@pytest.mark.slow  # 6 s
def test_steps_that_break_a_promise_are_an_annotation(job: Job) -> None:
    (job.checkout / "mine.py").write_text(
        "import torch\n\ndef add(x, y=None):\n    return x if y is None else x + y\n\n"
        "def late():\n    x = torch.ones(2, 2)\n    return add, [(x,), (x, x)]\n"
    )
    words = {"command": "steps", "target": "mine.py:late", "arguments": "--arm eager/drop_all"}
    done = job.run(JUDGE, words)
    assert (done.returncode, job.outputs["exit-code"]) == (1, "1"), done.stdout + done.stderr
    assert "::error title=deepstack-harness steps::" in done.stdout
    assert "`y` was None in the warm-up" in job.summary


@pytest.mark.parametrize(
    ("inputs", "sentence"),
    [
        ({"command": "judge"}, "unknown command 'judge'; known are audit, check and steps"),
        ({"command": "check"}, "'check' needs the input target, MODULE:NAME"),
    ],
)
def test_a_wrong_call_is_an_annotation(job: Job, inputs: dict[str, str], sentence: str) -> None:
    done = job.run(JUDGE, inputs)
    assert (done.returncode, done.stdout) == (2, f"::error title=deepstack-harness::{sentence}\n")


@pytest.mark.parametrize("name", ["arguments", "pip-arguments"])
def test_words_that_cannot_be_split_are_an_annotation(job: Job, name: str) -> None:
    done = job.run(SPLIT, {name: "--shape '(N,"})
    sentence = f"the input {name} cannot be split into words: --shape '(N,"
    assert (done.returncode, done.stdout) == (2, f"::error title=deepstack-harness::{sentence}\n")


def test_words_are_split_in_one_step() -> None:
    steps = yaml.safe_load(ACTION.read_text())["runs"]["steps"]
    assert [step["name"] for step in steps if "xargs" in step.get("run", "")] == [SPLIT]


def test_the_action_installs_itself(job: Job) -> None:
    target = job.folder / "with a space"
    words = f"--no-deps --no-build-isolation --no-compile --quiet --target '{target}'"
    done = job.run(INSTALL, {"pip-arguments": words})
    assert done.returncode == 0, done.stderr
    assert (target / "deepstack_harness" / "_data" / "fixtures" / "incidents.toml").exists()


def test_actions_of_others_are_pinned_to_a_commit() -> None:
    """Those of the documentation too: what is copied from there is as safe as ours, and of the same age."""
    workflows = (ACTION, WORKFLOW, *ROOT.glob(".github/workflows/*.yml"))
    pages = [*ROOT.glob("docs/**/*.md"), ROOT / "README.md"]
    named = {
        path: [name for name in re.findall(r"uses: (\S+@\S+)", path.read_text()) if not name.startswith(OURS)]
        for path in (*workflows, *pages)
    }
    others = {name for names in named.values() for name in names}
    assert len(others) > 3
    assert {str(path.name) for path in pages if named[path]} > {"gate-a-pull-request.md"}
    assert [name for name in others if not re.search(r"@[0-9a-f]{40}$", name)] == []
    # One commit of each.
    assert len({name.partition("@")[0] for name in others}) == len(others)


def test_the_example_workflow_names_inputs_that_there_are() -> None:
    inputs = yaml.safe_load(ACTION.read_text())["inputs"]
    jobs = yaml.safe_load(WORKFLOW.read_text())["jobs"].values()
    steps = [step for job in jobs for step in job["steps"] if step.get("uses", "").startswith("deepstack")]
    assert len(steps) == 2
    assert all(set(step["with"]) <= set(inputs) for step in steps)


def test_each_hook_is_a_command_that_the_parser_takes() -> None:
    hooks = {hook["id"]: hook["entry"].split() for hook in yaml.safe_load(HOOKS.read_text())}
    assert set(hooks) == {"deepstack-audit", "deepstack-check", "deepstack-steps"}
    for name, (program, *words) in hooks.items():
        assert program == "deepstack-harness"
        named = [] if name == "deepstack-audit" else ["mine.py:add"]
        build_parser([*words, *named]).parse_args([*words, *named])
