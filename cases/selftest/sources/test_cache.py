"""The disk cache, and machines unlike others: foreign metadata, a read-only cache, no ranges, no git."""

import hashlib
import json
import logging
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest
from packaging.version import Version

import deepstack_harness
from cases.selftest.engines.synthetic_vllm import QWEN, Vllm
from cases.selftest.sources.served_index import serving
from deepstack_harness import files
from deepstack_harness.engines.kinds.vllm import VLLM
from deepstack_harness.engines.known import ENGINES, open_source
from deepstack_harness.errors import MachineError, UsageError
from deepstack_harness.sources import cache
from deepstack_harness.sources.archive import Archive
from deepstack_harness.sources.cache import CachedRelease
from deepstack_harness.sources.folder import revision_of
from deepstack_harness.sources.request import names_source
from deepstack_harness.sources.source import NoSuchMember
from deepstack_harness.sources.tree import Tree

ROOT = Path(deepstack_harness.__file__).parents[2]
MEMBER = "vllm/model_executor/models/qwen3_vl.py"
RELEASE = CachedRelease("vllm", Version("0.22.1"))


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("DEEPSTACK_HARNESS_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def test_a_stored_file_is_loaded_with_its_digest(folder: Path) -> None:
    path = RELEASE.store(MEMBER, b"text")
    assert path == folder / "packages/vllm/0.22.1" / MEMBER
    assert RELEASE.load(MEMBER) == (b"text", path)
    assert Path(f"{path}.sha256").read_text() == hashlib.sha256(b"text").hexdigest()


def test_packages_and_versions_are_separate() -> None:
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


FOLDER = "vllm/model_executor/models"


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of packages, first on the path, with a vLLM that nobody installed."""
    folder = Vllm(version="0.22.1").tree(tmp_path / "site")
    monkeypatch.syspath_prepend(str(folder))
    return folder


@pytest.mark.parametrize(
    "sentence", ["no JSON", '"text"', '{"url": 3}', '{"url": "file:///x", "dir_info": []}']
)
def test_a_file_of_another_installer_is_passed_over(site: Path, sentence: str) -> None:
    info = site / "other-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: other\nVersion: 1.0\n")
    (info / "direct_url.json").write_text(sentence)
    assert open_source("installed:vllm").label == f"vllm at {site / 'vllm'} (0.22.1)"


def test_an_editable_install_of_no_version_has_none(site: Path) -> None:
    (site / "vllm/_version.py").unlink()
    info = site / "vllm-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: vllm\nVersion: of today\n")
    (info / "direct_url.json").write_text(json.dumps({"url": site.as_uri(), "dir_info": {"editable": True}}))
    assert open_source("installed:vllm").version is None


def test_a_module_that_is_half_imported_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    half = ModuleType("vllm")
    half.__spec__ = None
    monkeypatch.setitem(sys.modules, "vllm", half)
    with pytest.raises(UsageError, match="vLLM is not installed in"):
        open_source("installed:vllm")


@pytest.mark.parametrize(
    ("text", "is_source"),
    [
        ("./main", True), ("~/vllm", True), ("/src", True), ("vllm==0.22.1", True), ("installed:vllm", True),
        ("main", False), ("0.22.1", False), ("1234567", False), ("v0.22.1", False),
    ],
)  # fmt: skip
def test_a_base_is_a_source_or_a_commit(
    text: str, is_source: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert names_source(text) == is_source
    (tmp_path / "main").mkdir()
    assert names_source("main")


def test_a_tree_and_an_archive_of_another_package_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"is not a source tree of vLLM: it has no vllm/model_executor/"):
        Tree(VLLM.package, tmp_path)
    wheel = Vllm().wheel(tmp_path)
    other = next(engine.package for engine in ENGINES if engine.package.name == "sglang")
    with pytest.raises(UsageError, match="holds vllm 0.22.1, not SGLang"):
        Archive(other, wheel)


def test_a_missing_folder_of_a_source_is_no_member(tmp_path: Path) -> None:
    source = open_source(str(Vllm().tree(tmp_path)))
    assert source.mentioning(FOLDER, "deepstack")
    with pytest.raises(NoSuchMember, match="vllm/nowhere"):
        source.mentioning("vllm/nowhere", "deepstack")


def test_a_cache_where_nothing_can_be_noted_costs_a_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, logged: list[logging.LogRecord]
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("DEEPSTACK_HARNESS_CACHE", str(tmp_path / "file"))
    cache._warn.cache_clear()
    RELEASE.note_absent("a.py")
    assert "cannot be written (Not a directory): continuing without it" in logged[0].getMessage()
    assert not RELEASE.is_absent("a.py")


def test_a_file_that_cannot_be_moved_leaves_no_temporary_file(tmp_path: Path) -> None:
    (tmp_path / "a.py").mkdir()
    with pytest.raises(IsADirectoryError):
        cache._replace(tmp_path / "a.py", b"text")
    assert [path.name for path in tmp_path.iterdir()] == ["a.py"]


def test_a_missing_data_file_names_both_places() -> None:
    with pytest.raises(UsageError, match=r"'fixtures/no.toml' is in neither .*_data/fixtures/no.toml nor "):
        files.data("fixtures/no.toml")


def test_a_commit_needs_a_repository_and_git(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UsageError, match="is no git repository, so 'main' names no commit of it"):
        revision_of(tmp_path, "main").__enter__()
    (tmp_path / ".git").mkdir()
    (tmp_path / ".git" / "HEAD").write_text("ref: refs/heads/main\n")
    (tmp_path / ".git" / "objects").mkdir()
    monkeypatch.setattr("shutil.which", lambda _: None)
    with pytest.raises(MachineError, match="git is not installed: it reads 'main' of"):
        revision_of(tmp_path, "main").__enter__()


@pytest.mark.parametrize("way", ["find-links", "no ranges"])
def test_a_release_is_searched_wherever_it_lies(
    way: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("DEEPSTACK_HARNESS_CACHE", str(tmp_path / "cache"))
    with serving(tmp_path / "served") as index:
        Vllm().wheel(index.folder)
        index.ranges = False
        if way == "find-links":
            monkeypatch.setenv("PIP_NO_INDEX", "1")
            monkeypatch.setenv("PIP_FIND_LINKS", str(index.folder))
        else:
            monkeypatch.setenv("PIP_INDEX_URL", index.url)
        source = open_source("vllm==0.22.1")
        first = source.mentioning(FOLDER, "deepstack")
        assert QWEN in first
    # The list and the files are cached: the index is gone.
    assert open_source("vllm==0.22.1").mentioning(FOLDER, "deepstack") == first
