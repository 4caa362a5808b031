"""The bare name of an engine's package: its newest release, which the index is queried for."""

import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from cases.selftest.sources.served_index import Served, serving, tell_pip_nothing
from deepstack_harness.cli.main import main
from deepstack_harness.engines.kinds.sglang import SGLANG
from deepstack_harness.engines.kinds.tpu_inference import TPU_INFERENCE
from deepstack_harness.engines.known import named_package, newest_release, newest_source
from deepstack_harness.errors import ExitCode

OLDER, HERE, OTHER, YANKED = (f"sglang-0.5.{last}-py3-none-any.whl" for last in (9, 22, 23, 24))


@pytest.fixture(autouse=True)
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Served]:
    """An index with four releases: the newest two are yanked, and for another Python."""
    tell_pip_nothing(monkeypatch, tmp_path / "cache")
    with serving(tmp_path / "served") as served:
        monkeypatch.setenv("PIP_INDEX_URL", served.url)
        for name in (OLDER, HERE, OTHER, YANKED):
            (served.folder / name).touch()
        served.yanked = frozenset({YANKED})
        served.python = {HERE: ">=3.10", OTHER: ">=99"}
        yield served


def test_it_is_final_not_yanked_and_for_this_python(index: Served) -> None:
    assert newest_release(SGLANG.package) == "sglang==0.5.22"
    index.python = {OTHER: "no specifier"}
    assert newest_release(SGLANG.package) == "sglang==0.5.23"


@pytest.mark.parametrize("text", ["vllm-omni", "vLLM_omni"])
def test_a_name_is_that_of_the_package(text: str) -> None:
    package = named_package(text)
    assert package is not None
    assert package.name == "vllm-omni"


@pytest.mark.parametrize("text", ["requests", "sglang==0.5.22", "installed:sglang", "./sglang", "sglang/"])
def test_other_texts_are_no_names(text: str) -> None:
    assert named_package(text) is None


def test_a_path_wins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "sglang").mkdir()
    assert named_package("sglang") == SGLANG.package
    monkeypatch.chdir(tmp_path)
    assert named_package("sglang") is None


def test_the_release_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["audit", "--source", "sglang"]) == ExitCode.MACHINE  # the file is no wheel
    said = capsys.readouterr()
    assert "'sglang' is the newest release that pip would install: sglang==0.5.22" in said.out


def test_a_package_that_is_not_in_the_index(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["audit", "--source", "lmdeploy"]) == ExitCode.MACHINE
    assert "the newest lmdeploy cannot be looked up: " in capsys.readouterr().err


def wheel(path: Path, metadata: str) -> None:
    """Write a wheel that has its metadata, and one file."""
    package, version, *_ = path.name.split("-")
    text = f"Name: {package}\nVersion: {version}\n{metadata}"
    with zipfile.ZipFile(path, "w") as file:
        file.writestr(f"{package}-{version}.dist-info/METADATA", text)
        file.writestr(f"{package}/models/empty.py", "")


@pytest.mark.parametrize(
    ("pinned", "source"),
    [
        ("", "tpu-inference==0.32.0 over vllm==0.33.0"),
        ("Requires-Dist: vllm>=0.31\n", "tpu-inference==0.32.0 over vllm==0.33.0"),
        ("Requires-Dist: vllm==0.31.0\n", "tpu-inference==0.32.0"),
    ],
)
def test_a_plugin_that_pins_no_base_is_audited_over_the_newest(
    pinned: str, source: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wheel(tmp_path / "tpu_inference-0.32.0-py3-none-any.whl", pinned)
    for name in ("vllm-0.33.0-py3-none-any.whl", OTHER):
        wheel(tmp_path / name, "")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    assert newest_source(TPU_INFERENCE.package) == source
    assert newest_source(SGLANG.package) == "sglang==0.5.23"
