"""`repro --script` and `--pytest` with `--source`: programs that read the user's methods when they run."""

import ast
import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from cases.selftest.engines.synthetic_sglang import sglang_files
from cases.selftest.engines.synthetic_vllm import ModelFile, Vllm, write
from deepstack_harness.cli.main import main
from deepstack_harness.errors import ExitCode

Capture = pytest.CaptureFixture[str]
MARK = "their_own_words"
GET = f"""\
def _get_deepstack_input_embeds(self, num_tokens: Unread) -> Unread:
    if not self.deepstack_input_embeds_num_tokens:
        return None
    rows = enumerate(self.deepstack_input_embeds)
    return IntermediateTensors({{f"{MARK}_{{index}}": level[:num_tokens] for index, level in rows}})
"""
SET = """\
def _set_deepstack_input_embeds(self, payload):
    self.deepstack_input_embeds_num_tokens = payload.size(1)
    for level, rows in zip(self.deepstack_input_embeds, payload):
        level[: payload.size(1)].copy_(rows)
"""
CLEAR = """\
def _clear_deepstack_input_embeds(self, num_tokens):
    for level in self.deepstack_input_embeds:
        level[:num_tokens].zero_()
    self.deepstack_input_embeds_num_tokens = 0
"""
FAULTY = ModelFile(get=GET, set=SET, clear=CLEAR)
ABOVE = """\
    if num_tokens > self.deepstack_input_embeds[0].size(0):
        raise ValueError("more than the capacity")
"""
REFUSING = replace(FAULTY, get=GET.replace("    rows =", f"{ABOVE}    rows ="))
FREE = replace(
    FAULTY,
    get=GET.replace("    if not self.deepstack_input_embeds_num_tokens:\n        return None\n", ""),
)
MEMBER = "vllm/model_executor/models/qwen3_vl.py"
# Importing the harness, or the engine, is an error there.
RUN = """
import contextlib, io, json, os, runpy, sys
os.environ["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
sys.modules["deepstack_harness"] = sys.modules["vllm"] = None
import pytest, torch
ended = {}
for name, program, copy in json.loads(sys.argv[1]):
    torch.compiler.reset()
    said, code = io.StringIO(), None
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
        if program.startswith("test_"):
            os.environ["DEEPSTACK_HARNESS_SOURCE"] = copy
            alone = ["-c", os.devnull, "--rootdir", ".", "--noconftest", "-p", "no:cacheprovider", "-q"]
            code = int(pytest.main([program, *alone]))
        else:
            sys.argv = [program, copy]
            try:
                runpy.run_path(program, run_name="__main__")
            except SystemExit as end:
                code = end.code
    ended[name] = [code, said.getvalue()]
print(json.dumps(ended))
"""


@pytest.fixture(scope="module")
def ended(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[int, str]]:
    """Exit code and output of the programs of a faulty tree, on copies with the fault and without."""
    # One process runs all of them, 6 s: torch, Dynamo and pytest are imported once.
    folder = tmp_path_factory.mktemp("programs")
    faulty = Vllm(qwen=str(FAULTY), omni="").tree(folder / "faulty")
    free = Vllm(qwen=str(FREE), omni="").tree(folder / "free")
    wheel = Vllm(qwen=str(FAULTY), omni="").wheel(folder)
    refusing = Vllm(qwen=str(REFUSING), omni="").tree(folder / "refusing")
    written = {"43602": "show.py", "41485": "raised.py", "S9": "stale.py", "S6": "above.py"}
    for incident, name in written.items():
        words = ["--source", str(faulty), "--script", str(folder / name)]
        assert main(["repro", incident, *words, "--quiet"]) == ExitCode.HOLDS
    words = ["--source", str(faulty), "--pytest", str(folder / "test_show.py"), "--quiet"]
    assert main(["repro", "43602", *words]) == ExitCode.HOLDS
    runs = [
        ("faulty tree", "show.py", str(faulty)),
        ("faulty folder of the package", "stale.py", str(faulty / "vllm")),
        ("faulty file", "stale.py", str(faulty / MEMBER)),
        ("faulty wheel", "stale.py", str(wheel)),
        ("free tree", "show.py", str(free)),
        ("no such path", "show.py", str(folder / "nowhere")),
        ("another file", "show.py", str(folder / "show.py")),
        ("not installed", "show.py", ""),
        ("nothing raises", "raised.py", str(faulty)),
        ("stale rows", "stale.py", str(faulty)),
        ("short rows above the capacity", "above.py", str(faulty)),
        ("refused above the capacity", "above.py", str(refusing)),
        ("test of a faulty tree", "test_show.py", str(faulty)),
        ("test of a free tree", "test_show.py", str(free)),
    ]
    command = [sys.executable, "-c", RUN, json.dumps(runs)]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    ended: dict[str, tuple[int, str]] = {
        name: (code, said) for name, (code, said) in json.loads(done.stdout).items()
    }
    ended["text"] = (
        0,
        "".join((folder / name).read_text() for name in ("show.py", "test_show.py", "stale.py")),
    )
    return ended


