"""Wheels and sdists that nobody vouches for: endless, forged, damaged, and full of links."""

import gzip
import io
import os
import re
import stat
import struct
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from cases.selftest.engines.synthetic_vllm import QWEN, ModelFile, Vllm
from deepstack_harness.cli.main import main
from deepstack_harness.engines.classes import classes_of, methods_of
from deepstack_harness.engines.known import open_source
from deepstack_harness.errors import ExitCode, UsageError
from deepstack_harness.sources.archive import open_files

TOP = "vllm-0.22.1"
MIB = 1 << 20


def wheel(folder: Path, **more: bytes) -> Path:
    """Write a wheel; `more` are further members."""
    path = Vllm().wheel(folder)
    with zipfile.ZipFile(path, "a", zipfile.ZIP_DEFLATED) as archive:
        for name, data in more.items():
            archive.writestr(name, data)
    return path


def sdist(folder: Path, *more: tuple[tarfile.TarInfo, bytes]) -> Path:
    """Write an sdist; `more` are further members, which come last and so replace others of their name."""
    path = folder / f"{TOP}.tar.gz"
    with tarfile.open(path, "w:gz") as archive:
        files = {f"{TOP}/{name}": text.encode() for name, text in Vllm().files.items()}
        for name, data in files.items():
            archive.addfile(member(name, size=len(data)), io.BytesIO(data))
        for info, data in more:
            archive.addfile(info, io.BytesIO(data))
    return path


def member(name: str, kind: bytes = tarfile.REGTYPE, target: str = "", size: int = 0) -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type, info.linkname, info.size = kind, target, size
    return info


def zipped_link(folder: Path) -> Path:
    path = Vllm(qwen="").wheel(folder)
    info = zipfile.ZipInfo(QWEN)
    info.external_attr = (stat.S_IFLNK | 0o777) << 16
    with zipfile.ZipFile(path, "a") as archive, pytest.warns(UserWarning, match="Duplicate name"):
        archive.writestr(info, "/etc/passwd")
    return path


IRREGULAR: dict[str, tuple[Callable[[Path], Path], str]] = {
    "zipped link": (zipped_link, r"\.whl/vllm/.*qwen3_vl\.py' is a link, where a file should be$"),
    "link": (
        lambda folder: sdist(folder, (member(f"{TOP}/{QWEN}", tarfile.SYMTYPE, "/etc/passwd"), b"")),
        r"\.tar\.gz/vllm-0\.22\.1/vllm/.*qwen3_vl\.py' is a link to '/etc/passwd', where a file should be$",
    ),
    "hard link": (
        lambda folder: sdist(folder, (member(f"{TOP}/{QWEN}", tarfile.LNKTYPE, f"{TOP}/setup.py"), b"")),
        r"qwen3_vl\.py' is a link to 'vllm-0\.22\.1/setup\.py', where",
    ),
    "pipe": (
        lambda folder: sdist(folder, (member(f"{TOP}/{QWEN}", tarfile.FIFOTYPE), b"")),
        r"qwen3_vl\.py' is a named pipe, where",
    ),
    "device": (
        lambda folder: sdist(folder, (member(f"{TOP}/{QWEN}", tarfile.CHRTYPE), b"")),
        r"qwen3_vl\.py' is a device, where",
    ),
    "folder": (
        lambda folder: sdist(folder, (member(f"{TOP}/{QWEN}", tarfile.DIRTYPE), b"")),
        r"qwen3_vl\.py' is a folder, where",
    ),
}


@pytest.mark.parametrize(("write", "message"), IRREGULAR.values(), ids=IRREGULAR)
def test_a_member_that_is_no_plain_file_is_refused_by_name(
    tmp_path: Path, write: Callable[[Path], Path], message: str
) -> None:
    source = open_source(str(write(tmp_path)))
    for look in (methods_of, classes_of):
        with pytest.raises(UsageError, match=message):
            look(source)


def test_links_elsewhere_do_no_harm(tmp_path: Path) -> None:
    path = sdist(tmp_path, (member(f"{TOP}/docs/latest", tarfile.SYMTYPE, "../../elsewhere"), b""))
    assert open_source(str(path)).read(QWEN).text == str(ModelFile())


