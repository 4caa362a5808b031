"""The audit of a change: which classes it reaches, and what is stored of a base."""

import subprocess
from pathlib import Path

import pytest

from cases.selftest.engines.synthetic_whole import QWEN, WholeClass
from deepstack_harness.audit import base as audit_base
from deepstack_harness.audit.base import BaseClass, BaseRecord, _Change, _listed, _load, _save, _store
from deepstack_harness.audit.gate import SeenClass
from deepstack_harness.cli.main import main
from deepstack_harness.engines.known import open_source
from deepstack_harness.errors import ExitCode

OTHER = "vllm/model_executor/models/other.py"
HELPERS = "vllm/model_executor/models/helpers.py"
BELOW = "vllm/model_executor/models/below.py"
RUNNER = "vllm/v1/worker/gpu_model_runner.py"
OWN = str(WholeClass()).replace("Qwen3VLForConditionalGeneration", "OtherForConditionalGeneration")
FILES = {
    QWEN: str(WholeClass()),
    OTHER: OWN.replace("import contextlib\n", "from .helpers import rows\n"),
    HELPERS: "def rows(n):\n    return n\n",
    BELOW: (
        "from .other import OtherForConditionalGeneration\n\n\n"
        "class BelowForConditionalGeneration(OtherForConditionalGeneration):\n    pass  # deepstack\n"
    ),
    "vllm/envs.py": "A = 1\n",
}
QWEN_CLASS, OTHER_CLASS, BELOW_CLASS = (
    f"{name}ForConditionalGeneration" for name in ("Qwen3VL", "Other", "Below")
)


def tree(root: Path, **changed: str) -> Path:
    for member, text in {**FILES, **changed}.items():
        (root / member).parent.mkdir(parents=True, exist_ok=True)
        (root / member).write_text(text, "utf-8")
    return root


def change(tmp_path: Path, changed: dict[str, str]) -> _Change:
    before = open_source(str(tree(tmp_path / "before")))
    after = open_source(str(tree(tmp_path / "after", **changed)))
    return _Change(before, after, _listed(before, "", lambda _: None))


@pytest.mark.parametrize(
    ("changed", "reached"),
    [
        ({}, set()),
        ({"vllm/envs.py": "A = 2\n"}, set()),
        ({QWEN: FILES[QWEN].replace("rows.zero_()", "rows.mul_(0)")}, {QWEN_CLASS}),
        ({OTHER: FILES[OTHER].replace("rows.zero_()", "rows.mul_(0)")}, {OTHER_CLASS, BELOW_CLASS}),
        ({HELPERS: "def rows(n):\n    return n + 1\n"}, {OTHER_CLASS, BELOW_CLASS}),
        ({BELOW: FILES[BELOW].replace("pass", "more = 1")}, {BELOW_CLASS}),
        ({"vllm/envs.py": f"from a import {QWEN_CLASS}\n{QWEN_CLASS}.forward = f\n"}, None),
        ({"vllm/envs.py": "model.forward = f\n"}, None),
        ({"vllm/new.py": OWN.replace("Other", "New")}, {"NewForConditionalGeneration"}),
    ],
)
def test_a_class_is_reached_by_the_files_that_it_is_made_of(
    tmp_path: Path, changed: dict[str, str], reached: set[str] | None
) -> None:
    everything = {QWEN_CLASS, OTHER_CLASS, BELOW_CLASS}
    if "vllm/new.py" in changed:
        changed = {"vllm/model_executor/models/new.py": changed["vllm/new.py"]}
    found = change(tmp_path, changed).reached()
    assert found == (everything if reached is None else reached)


def test_a_class_that_carries_nothing_any_more_is_lost(tmp_path: Path) -> None:
    without = FILES[QWEN].replace("        deepstack_input_embeds=payload,\n", "")
    seen = change(tmp_path, {QWEN: without.replace("self._set_deepstack_input_embeds(payload)", "pass")})
    assert QWEN_CLASS not in seen.members
    assert seen.needed(set()) == {QWEN_CLASS}
    assert seen.lost(QWEN_CLASS)
    gone = change(tmp_path / "gone", {QWEN: "A = 1\n"})
    assert not gone.lost(QWEN_CLASS)


