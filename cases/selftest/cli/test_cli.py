"""What a user sees of a command: exit code, one sentence for a mistake, rows on stdout."""

import json
import signal
import subprocess
import sys
import zipfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec
import pytest

from cases.by_day import by_day
from deepstack_harness.catalogue.incidents import find
from deepstack_harness.catalogue.scripts import render_script
from deepstack_harness.cli.main import COMMANDS, main
from deepstack_harness.contract.rules import Rule
from deepstack_harness.contract.verdicts import SCHEMA_VERSION, Row
from deepstack_harness.errors import ExitCode

FAST = ["--arm", "eager/drop_all"]


def sentence(capsys: pytest.CaptureFixture[str]) -> str:
    """The one line on stderr; stdout stays empty."""
    seen = capsys.readouterr()
    assert seen.out == ""
    assert seen.err.startswith("deepstack-harness: ")
    assert seen.err.count("\n") == 1
    return seen.err


def test_no_network_is_the_machines_fault(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple")  # nobody listens there
    monkeypatch.setenv("PIP_EXTRA_INDEX_URL", "")
    monkeypatch.setenv("DEEPSTACK_HARNESS_CACHE", str(tmp_path))
    assert main(["repro", "43602", "--vllm", "0.22.1", *FAST]) == ExitCode.MACHINE
    assert "vllm 0.22.1 cannot be looked up" in sentence(capsys)


def truncated_wheel(folder: Path) -> Path:
    path = folder / "vllm-0.22.1-py3-none-any.whl"
    path.write_bytes(other_wheel(folder).read_bytes()[:-30])
    return path


def other_wheel(folder: Path) -> Path:
    path = folder / "colours-1.0-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("colours/__init__.py", "RED = 1\n")
        archive.writestr(
            "colours-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: colours\nVersion: 1.0\n"
        )
    return path


def tree_without_deepstack(folder: Path) -> Path:
    return tree(
        folder,
        "class Qwen3VLForConditionalGeneration:\n    def __init__(self, *, vllm_config):\n        pass\n",
    )


def tree_with_an_impossible_init(folder: Path) -> Path:
    return tree(
        folder,
        "import torch\n"
        "class Qwen3VLForConditionalGeneration:\n"
        "    def __init__(self, *, vllm_config):\n"
        "        rows = read_from_the_moon(vllm_config)\n"
        "        self.deepstack_input_embeds = [torch.zeros(rows, 8)]\n"
        "    def _get_deepstack_input_embeds(self, num_tokens):\n"
        "        return self.deepstack_input_embeds[0][:num_tokens]\n"
        "    def _set_deepstack_input_embeds(self, deepstack_input_embeds):\n"
        "        self.deepstack_input_embeds[0].copy_(deepstack_input_embeds[0])\n"
        "    def _clear_deepstack_input_embeds(self, num_tokens):\n"
        "        self.deepstack_input_embeds[0].zero_()\n",
    )


def tree(folder: Path, text: str) -> Path:
    module = folder / "vllm/model_executor/models/qwen3_vl.py"
    module.parent.mkdir(parents=True)
    module.write_text(text)
    (folder / "vllm/__init__.py").write_text("")
    return folder


@pytest.mark.parametrize(
    ("make", "quoted"),
    [
        (truncated_wheel, "vllm-0.22.1-py3-none-any.whl"),
        (other_wheel, "colours-1.0-py3-none-any.whl"),
        (tree_without_deepstack, "Qwen3VLForConditionalGeneration"),
        (tree_with_an_impossible_init, "read_from_the_moon"),
    ],
)
def test_a_source_that_cannot_be_used_is_named(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, make: object, quoted: str
) -> None:
    source = make(tmp_path)  # type: ignore[operator]
    assert main(["repro", "43602", "--vllm", str(source), *FAST]) == ExitCode.USAGE
    assert quoted in sentence(capsys)


def test_bisect_skips_what_was_not_judged(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    source = tree_with_an_impossible_init(tmp_path)
    assert main(["repro", "43602", "--vllm", str(source), *FAST, "--bisect"]) == ExitCode.BISECT_SKIP
    assert sentence(capsys)


def test_bisect_does_not_change_judgements() -> None:
    assert main(["repro", "41485", "--arm", "eager", "--quiet", "--bisect"]) == ExitCode.HOLDS


def test_json_on_stdout_has_nothing_else_there(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["repro", "41485", "--arm", "eager", "--json", "-"]) == ExitCode.HOLDS
    rows = [msgspec.json.decode(line, type=Row[Rule]) for line in capsys.readouterr().out.splitlines()]
    assert {(row.schema_version, row.incident, row.system) for row in rows} == {
        (SCHEMA_VERSION, "41485", "deepstack")
    }
    broken = {(row.revision, row.rule) for row in rows if row.verdict == "FAIL"}
    assert broken == {("pr40145", "R2")}


def test_json_in_a_file_and_the_table_on_stdout(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    assert main(["list", "rules", "--json", str(path)]) == ExitCode.HOLDS
    assert [json.loads(line)["name"] for line in path.read_text().splitlines()] == [
        f"R{n}" for n in range(15)
    ]
    assert "R14" in capsys.readouterr().out


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs the device that is always full")
def test_a_full_disk_ends_with_a_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["repro", "41485", "--arm", "eager", "--quiet", "--json", "/dev/full"]) == ExitCode.MACHINE
    assert "No space left on device" in sentence(capsys)


def test_quiet_prints_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["repro", "41485", "--arm", "eager", "--quiet"]) == ExitCode.HOLDS
    assert capsys.readouterr() == ("", "")


def test_without_a_terminal_there_is_no_colour(capsys: pytest.CaptureFixture[str]) -> None:
    main(["repro", "41485", "--arm", "eager"])
    assert "\x1b" not in capsys.readouterr().out


@pytest.mark.slow  # 9 s
def test_a_trace_of_ones_own_on_every_revision(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["repro", "43602", *FAST, "--trace", "cap 32: profile 32; set 7; forward 8"]
    assert main(words) == ExitCode.HOLDS
    out = capsys.readouterr().out
    assert "cap 32: profile 32; set 7; forward 8" in out
    assert "pr40145    eager/drop_all         -" in out


def test_a_trace_that_does_not_show_the_fault_exits_with_1(capsys: pytest.CaptureFixture[str]) -> None:
    assert (
        main(["repro", "43602", "--arm", "eager", "--trace", "cap 16: set 16; forward 16"]) == ExitCode.BROKEN
    )
    assert "not as expected: pr40145" in capsys.readouterr().out


@pytest.mark.slow  # 8 s; the sentence itself is tested with the oracles
def test_the_diagnosis_names_the_argument_and_the_step(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["repro", "53516", *FAST]) == ExitCode.HOLDS  # two traces less than 43602
    out = capsys.readouterr().out
    assert "`payload` was None in step 1 'profile 16', which compiled the graph, and the guard" in out
    assert "step 4 'forward 16' had tuple of 3 and reused that graph" in out


def test_every_reference_finds_its_incident(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["repro", "vllm#41697", "--arm", "eager"]) == ExitCode.HOLDS
    assert "incident 41485 (padded-count-refused)" in capsys.readouterr().out


LIGHT = {"catalogue", "cli", "contract", "document", "errors", "files", "options", "text"}
"""Rooms whose import is cheap, or whose tables are in the text of an option."""
ROOMS_BEYOND = {
    "affected": {"engines", "sources", "workers"},
    "audit": {"audit", "compile", "engines", "play", "sources", "workers"},
    "compare": {"runs", "workers"},
    "doctor": {"engines", "sources", "workers"},
    "engine": {"compile", "engines", "sources", "workers"},
    "fuzz": {"engines", "fuzz", "models", "play", "sources", "workers"},
    "kernels": {"compile", "workers"},
    "list": {"workers"},
    "nightly": {"engines", "runs", "sources", "workers"},
    "report": {"engines", "runs", "sources", "workers"},
    "repro": {"engines", "models", "sources", "workers"},
    "run": {"play", "runs", "workers"},
    "steps": {"workers"},
    "selftest": {"fuzz"},
    "watch": {"compile"},
}
"""Command -> the other rooms that it may import before its work begins."""


@pytest.mark.parametrize(
    "words",
    by_day([["list", "incidents"], ["--help"], *([command, "--help"] for command in COMMANDS)], count=6),
)
def test_a_command_imports_neither_torch_nor_rooms_that_it_does_not_need(words: list[str]) -> None:
    code = (
        "import sys\n"
        "from deepstack_harness.cli.main import main\n"
        "try:\n    main(sys.argv[1:])\n"
        "finally:\n    print(*sys.modules, file=sys.stderr)"
    )
    ended = subprocess.run([sys.executable, "-c", code, *words], check=True, capture_output=True, text=True)
    modules = ended.stderr.split()
    assert "torch" not in modules
    rooms = {name.split(".")[1] for name in modules if name.startswith("deepstack_harness.")}
    allowed = (
        {"cli", "document", "errors", "text"}
        if words == ["--help"]
        else LIGHT | ROOMS_BEYOND.get(words[0], set())
    )
    assert "cli" in rooms
    assert rooms <= allowed


def test_a_reader_that_leaves_is_not_a_bug() -> None:
    command = f"{sys.executable} -m deepstack_harness list | head -1"
    ran = subprocess.run(command, shell=True, capture_output=True, text=True, check=True)
    assert (ran.stdout, ran.stderr) == ("incidents\n", "")


def test_a_script_and_a_pytest_file_are_written(tmp_path: Path) -> None:
    script, test = tmp_path / "show.py", tmp_path / "test_show.py"
    assert (
        main(["repro", "43602", "--script", str(script), "--pytest", str(test), "--quiet"]) == ExitCode.HOLDS
    )
    assert script.read_text() == render_script(find("43602"), "qwen3_vl")  # `test_scripts_run.py` runs it
    assert "def test_" in test.read_text()


@pytest.mark.usefixtures("reset_signals")
def test_what_the_caller_ignores_stays_ignored(monkeypatch: pytest.MonkeyPatch) -> None:
    """As with nohup, or in the background of a shell."""
    seen = []
    monkeypatch.setattr(
        "deepstack_harness.cli.list.run", lambda *_: seen.append(signal.getsignal(signal.SIGHUP))
    )
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        main(["list"])
    finally:
        signal.signal(signal.SIGHUP, before)
    main(["list"])
    assert seen[0] == signal.SIG_IGN
    assert seen[1] not in (signal.SIG_IGN, signal.SIG_DFL)
    assert signal.getsignal(signal.SIGHUP) == before


def test_another_thread_may_call_it() -> None:
    with ThreadPoolExecutor(1) as threads:
        assert threads.submit(main, ["list", "rules", "--quiet"]).result() == ExitCode.HOLDS


@pytest.mark.parametrize(
    ("typed", "usage"),
    [
        ("/usr/bin/deepstack-harness", "deepstack-harness"),
        ("site-packages/deepstack_harness/__main__.py", "python -m deepstack_harness"),
    ],
)
def test_usage_names_what_was_typed(
    typed: str, usage: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", [typed])
    assert main(["repro"]) == ExitCode.USAGE
    assert f"; see '{usage} repro --help'" in sentence(capsys)