@pytest.mark.parametrize(
    "name", ["../evil.py", "/etc/passwd", "vllm/../../evil.py", "..\\evil.py", "\\evil.py"]
)
@pytest.mark.parametrize("kind", ["wheel", "sdist"])
def test_a_path_that_leads_out_is_refused_by_name(tmp_path: Path, name: str, kind: str) -> None:
    path = wheel(tmp_path, **{name: b""}) if kind == "wheel" else sdist(tmp_path, (member(name), b""))
    with pytest.raises(
        UsageError, match=f"^'{path}' holds a path that leads out of it: {re.escape(repr(name))}$"
    ):
        open_source(str(path))


def test_a_name_that_would_change_the_terminal_is_shown_escaped(tmp_path: Path) -> None:
    path = wheel(tmp_path, **{"vllm/model_executor/models/\x1b[2J.py": b"deepstack"})
    with pytest.raises(UsageError, match=re.escape(r"'vllm/model_executor/models/\x1b[2J.py'")):
        classes_of(open_source(str(path)))


@pytest.mark.parametrize("write", [wheel, sdist])
def test_too_many_members_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, write: Callable[[Path], Path]
) -> None:
    path = write(tmp_path)
    monkeypatch.setenv("DEEPSTACK_HARNESS_MAX_MEMBERS", "3")
    with pytest.raises(
        UsageError,
        match=f"^'{path}' holds too many files: the limit is 3 files, DEEPSTACK_HARNESS_MAX_MEMBERS",
    ):
        open_source(str(path))
    monkeypatch.setenv("DEEPSTACK_HARNESS_MAX_MEMBERS", "10")
    assert open_source(str(path)).read(QWEN).text == str(ModelFile())


def test_members_are_counted_before_the_directory_of_a_zip_file_is_read(tmp_path: Path) -> None:
    """The end record claims 4 billion of them, in the form for more than 65,535 (ZIP64)."""
    path = wheel(tmp_path)
    data = path.read_bytes()
    end = data.rindex(b"PK\x05\x06")
    size, offset = struct.unpack_from("<II", data, end + 12)
    record = struct.pack("<4sQHHIIQQQQ", b"PK\x06\x06", 44, 45, 45, 0, 0, 4 << 30, 4 << 30, size, offset)
    locator = struct.pack("<4sIQI", b"PK\x06\x07", 0, end, 1)
    closing = data[end : end + 8] + struct.pack("<HHIIH", 0xFFFF, 0xFFFF, 0xFFFFFFFF, 0xFFFFFFFF, 0)
    path.write_bytes(data[:end] + record + locator + closing)
    with pytest.raises(UsageError, match="holds too many files: the limit is 200,000 files"):
        open_source(str(path))


def test_a_member_that_is_too_large_is_refused_by_name(tmp_path: Path) -> None:
    large = str(ModelFile()) + "#" * (16 * MIB)
    for path in (Vllm(qwen=large).wheel(tmp_path), Vllm(qwen=large).sdist(tmp_path)):
        with pytest.raises(
            UsageError,
            match=r"qwen3_vl\.py' is too large: the limit is 16 MiB, DEEPSTACK_HARNESS_MAX_FILE_MIB",
        ):
            methods_of(open_source(str(path)))


def test_what_is_unpacked_is_limited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A zip file's members may all be large; a tar file is unpacked up to the last one to be listed."""
    monkeypatch.setenv("DEEPSTACK_HARNESS_MAX_UNPACKED_MIB", "1")
    limit = "is too large when unpacked: the limit is 1 MiB, DEEPSTACK_HARNESS_MAX_UNPACKED_MIB raises it$"
    names = [f"vllm/model_executor/models/{name}.py" for name in "ab"]
    path = wheel(tmp_path, **dict.fromkeys(names, b"#" * (600 << 10)))
    with pytest.raises(UsageError, match=f"^'{path}' {limit}"):
        classes_of(open_source(str(path)))
    zeros = member("big.so", size=2 * MIB)
    path = sdist(tmp_path, (zeros, bytes(2 * MIB)), (member("last"), b""))
    with pytest.raises(UsageError, match=f"^'{path}' {limit}"):
        open_source(str(path))


def tar_of(*blocks: bytes) -> bytes:
    return gzip.compress(b"".join(blocks) + bytes(1024))


