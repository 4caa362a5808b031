"""The grammar of SOURCE: what is a release, an installed package or a path, and what is refused."""

import re
from collections.abc import Callable
from pathlib import Path

import pytest
from packaging.version import Version

from deepstack_harness.cli.main import main
from deepstack_harness.engines.known import open_source
from deepstack_harness.errors import ExitCode, UsageError
from deepstack_harness.sources.request import (
    InstalledRequest,
    PathRequest,
    ReleaseRequest,
    SourceRequest,
    expand_shorthand,
    parse_source,
)

READ: dict[str, SourceRequest] = {
    "vllm==0.22.1": ReleaseRequest("vllm", Version("0.22.1")),
    "sglang==0.5.23": ReleaseRequest("sglang", Version("0.5.23")),
    "vLLM == 0.22.1": ReleaseRequest("vllm", Version("0.22.1")),
    "vllm_omni==0.30.0rc1+cpu": ReleaseRequest("vllm-omni", Version("0.30.0rc1+cpu")),
    "installed:vllm": InstalledRequest("vllm"),
    "installed:TPU_Inference": InstalledRequest("tpu-inference"),
    "./vllm==0.22.1": PathRequest("./vllm==0.22.1"),
    "../vllm": PathRequest("../vllm"),
    "vllm": PathRequest("vllm"),
    "~/src/vllm": PathRequest("~/src/vllm"),
    "/src/vllm==0.22.1": PathRequest("/src/vllm==0.22.1"),
    "vllm-0.22.1.tar.gz": PathRequest("vllm-0.22.1.tar.gz"),
    "vllm-0.22.1+cu129-cp38-abi3-linux_x86_64.whl": PathRequest(
        "vllm-0.22.1+cu129-cp38-abi3-linux_x86_64.whl"
    ),
    "./installed": PathRequest("./installed"),
    ".": PathRequest("."),
}


@pytest.mark.parametrize(("text", "request_"), READ.items(), ids=READ)
def test_what_is_read(text: str, request_: SourceRequest) -> None:
    assert parse_source(text) == request_


REFUSED = {
    "0.22.1": r"'0\.22\.1' names no package: write PACKAGE==0\.22\.1, or \./0\.22\.1 for a path",
    "installed": r"'installed' names no package: write installed:PACKAGE, or \./installed for a path",
    "installed:": r"'installed:' names no package",
    "installed:a b": r"'installed:a b' names no package",
    "vllm>=0.22": r"'vllm>=0\.22' does not name one release: write vllm==VERSION",
    "vllm==0.22.*": r"'vllm==0\.22\.\*' does not name one release",
    "vllm==0.22.1,!=0.22.2": "does not name one release",
    "vllm===0.22.1": "does not name one release",
    "vllm[audio]==0.22.1": r"'vllm\[audio\]==0\.22\.1' does not name one release",
    "vllm==0.22.1; python_version>'3'": "does not name one release",
    "vllm==": r"'vllm==' is not a requirement \(.*\): a source is PACKAGE==VERSION, installed:PACKAGE, or",
    "vllm==newest": r"'vllm==newest' is not a requirement",
    "vllm<": r"'vllm<' is not a requirement",
}


@pytest.mark.parametrize(("text", "message"), REFUSED.items(), ids=REFUSED)
def test_what_is_refused_is_quoted(text: str, message: str) -> None:
    with pytest.raises(UsageError, match=message) as caught:
        parse_source(text)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "source"),
    [
        ("0.22.1", "vllm==0.22.1"),
        ("0.22.1rc1", "vllm==0.22.1rc1"),
        ("installed", "installed:vllm"),
        ("./0.22.1", "./0.22.1"),
        ("vllm==0.22.1", "vllm==0.22.1"),
        ("vllm", "vllm"),
    ],
)
def test_the_short_form_is_completed(text: str, source: str) -> None:
    assert expand_shorthand("vllm", text) == source


def test_the_short_form_takes_its_own_package_alone() -> None:
    with pytest.raises(
        UsageError, match=r"'sglang==0\.5\.23' is not a source of vllm: write --source sglang"
    ):
        expand_shorthand("vllm", "sglang==0.5.23")


@pytest.mark.parametrize("text", ["requests==2.32.0", "installed:requests"])
def test_a_package_that_cannot_be_judged_is_refused_with_those_that_can(text: str) -> None:
    with pytest.raises(
        UsageError, match=f"'{re.escape(text)}': requests cannot be judged, only vllm, .* can"
    ):
        open_source(text)


def test_a_requirement_wins_over_a_folder_of_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "vllm==0.22.1/vllm/model_executor").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    release, folder = open_source("vllm==0.22.1"), open_source("./vllm==0.22.1")
    assert (release.label, release.version) == ("vllm 0.22.1", Version("0.22.1"))
    assert (folder.label, folder.version) == (f"vllm at {tmp_path / 'vllm==0.22.1'}", None)


COMMANDS: dict[str, Callable[[str, str], list[str]]] = {
    "audit": lambda option, text: ["audit", option, text],
    "repro": lambda option, text: ["repro", "43602", option, text, "--arm", "eager"],
    "repro of a system": lambda option, text: ["repro", "40143", option, text],
    "nightly": lambda option, text: ["nightly", "--minutes", "0", option, text],
}


@pytest.mark.parametrize("command", COMMANDS.values(), ids=COMMANDS)
def test_every_command_takes_both_options(
    command: Callable[[str, str], list[str]], capsys: pytest.CaptureFixture[str]
) -> None:
    for option, text in (("--source", "./nowhere"), ("--vllm", "./nowhere")):
        assert main(command(option, text)) == ExitCode.USAGE
        assert "is not allowed" not in capsys.readouterr().err