@pytest.mark.parametrize(
    ("name", "code", "said"),
    [
        ("faulty tree", 1, "profile 16: get answered None\nforward 16: compiled - eager is "),
        ("faulty folder of the package", 1, "rows of level 0 are not those that were set"),
        ("faulty file", 1, "rows of level 0 are not those that were set"),
        ("faulty wheel", 1, "rows of level 0 are not those that were set"),
        # Read when it runs: the same program, another copy.
        ("free tree", 0, "no fault"),
        ("no such path", 2, "nothing was compared"),
        ("another file", 2, "has no class Qwen3VLForConditionalGeneration that can be read"),
        ("nothing raises", 0, "no fault"),
        ("stale rows", 1, "rows of level 0 are not those that were set"),
        ("short rows above the capacity", 1, "level 0 has 16 rows, not 20"),
        ("refused above the capacity", 0, "no fault"),
        ("test of a faulty tree", 1, "1 failed"),
        ("test of a free tree", 0, "1 passed"),
    ],
)
def test_the_exit_code_is_whether_the_fault_shows(
    name: str, code: int, said: str, ended: dict[str, tuple[int, str]]
) -> None:
    assert said in ended[name][1]
    assert ended[name][0] == code


def test_without_a_copy_nothing_is_claimed(ended: dict[str, tuple[int, str]]) -> None:
    code, said = ended["not installed"]
    assert code == 2
    assert "vLLM is not installed: name a copy of it" in said


def test_a_program_has_nothing_of_the_source_and_needs_only_torch(
    ended: dict[str, tuple[int, str]],
) -> None:
    text = ended["text"][1]
    assert MARK in FAULTY.get
    assert MARK not in text
    assert "deepstack_harness" not in text.replace("DEEPSTACK_HARNESS_SOURCE", "")
    nodes = list(ast.walk(ast.parse(text)))
    imported = {
        alias.name.partition(".")[0] for node in nodes if isinstance(node, ast.Import) for alias in node.names
    }
    imported |= {str(node.module).partition(".")[0] for node in nodes if isinstance(node, ast.ImportFrom)}
    assert imported <= {"torch", *sys.stdlib_module_names}


NEEDS_MORE = ModelFile(
    get="def _get_deepstack_input_embeds(self, num_tokens: Unread) -> Unread:\n    return helper(self)\n"
)
OTHER_STATE = replace(FAULTY, get=GET.replace("self.deepstack_input_embeds_num_tokens", "self.filled"))
WITHOUT_SET = ModelFile(set="")


@pytest.mark.parametrize(
    ("incident", "options", "qwen", "sentence"),
    [
        ("replayed-clear", [], FAULTY, "torch alone does not run 'eager/full' around their methods"),
        ("50891", [], FAULTY, "its trace saves compiled code and loads it"),
        ("16785", [], FAULTY, "torch alone does not run 'eager/stock' around their methods"),
        ("26626", [], FAULTY, "which is in no class of a source: leave --source out"),
        ("40143", [], FAULTY, "show a variant of ours: leave --source out"),
        ("43602", ["--arm", "eager"], FAULTY, "leave --full, --trace, --arm and --workload out"),
        ("43602", [], NEEDS_MORE, "its methods need helper of their package"),
        ("43602", [], WITHOUT_SET, "has no set in it"),
        ("43602", [], OTHER_STATE, "its methods read self.filled"),
        ("43602", [], ModelFile(), "its methods need FIRST_LEVEL, itertools of their package"),
        ("43602", [], None, "its payload is an argument"),
    ],
)
def test_what_cannot_be_written_is_refused_with_a_sentence(
    incident: str, options: list[str], qwen: ModelFile | None, sentence: str, tmp_path: Path, capsys: Capture
) -> None:
    tree = tmp_path / "tree"
    if qwen is None:
        write(tree, sglang_files())
    else:
        Vllm(qwen=str(qwen), omni="").tree(tree)
    show = tmp_path / "show.py"
    words = ["--source", str(tree), "--script", str(show), *options]
    assert main(["repro", incident, *words]) == ExitCode.USAGE
    assert sentence in " ".join(capsys.readouterr().err.split())
    assert not show.exists()


def test_the_command_that_runs_a_program_is_shown(tmp_path: Path, capsys: Capture) -> None:
    root, show = Vllm(qwen=str(FAULTY), omni="").tree(tmp_path), tmp_path / "show.py"
    assert main(["repro", "43602", "--source", str(root), "--script", str(show)]) == ExitCode.HOLDS
    lines = capsys.readouterr().out.splitlines()
    assert lines == [
        f"wrote {show}", "run it with a copy of vLLM, such as", f"  python {show} {root / MEMBER}",
    ]  # fmt: skip
    assert f"written for vllm at {tmp_path}" in " ".join(show.read_text().replace("#", "").split())
    words = ["--script", str(show), "--upstream-test", str(tmp_path / "test_it.py")]
    assert main(["repro", "43602", "--source", str(root), *words]) == ExitCode.HOLDS
    *same, last, _ = capsys.readouterr().out.splitlines()
    assert (same, last) == (lines, f"wrote {tmp_path / 'test_it.py'}")