def test_a_commit_is_stored_under_its_name_and_by_what_judges_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DEEPSTACK_HARNESS_CACHE", str(tmp_path))
    commit = "0" * 40
    path = _store(f"tree/{commit}", "main", None)
    assert path is not None
    assert path.name.startswith(commit)
    assert _store(str(tree(tmp_path / "tree")), str(tmp_path / "tree"), None) is None
    release = _store("vllm==0.33.0", "vllm==0.33.0", None)
    assert release is not None
    assert release.name.startswith("vllm-0.33.0-")
    assert _load(path) is None
    record = BaseRecord({"A": BaseClass("vllm/a.py", ("vllm/a.py",), (), SeenClass())})
    _save(path, record)
    assert _load(path) == record
    path.write_bytes(b"{")
    assert _load(path) is None
    monkeypatch.setattr(audit_base, "_harness", lambda: "another")
    assert _store(f"tree/{commit}", "main", None) != path


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--as", "nonsense"], "--as nonsense is no version: write one such as 0.33.0"),
        (["--class", "Nobody"], "--class Nobody: no source has such a class that can be judged"),
        (["--inputs", "--class", "A"], "--inputs judges no rules: leave out --class"),
        (["--inputs", "--as", "1.0"], "--inputs judges no rules: leave out --as"),
    ],
)
def test_a_wrong_call_is_refused(
    options: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["audit", "--source", str(tree(tmp_path)), *options]) == ExitCode.USAGE
    assert message in capsys.readouterr().err


def test_a_named_class_that_cannot_be_driven_any_more_is_no_wrong_call(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its clear calls what the source does not have."""
    root = tree(tmp_path)
    (file,) = [path for path in root.rglob("*.py") if f"class {QWEN_CLASS}" in path.read_text("utf-8")]
    text = file.read_text("utf-8")
    broken = text.replace(".zero_()", ".zero_(no_such_name)")
    assert broken != text
    file.write_text(
        broken.replace("import torch\n", "import torch\nfrom nowhere import no_such_name\n", 1), "utf-8"
    )
    assert main(["audit", "--source", str(root), "--class", QWEN_CLASS]) == ExitCode.BROKEN
    out = capsys.readouterr().out
    assert "no_such_name" in out
    assert "1 class not judged" in out


def test_a_release_has_its_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["audit", "--source", "vllm==0.33.0", "--as", "0.32.0"]) == ExitCode.USAGE
    assert "vllm 0.33.0 has its version: '--as 0.32.0' is for a source tree" in capsys.readouterr().err


@pytest.mark.slow  # three audits of a class, 12 s
def test_the_second_change_against_a_commit_judges_only_the_change(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("DEEPSTACK_HARNESS_CACHE", str(tmp_path / "cache"))
    root = tree(tmp_path / "tree")
    git = ["git", "-C", str(root), "-c", "user.name=a", "-c", "user.email=a@b"]
    for words in (["init", "-q", "-b", "main"], ["add", "."], ["commit", "-q", "-m", "before"]):
        subprocess.run([*git, *words], check=True)
    cleared = "for rows in self.deepstack_input_embeds:\n            rows.zero_()\n\n"
    tree(root, **{QWEN: FILES[QWEN].replace(cleared, cleared.replace("rows.", "rows[:-1]."))})
    audit = ["audit", "--source", str(root), "--base", "main", "--progress"]
    for judged_base in (True, False):
        assert main(audit) == ExitCode.BROKEN
        out, err = capsys.readouterr()
        assert out.startswith("exit code 1: 1 new fault in 1 class compared with 'main'")
        assert "R5 clear, " in out
        assert (f"judging {QWEN_CLASS} of main of" in err) is judged_base
        assert OTHER_CLASS not in err
    assert main([*audit, "--class", OTHER_CLASS]) == ExitCode.HOLDS