FORGED = {
    "a member of 7 GiB that is not there": tar_of(member("big", size=7 << 30).tobuf(), bytes(512)),
    "a header of 1 GiB": tar_of(member("head", tarfile.XHDTYPE, size=1 << 30).tobuf(), bytes(512)),
    "a name of 1 GiB": tar_of(member("name", tarfile.GNUTYPE_LONGNAME, size=1 << 30).tobuf(), bytes(512)),
}


@pytest.mark.parametrize("data", FORGED.values(), ids=FORGED)
def test_a_size_is_refused_before_it_is_unpacked(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "forged.tar.gz"
    path.write_bytes(data)
    with pytest.raises(
        UsageError, match=rf"^'{path}' is too large.*: the limit is [\d,]+ MiB, DEEPSTACK_HARNESS_MAX_"
    ):
        open_source(str(path))


def truncated(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def empty(path: Path) -> None:
    path.write_bytes(b"")


def noise(path: Path) -> None:
    path.write_bytes(b"PK\x05\x06" + b"\xff" * 100)


def encrypted(path: Path) -> None:
    data = bytearray(path.read_bytes())
    for start in (match.start() for match in re.finditer(b"PK\x01\x02", bytes(data))):
        data[start + 8] |= 1
    path.write_bytes(data)


def compressed_otherwise(path: Path) -> None:
    data = bytearray(path.read_bytes())
    for start in (match.start() for match in re.finditer(b"PK\x01\x02", bytes(data))):
        data[start + 10 : start + 12] = struct.pack("<H", 99)
    path.write_bytes(data)


DAMAGED = [
    (truncated, ".whl"), (empty, ".whl"), (noise, ".whl"), (encrypted, ".whl"),
    (compressed_otherwise, ".whl"), (truncated, ".tar.gz"), (empty, ".tar.gz"), (noise, ".tar.gz"),
]  # fmt: skip


@pytest.mark.parametrize(("spoil", "suffix"), DAMAGED)
def test_a_damaged_archive_ends_in_one_sentence(
    tmp_path: Path, spoil: Callable[[Path], None], suffix: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path = wheel(tmp_path) if suffix == ".whl" else sdist(tmp_path)
    spoil(path)
    assert main(["audit", "--source", str(path)]) == ExitCode.USAGE
    output = capsys.readouterr()
    assert output.out == ""
    assert re.fullmatch(
        rf"deepstack-harness: '{path}' cannot be read as an? \w+, is it complete\? \(.*\)\n", output.err
    )


@pytest.mark.parametrize("name", ["vllm.whl", "vllm.tar.gz", "vllm"])
def test_a_pipe_is_not_opened(tmp_path: Path, name: str) -> None:
    os.mkfifo(tmp_path / name)
    with pytest.raises(UsageError, match=rf"{name}' is a named pipe: a source is PACKAGE==VERSION"):
        open_source(str(tmp_path / name))


def test_a_package_that_carries_vllm_deep_inside_is_not_vllm(tmp_path: Path) -> None:
    path = tmp_path / "other-1.0-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(f"other/third_party/{QWEN}", "")
        archive.writestr("other-1.0.dist-info/METADATA", "Name: other\nVersion: 1.0\n")
    with pytest.raises(UsageError, match=r"holds other 1\.0, not vLLM"):
        open_source(str(path))


def test_metadata_that_is_nonsense_names_nobody(tmp_path: Path) -> None:
    path = wheel(tmp_path, **{"a.dist-info/METADATA": b"Name: \x1b[2J\nVersion: newest\n"})
    assert open_source(str(path)).label == f"vllm at {path} (0.22.1)"


def test_an_sdist_made_by_hand_is_read(tmp_path: Path) -> None:
    path = tmp_path / "mine.tgz"
    with tarfile.open(path, "w:gz") as archive:
        archive.add(Vllm().tree(tmp_path / "repository"), "./repository")
    source = open_source(str(path))
    assert (source.label, source.read(QWEN).text) == (f"vllm at {path} (0.22.1)", str(ModelFile()))


def test_an_archive_that_got_shorter_after_it_was_opened_ends_in_one_sentence(tmp_path: Path) -> None:
    path = sdist(tmp_path)
    files = open_files(path)
    text = gzip.decompress(path.read_bytes())
    path.write_bytes(gzip.compress(text[:600]))
    with pytest.raises(UsageError, match=r"cannot be read as an archive, is it complete\?"):
        list(files.read(files.names))
