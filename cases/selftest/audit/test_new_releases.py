"""A release that was never read before: its worker has no network, so this process fetches what it needs."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from cases.selftest.engines.synthetic_vllm import (
    HANDS_ON,
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

VERSION = "0.22.1"


class Release(Vllm):
    """A release with the two neighbours of the buffer."""

    @property
    def files(self) -> dict[str, str]:
        """All Python files."""
        return {**super().files, RANGES: RANGE_FILE, STREAMS: STREAM_FILE}


@pytest.fixture(autouse=True)
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """An index with one release; the cache is there, and empty."""
    (tmp_path / "cache").mkdir()
    tell_pip_nothing(monkeypatch, tmp_path / "cache")
    with serving(tmp_path / "served") as served:
        monkeypatch.setenv("PIP_INDEX_URL", served.url)
        Release(VERSION, str(ModelFile(more=HANDS_ON))).wheel(served.folder)
        yield


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (["audit", "--vllm", VERSION], ExitCode.BROKEN),
        (["repro", "43602", "--arm", "eager", "--vllm", VERSION], ExitCode.BROKEN),
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
def test_it_is_judged(words: list[str], code: ExitCode, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(words) == code, capsys.readouterr().err
