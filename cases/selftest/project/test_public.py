"""The public interface: what may be imported, and the options of every command.

The columns of a row are in `contract/test_verdicts.py`.

A name that goes or changes here breaks programs and scripts of users.
"""

import argparse
import ast
import subprocess
import sys
from pathlib import Path

import pytest

import deepstack_harness
from deepstack_harness.cli.main import COMMANDS, build_parser, main
from deepstack_harness.errors import ExitCode

NAMES = (
    "AnnouncesMoves ArmSpec BeginsSteps Buffer BufferFactory Call CompileArms Decoder DeepstackContract "
    "Engine ExitCode Family Figure FollowsTensors GraphBudget HarnessError Inputs Judgement "
    "KernelFactsOf MachineError ObservedCase Qwen3VLConfig Qwen3VLFamily ReferenceBuffer "
    "ReleasesStorage Row Rule RunData StatesVision Step Table Trace UsageError Verdict WorksInGraph "
    "WrapsSession broken_rules compile_steps engine_traces read_run restore_guards schedules watch_guards "
)
COMMON = "--json --quiet --progress"
SANDBOXED = {"repro", "audit", "check", "steps", "fuzz", "run", "nightly"}
JUDGING = SANDBOXED - {"nightly"} | {"kernels", "engine", "selftest", "compare", "watch"}
OPTIONS = {
    "list": "kind words",
    "show": "incident",
    "affected": "release models --model",
    "repro": (
        "incident --source --vllm --package --since --until --keep --full --trace --arm --device --dtype "
        "--workload --script --pytest --upstream-test --family"
    ),
    "audit": (
        "--source --vllm --fail-on --all --base --class --as --inputs --construct --sarif --annotations "
        "--markdown"
    ),
    "check": "target --device --dtype --write-adapter --regime --thorough",
    "fuzz": (
        "--source --vllm --buffer --revision --family --arm --examples --minutes --seed --boundary --out"
    ),
    "kernels": (
        "--family --revision --compare --dtype --layers --hidden --tokens --capacity "
        "--profile-tokens --target --cubin --execute --configurations --code --payload-cost"
    ),
    "engine": (
        "--source --vllm --family --schedule --mode --methods --regime --search --seed --record --dry-run"
    ),
    "selftest": "mutants",
    "run": (
        "selection --tier --device --buffer -n --shard --executor --out --torch --keep --cheapest-first "
        "--resume --case-seconds --memory"
    ),
    "compare": "old new --history --all",
    "report": "run --html --markdown --junit --annotations --against --history",
    "nightly": (
        "--tier --rehearse --history --out --device --minutes --fuzz-minutes -n --source --vllm "
        "--stage --list --resume"
    ),
    "steps": "target --arm --warm-up --examples --script",
    "watch": "--fail-on --html --restore program",
    "doctor": "--engines --seconds",
}


REMOVED = {
    "fuzz --backend eager": "name the backend in the arm, as in --arm inductor/drop_all",
    "kernels --static": "play fixed sizes with 'repro INCIDENT --arm inductor/stock/static'",
    "kernels --run": "run generated code with '--target h200 --execute', or an inductor arm of 'repro'",
    "compare OLD NEW --threshold graphs=1": "every change is shown; leave some out by reading the rows of",
    "selftest --seed 3": "draw other traces with 'fuzz --revision MUTANT --seed N'",
    "selftest --workers=0": "there are two worker processes, and one on a machine with one core",
}
"""Calls with an option of an earlier version, and what the error names in its place."""


def test_the_names_are_frozen() -> None:
    assert " ".join(sorted(deepstack_harness.__all__, key=str)) == " ".join(sorted(NAMES.split()))


@pytest.mark.parametrize("name", deepstack_harness.__all__)
def test_each_name_can_be_imported(name: str) -> None:
    value = getattr(deepstack_harness, name)
    assert getattr(value, "__name__", name) == name


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


def test_each_package_states_that_it_is_private() -> None:
    rooms = sorted(Path(deepstack_harness.__file__).parent.glob("*/__init__.py"))
    assert len(rooms) == 14
    docstrings = [ast.get_docstring(ast.parse(room.read_text())) or "" for room in rooms]
    assert [
        room.parent.name for room, text in zip(rooms, docstrings, strict=True) if "\nPrivate" not in text
    ] == []


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
    parsers = [
        action
        for action in build_parser([command])._actions
        if isinstance(action, argparse._SubParsersAction)
    ]
    actions = [
        action for action in parsers[0].choices[command]._actions if action.help is not argparse.SUPPRESS
    ]
    names = [action.option_strings[-1] if action.option_strings else action.dest for action in actions]
    common = [COMMON, *["--bisect"] * (command in JUDGING), *["--no-sandbox"] * (command in SANDBOXED)]
    assert " ".join(names[1:]) == f"{OPTIONS[command]} {' '.join(common)}".strip()


@pytest.mark.parametrize("command", COMMANDS)
def test_a_common_option_that_would_mean_nothing_is_refused(
    command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    calls = {"--bisect": JUDGING, "--no-sandbox": SANDBOXED}
    for option in (name for name, commands in calls.items() if command not in commands):
        assert main([command, option]) == ExitCode.USAGE
        err = capsys.readouterr().err
        assert f"deepstack-harness: {option}: '{command}' " in err
        assert all(name in err for name in calls[option])
        assert err.count("\n") == 1


@pytest.mark.parametrize("call", REMOVED)
def test_a_removed_option_is_refused_with_its_replacement(
    call: str, capsys: pytest.CaptureFixture[str]
) -> None:
    option = next(word for word in call.split() if word.startswith("--")).partition("=")[0]
    assert main(call.split()) == ExitCode.USAGE
    assert f"{option} was removed: {REMOVED[call]}" in capsys.readouterr().err
