"""Releases of an index: a worker has no network, so this process fetches what it needs."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import deepstack_harness
from cases.selftest.engines.synthetic_vllm import (
    HANDS_ON,
    INNER_MODEL,
    RANGE_FILE,
    RANGES,
    STREAM_FILE,
    STREAMS,
    ModelFile,
    Vllm,
)
from cases.selftest.sources.served_index import serving, tell_pip_nothing
from deepstack_harness.cli.main import main
from deepstack_harness.errors import ExitCode
from deepstack_harness.files import CACHE_VARIABLE

VERSION = "0.22.1"


class Release(Vllm):
    """A release with the two neighbours of the buffer."""

    @property
    def files(self) -> dict[str, str]:
        """All Python files."""
        return {**super().files, RANGES: RANGE_FILE, STREAMS: STREAM_FILE}


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """An index with one release; the cache is there, and empty."""
    (tmp_path / "cache").mkdir()
    tell_pip_nothing(monkeypatch, tmp_path / "cache")
    with serving(tmp_path / "served") as served:
        monkeypatch.setenv("PIP_INDEX_URL", served.url)
        Release(VERSION, str(ModelFile(more=HANDS_ON))).wheel(served.folder)
        yield


@pytest.mark.usefixtures("index")
@pytest.mark.parametrize(
    ("words", "code"),
    [
        (["audit", "--vllm", VERSION], ExitCode.BROKEN),
        pytest.param(
            ["repro", "43602", "--arm", "eager", "--vllm", VERSION], ExitCode.BROKEN, marks=pytest.mark.slow
        ),
        pytest.param(["repro", "40143", "--vllm", VERSION], ExitCode.HOLDS, marks=pytest.mark.slow),
        pytest.param(["repro", "36795", "--vllm", VERSION], ExitCode.HOLDS, marks=pytest.mark.slow),
        pytest.param(
            ["fuzz", "--vllm", VERSION, "--examples", "3", "--seed", "1"],
            ExitCode.BROKEN,
            marks=pytest.mark.slow,
        ),
    ],
    ids=lambda value: "-".join(value[:2]) if isinstance(value, list) else "",
)
def test_a_release_that_was_never_read_is_judged(
    words: list[str], code: ExitCode, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(words) == code, capsys.readouterr().err


ROOT = Path(deepstack_harness.__file__).parents[2]
AUDITS = """\
import sys
from deepstack_harness.audit.source_worker import SourceWorker
with SourceWorker("vllm==0.22.1") as source:
    print([(one.model_class, one.ways.methods, one.ended) for one in source.classes()])
    made = source.in_force
    print(sorted(part for part in made.in_force if "no sockets" in part) or made.missing)
"""


@pytest.mark.slow  # 4 s
def test_a_worker_reads_what_this_process_has_read(tmp_path: Path) -> None:
    """In a process of its own: the private folder goes when it ends."""
    (tmp_path / "cache").write_text("a file where the folder should be")
    (tmp_path / "temporary").mkdir()
    environment = {name: text for name, text in os.environ.items() if not name.upper().endswith("_PROXY")}
    with serving(tmp_path / "served") as served:
        Vllm("0.22.1", str(ModelFile(more=HANDS_ON)) + INNER_MODEL).wheel(served.folder)
        done = subprocess.run(
            [sys.executable, "-c", AUDITS], cwd=ROOT, capture_output=True, text=True, check=False,
            env={**environment, CACHE_VARIABLE: str(tmp_path / "cache"), "PIP_INDEX_URL": served.url,
                 "PIP_CONFIG_FILE": os.devnull, "TMPDIR": str(tmp_path / "temporary")},
        )  # fmt: skip
    assert done.returncode == 0, done.stderr
    classes, sandbox = done.stdout.splitlines()
    assert "('Qwen3VLForConditionalGeneration', True, None)" in classes
    if "restricted system calls" in sandbox:
        pytest.skip(sandbox)
    assert "no sockets" in sandbox
    assert list((tmp_path / "temporary").iterdir()) == []
