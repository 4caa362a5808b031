"""The public interface: what may be imported, and the options of every command; `test_row.py` has the rows.

A name that goes or changes here breaks programs and scripts of users.
"""

import argparse
import ast
import subprocess
import sys
from pathlib import Path

import pytest

import deepstack_harness
from deepstack_harness.cli import COMMANDS, build_parser

NAMES = (
    "AnnouncesMoves ArmSpec BeginsSteps Buffer BufferFactory CompileArms Decoder DeepstackContract "
    "Engine ExitCode Family Figure FollowsTensors GraphBudget HarnessError Inputs Judgement "
    "KernelFactsOf MachineError ObservedCase Qwen3VLConfig Qwen3VLFamily ReferenceBuffer "
    "ReleasesStorage Row Rule RunData StatesVision Step Table Trace UsageError Verdict WorksInGraph "
    "WrapsSession broken_rules engine_traces read_run schedules "
)
COMMON = "--json --quiet --bisect --no-sandbox"
OPTIONS = {
    "list": "kind",
    "show": "incident",
    "repro": (
        "incident --source --vllm --full --trace --arm --device --workload --script --pytest "
        "--upstream-test --family --dtype"
    ),
    "audit": "--source --vllm --fail-on --base --sarif",
    "check": "target --device --dtype --regime --thorough",
    "fuzz": (
        "--source --vllm --buffer --revision --family --arm --backend --examples --minutes --seed "
        "--boundary --out"
    ),
    "kernels": (
        "--family --revision --compare --dtype --layers --hidden --tokens --capacity "
        "--profile-tokens --static --target --cubin --run --execute --configurations --cost"
    ),
    "engine": (
        "--source --vllm --family --schedule --mode --methods --regime --search --seed --record --dry-run"
    ),
    "selftest": "mutants --seed --workers",
    "run": (
        "selection --tier --device --buffer -n --shard --executor --out --resume --case-seconds --memory"
    ),
    "compare": "old new --history --threshold",
    "report": "run --html --markdown --junit --annotations --history",
    "nightly": "--history --out --device --minutes -n --source --vllm --stage",
    "doctor": "",
}


def test_the_names_are_frozen() -> None:
    assert " ".join(sorted(deepstack_harness.__all__, key=str)) == " ".join(sorted(NAMES.split()))


@pytest.mark.parametrize("name", deepstack_harness.__all__)
def test_each_name_can_be_imported(name: str) -> None:
    found = getattr(deepstack_harness, name)
    assert getattr(found, "__name__", name) == name


def test_type_checkers_see_the_same_modules() -> None:
    tree = ast.parse(Path(deepstack_harness.__file__).read_text())
    (block,) = [node for node in tree.body if isinstance(node, ast.If)]
    seen = {
        alias.name: (node.module or "").removeprefix("deepstack_harness.")
        for node in block.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    assert seen == deepstack_harness._MODULES
    assert set(seen) == set(deepstack_harness.__all__)


def test_an_editor_is_offered_the_public_names() -> None:
    assert sorted(dir(deepstack_harness)) == sorted({*deepstack_harness.__all__, "__version__"})


def test_another_name_is_refused() -> None:
    with pytest.raises(AttributeError, match="has no attribute 'Nothing'"):
        deepstack_harness.Nothing  # noqa: B018


def test_importing_the_package_imports_nothing_else() -> None:
    code = (
        "import sys; before = set(sys.modules); import deepstack_harness; print(*set(sys.modules) - before)"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout.split() == ["deepstack_harness"]


@pytest.mark.parametrize("command", COMMANDS)
def test_the_options_are_frozen(command: str) -> None:
    parsers = [one for one in build_parser([command])._actions if isinstance(one, argparse._SubParsersAction)]
    actions = parsers[0].choices[command]._actions
    names = [one.option_strings[-1] if one.option_strings else one.dest for one in actions]
    assert " ".join(names[1:]) == f"{OPTIONS[command]} {COMMON}".strip()
