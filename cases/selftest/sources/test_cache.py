"""The disk cache: what was stored is loaded, by several processes at once, and nothing else ever is."""

import hashlib
import subprocess
import sys
from pathlib import Path

import pytest
from packaging.version import Version

import deepstack_harness
from deepstack_harness.sources import cache
from deepstack_harness.sources.cache import CachedRelease

ROOT = Path(deepstack_harness.__file__).parents[2]
MEMBER = "vllm/model_executor/models/qwen3_vl.py"
RELEASE = CachedRelease("vllm", Version("0.22.1"))


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("DEEPSTACK_HARNESS_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def test_what_was_stored_is_loaded_with_its_digest_beside_it(folder: Path) -> None:
    path = RELEASE.store(MEMBER, b"text")
    assert path == folder / "packages/vllm/0.22.1" / MEMBER
    assert RELEASE.load(MEMBER) == (b"text", path)
    assert Path(f"{path}.sha256").read_text() == hashlib.sha256(b"text").hexdigest()


def test_packages_and_versions_are_kept_apart() -> None:
    RELEASE.store(MEMBER, b"text")
    for other in (CachedRelease("vllm-omni", RELEASE.version), CachedRelease("vllm", Version("0.22.2"))):
        assert other.load(MEMBER) is None
    assert cache.versions("vllm") == [Version("0.22.1")]
    assert cache.versions("vllm-omni") == []


def test_an_archive_of_another_package_or_version_is_not_taken(folder: Path) -> None:
    (folder / "archives").mkdir(parents=True)
    for name in ("vllm-0.22.1.tar.gz", "vllm-0.22.1.post1.tar.gz", "vllm_omni-0.22.1-py3-none-any.whl"):
        (folder / "archives" / name).touch()
    assert [path.name for path in RELEASE.archives()] == ["vllm-0.22.1.tar.gz"]
    omni = CachedRelease("vllm-omni", RELEASE.version)
    assert [path.name for path in omni.archives()] == ["vllm_omni-0.22.1-py3-none-any.whl"]


WRITES_AND_READS = """\
import sys
from packaging.version import Version
from deepstack_harness.sources.cache import CachedRelease
release = CachedRelease("vllm", Version("0.22.1"))
mine = sys.argv[1].encode() * 20_000
for _ in range(300):
    release.store("a.py", mine)
    found = release.load("a.py")
    assert found is None or len(set(found[0])) == 1 and len(found[0]) == 20_000, "half a file"
"""


def test_several_processes_use_it_at_once_and_none_reads_a_mixture(folder: Path) -> None:
    command = [sys.executable, "-c", WRITES_AND_READS]
    children = [
        subprocess.Popen([*command, letter], cwd=ROOT, stderr=subprocess.PIPE, text=True) for letter in "abc"
    ]
    ended = [(child.communicate()[1], child.returncode) for child in children]
    assert ended == [("", 0)] * 3
    assert RELEASE.store("a.py", b"text")
    assert RELEASE.load("a.py")
    assert sorted(path.name for path in folder.rglob("*") if path.is_file()) == ["a.py", "a.py.sha256"]
