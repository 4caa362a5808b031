"""Releases apart, every kind of source: found, labelled, read, and refused with one sentence."""

import subprocess
import sys
import traceback
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from cases.selftest.binding.synthetic_vllm import OMNI, QWEN, ModelFile, Vllm, line_of
from deepstack_harness.binding.bind import bind
from deepstack_harness.errors import UsageError
from deepstack_harness.sources.locate import locate

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
    buffer = bind(locate(str(write(tmp_path))), model)(16, 8, 3, dtype=torch.float32, device=CPU)
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
    buffer = bind(locate(str(path)))(16, 8, 3, dtype=torch.float32, device=CPU)
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
    assert locate(str(renamed)).label == "vllm 0.22.1"


def test_a_tree_is_labelled_by_its_path_and_its_written_version(tmp_path: Path) -> None:
    root = Vllm(version="0.23.1.dev7").tree(tmp_path / "repository")
    assert locate(str(root)).label == f"vllm at {root} (0.23.1.dev7)"
    (root / "vllm/_version.py").unlink()
    assert locate(str(root)).label == f"vllm at {root}"


def test_a_repository_is_labelled_by_git(tmp_path: Path) -> None:
    root = Vllm().tree(tmp_path)
    git = ["git", "-C", str(root), "-c", "user.name=n", "-c", "user.email=n@localhost"]
    for arguments in (["init", "-q"], ["add", "."], ["commit", "-qm", "x"], ["tag", "v0.9.9"]):
        subprocess.run([*git, *arguments], check=True)
    assert locate(str(root)).label == f"vllm at {root} (v0.9.9)"
    (root / QWEN).write_text("changed = True\n")
    assert locate(str(root)).label == f"vllm at {root} (v0.9.9-dirty)"


def test_an_installed_release_is_found_and_not_imported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = Vllm(version="0.20.1").site_packages(tmp_path)
    monkeypatch.syspath_prepend(str(site))
    bound = bind(locate("installed"))
    assert bound.label == "vllm 0.20.1"
    assert bound.filename == str(site / QWEN)
    assert "vllm" not in sys.modules


def test_an_editable_install_is_labelled_as_the_tree_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    site, root = tmp_path / "site", Vllm(version="0.23.1.dev7").tree(tmp_path / "repository")
    info = site / "vllm-0.22.1.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: vllm\nVersion: 0.22.1\n")
    monkeypatch.syspath_prepend(str(site))
    monkeypatch.syspath_prepend(str(root))  # what the .pth file of an editable install does
    assert locate("installed").label == f"vllm at {root / 'vllm'} (0.23.1.dev7)"


def test_nothing_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    with pytest.raises(UsageError, match=f"not installed in {sys.executable}: give a release such as"):
        locate("installed")


def test_what_reads_as_a_version_is_a_release(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Vllm().tree(tmp_path / "0.22.1")
    monkeypatch.chdir(tmp_path)
    assert locate("0.22.1").label == "vllm 0.22.1"
    assert locate("./0.22.1").label.startswith("vllm at ")


def test_source_in_another_encoding_is_read_as_python_reads_it(tmp_path: Path) -> None:
    root = Vllm().tree(tmp_path)
    (root / QWEN).write_bytes(f"# coding: latin-1\n# caf\u00e9\n{ModelFile()}".encode("latin-1"))
    assert "caf\u00e9" in locate(str(root)).read(QWEN).text


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


def _text_file(folder: Path) -> Path:
    path = folder / "notes.txt"
    path.write_text("vllm")
    return path


def _empty_folder(folder: Path) -> Path:
    return folder


BAD_PLACES: dict[str, tuple[Writer, str]] = {
    "missing": (lambda folder: folder / "nowhere", "nowhere' is not 'installed', a release .* No such file"),
    "neither": (
        lambda _: Path("latest"),
        "'latest' is not 'installed', a release such as 0.22.1, a wheel",
    ),
    "null": (lambda _: Path("a\0b"), "is not 'installed', a release .* null"),
    "suffix": (_text_file, r"notes.txt' is not .* ends in none of .whl, .zip, .tar.gz, .tgz"),
    "truncated wheel": (_truncated, r"\.whl' cannot be read as a wheel, is it complete\?"),
    "truncated sdist": (_truncated_sdist, r"\.tar\.gz' cannot be read as an archive, is it complete\?"),
    "other wheel": (_other_wheel, "holds requests 2.3, not vLLM: give a wheel or an sdist of vllm"),
    "no vllm": (_empty_folder, "is no vLLM source tree: it has no vllm/model_executor/"),
}


@pytest.mark.parametrize(("write", "message"), BAD_PLACES.values(), ids=BAD_PLACES)
def test_what_is_no_source_is_refused(tmp_path: Path, write: Writer, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        locate(str(write(tmp_path)))


def _loop(path: Path) -> None:
    path.unlink()
    path.symlink_to(path)


BAD_FILES: dict[str, tuple[Callable[[Path], object], str]] = {
    "missing": (Path.unlink, "has no vllm/model_executor/models/qwen3_vl.py; .* from vLLM 0.11.0 on"),
    "unreadable": (_loop, "qwen3_vl.py' cannot be read: Too many levels of symbolic links"),
    "no text": (lambda path: path.write_bytes(b"x = '\xff'"), "qwen3_vl.py is not Python source: "),
    "no text further on": (
        lambda path: path.write_bytes(b"1\n2\n3\nx = '\xff'"),
        "qwen3_vl.py is not Python source: ",
    ),
    "no class": (
        lambda path: path.write_text("x = 1"),
        "qwen3_vl.py has no class Qwen3VL.* from vLLM 0.11.0 on",
    ),
    "no Python": (
        lambda path: path.write_text("x = 1\ny = ="),
        r"qwen3_vl.py:2: no Python 3\.\d+ code: invalid syntax",
    ),
}


@pytest.mark.parametrize(("spoil", "message"), BAD_FILES.values(), ids=BAD_FILES)
def test_a_file_that_cannot_be_used_is_refused(
    tmp_path: Path, spoil: Callable[[Path], object], message: str
) -> None:
    root = Vllm().tree(tmp_path)
    spoil(root / QWEN)
    with pytest.raises(UsageError, match=message):
        bind(locate(str(root)))


def test_a_damaged_member_is_refused(tmp_path: Path) -> None:
    path = Vllm().wheel(tmp_path, ballast=b"")
    data = bytearray(path.read_bytes())
    start = data.index(OMNI.encode()) + len(OMNI)
    data[start + 10 : start + 40] = bytes(30)
    path.write_bytes(data)
    with pytest.raises(UsageError, match="cannot be read as a wheel, is it complete"):
        bind(locate(str(path)), "qwen3_omni_moe_thinker")
