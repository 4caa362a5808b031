"""Releases, from an index of our own on this machine: by ranges, whole, cached, and not to be had."""

import logging
import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from packaging.version import Version

import deepstack_harness
from cases.selftest.engines.synthetic_vllm import OMNI, QWEN, ModelFile, Vllm
from cases.selftest.sources.served_index import Served, serving, tell_pip_nothing
from deepstack_harness.engines.classes import methods_of
from deepstack_harness.engines.kinds.vllm import VLLM
from deepstack_harness.engines.known import open_source
from deepstack_harness.errors import MachineError, UsageError
from deepstack_harness.sources import pip_settings
from deepstack_harness.sources.index import Index, known_releases
from deepstack_harness.sources.pip_settings import PipSettings
from deepstack_harness.sources.source import KnownPackage, NoSuchMember

ROOT = Path(deepstack_harness.__file__).parents[2]
BALLAST = os.urandom(1 << 20)
CLOSED = "http://127.0.0.1:9/simple"


@pytest.fixture(autouse=True)
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine where pip has no settings, and nothing is cached; returns the cache folder."""
    cache = tmp_path / "cache"
    tell_pip_nothing(monkeypatch, cache)
    monkeypatch.setenv("PIP_INDEX_URL", CLOSED)
    return cache


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """One address for all tests: pip is started once for the same settings, and takes 0.3 s."""
    with serving(tmp_path_factory.mktemp("index") / "served") as served:
        yield served


@pytest.fixture
def index(server: Served, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Served:
    """An empty index in the settings of pip."""
    folder = tmp_path / "served"
    folder.mkdir()
    vars(server).update(vars(Served(folder, url=server.url)))
    monkeypatch.setenv("PIP_INDEX_URL", server.url)
    return server


def label_and_get(release: str, model: str = "qwen3_vl") -> tuple[str, object]:
    bound = methods_of(open_source(f"vllm=={release}"), model)
    buffer = bound(16, 8, 3, dtype=torch.float32, device=torch.device("cpu"))
    return bound.known.source.label, buffer.get(4)


def test_a_release_is_read_by_ranges_and_cached(index: Served, machine: Path) -> None:
    Vllm().wheel(index.folder, ballast=BALLAST)
    assert label_and_get("0.22.1") == ("vllm 0.22.1", None)
    assert 0 < index.sent < len(BALLAST) / 4
    index.status = 500
    bound = methods_of(open_source("vllm==0.22.1"))
    kept = machine / "packages/vllm/0.22.1" / QWEN
    assert bound.filename == str(kept)
    assert kept.read_text() == str(ModelFile())


def test_one_look_up_serves_all_files_of_a_release(index: Served) -> None:
    Vllm().wheel(index.folder)
    source = open_source("vllm==0.22.1")
    source.read(QWEN)
    source.read(OMNI)
    assert index.asked["/simple/vllm/"] == 1


def test_a_file_missing_in_a_release_is_not_looked_up_again(index: Served) -> None:
    Vllm().wheel(index.folder)
    for _ in range(2):
        with pytest.raises(NoSuchMember, match=r"^vllm 0\.22\.1 has no vllm/nowhere\.py$"):
            open_source("vllm==0.22.1").read("vllm/nowhere.py")
        index.status = 500


def test_without_ranges_the_wheel_is_downloaded_once(
    index: Served, machine: Path, logged: list[logging.LogRecord]
) -> None:
    index.ranges = False
    wheel = Vllm().wheel(index.folder, ballast=BALLAST)
    assert label_and_get("0.22.1") == ("vllm 0.22.1", None)
    assert [record.levelno for record in logged] == [logging.WARNING]
    assert f"{wheel.name} is downloaded whole" in logged[0].getMessage()
    assert [path.name for path in (machine / "archives").iterdir()] == [wheel.name]
    index.status = 500
    assert label_and_get("0.22.1", "qwen3_omni_moe_thinker") == ("vllm 0.22.1", None)


def test_a_download_without_the_member_is_cached(index: Served) -> None:
    sdist = Vllm().sdist(index.folder)
    source = open_source("vllm==0.22.1")
    for name in ("vllm/nowhere.py", "vllm/elsewhere.py"):
        with pytest.raises(NoSuchMember):
            source.read(name)
    assert index.asked[f"/files/{sdist.name}"] == 1


def test_a_release_of_a_stub_is_recognised_by_its_file(index: Served) -> None:
    """A download lies in a temporary folder, of which no one knows."""
    name = "vllm-0.22.1-py3-none-any.whl"
    with zipfile.ZipFile(index.folder / name, "w") as stub:
        stub.writestr(
            "vllm-0.22.1.dist-info/METADATA", "Metadata-Version: 2.1\nName: vllm\nVersion: 0.22.1\n"
        )
        stub.writestr("vllm-0.22.1.dist-info/RECORD", "")
    with pytest.raises(UsageError, match=rf"^'{name}' is vllm 0\.22\.1 without .*, a stub"):
        open_source("vllm==0.22.1").mentioning("vllm", "deepstack")


def test_a_damaged_download_is_replaced(index: Served, machine: Path) -> None:
    index.ranges = False
    wheel = Vllm().wheel(index.folder)
    damaged = machine / "archives" / wheel.name
    damaged.parent.mkdir(parents=True)
    damaged.write_bytes(b"PK")
    assert label_and_get("0.22.1") == ("vllm 0.22.1", None)
    assert damaged.read_bytes() == wheel.read_bytes()


def test_a_download_with_the_wrong_digest_is_refused(index: Served) -> None:
    index.ranges = False
    wheel = Vllm().wheel(index.folder)
    page = index.folder / "links.html"
    page.write_text(f'<a href="/files/{wheel.name}#sha256={"0" * 64}">x</a>')
    settings = PipSettings(no_index=True, find_links=(index.url.replace("/simple", "/files/links.html"),))
    with pytest.raises(MachineError, match=r"\.whl cannot be read \(its digest is not the one"):
        Index(VLLM.package, settings).find(Version("0.22.1")).read(QWEN)


@pytest.mark.parametrize("suffix", [".tar.gz", ".zip"])
def test_an_sdist_will_do(index: Served, suffix: str) -> None:
    Vllm().sdist(index.folder, suffix)
    assert label_and_get("0.22.1") == ("vllm 0.22.1", None)


def test_a_wheel_of_any_platform_is_preferred_to_the_sdist(index: Served) -> None:
    Vllm().sdist(index.folder)
    wheel = Vllm().wheel(index.folder)
    foreign = wheel.rename(wheel.with_name("vllm-0.22.1-cp27-cp27m-win32.whl"))
    label_and_get("0.22.1")
    assert index.asked[f"/files/{foreign.name}"]
    assert not index.asked["/files/vllm-0.22.1.tar.gz"]


def test_a_local_build_is_not_taken_for_the_release(index: Served) -> None:
    Vllm(version="0.22.1+cu129", qwen="other = 1").wheel(index.folder)
    Vllm().sdist(index.folder)
    assert open_source("vllm==0.22.1").read(QWEN).text == str(ModelFile())
    assert open_source("vllm==0.22.1+cu129").read(QWEN).text == "other = 1"


def test_a_cached_archive_of_another_release_is_not_taken_for_this_one(index: Served, machine: Path) -> None:
    kept = machine / "archives"
    kept.mkdir(parents=True)
    Vllm(version="0.22.1.post1", qwen="other = 1").wheel(kept)
    Vllm().wheel(index.folder)
    assert open_source("vllm==0.22.1").read(QWEN).text == str(ModelFile())


def test_a_folder_of_wheels_is_read_where_it_lies(
    tmp_path: Path, machine: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wheel = Vllm().wheel(tmp_path)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", f"{tmp_path / 'gone'} {wheel.parent}")
    assert label_and_get("0.22.1") == ("vllm 0.22.1", None)
    assert wheel.exists()
    assert not (machine / "archives").exists()
    with pytest.raises(
        UsageError, match=r"^there is no vllm 0\.22\.2: near it are 0\.22\.1, the newest is 0\.22\.1$"
    ):
        open_source("vllm==0.22.2").read(QWEN)


def test_a_release_that_does_not_exist_is_refused_with_its_neighbours(index: Served) -> None:
    for version in ("0.19.1", "0.20.0", "0.22.0", "0.22.1", "0.23.0", "0.33.0"):
        (index.folder / f"vllm-{version}-py3-none-any.whl").touch()
    with pytest.raises(UsageError) as caught:
        open_source("vllm==0.22.5").read(QWEN)
    assert str(caught.value) == (
        "there is no vllm 0.22.5: near it are 0.22.0, 0.22.1, 0.23.0, 0.33.0, the newest is 0.33.0"
    )
    with pytest.raises(
        UsageError, match=r"there is no vllm 99: near it are 0\.23\.0, 0\.33\.0, the newest is"
    ):
        open_source("vllm==99").read(QWEN)
    assert known_releases(VLLM.package)[-1] == Version("0.33.0")


def package_named(name: str) -> KnownPackage:
    return KnownPackage(name, name, f"{name}/models", f"{name}/version.py")


def test_the_newest_release_is_final_and_not_yanked(index: Served) -> None:
    names = [f"torch-{version}-py3-none-any.whl" for version in ("2.9.1", "2.15.0", "2.15.1", "2.16.0rc1")]
    for name in [*names, "vllm-99-py3-none-any.whl"]:
        (index.folder / name).touch()
    index.yanked = frozenset({names[2]})
    torches = Index(package_named("torch"))
    assert torches.newest() == Version("2.15.0")
    with pytest.raises(
        UsageError, match=r"^there is no torch 2\.14: near it are 2\.9\.1, 2\.15\.0, 2\.15\.1"
    ):
        torches.find(Version("2.14"))
    with pytest.raises(MachineError, match=r"^the newest absent cannot be looked up: .*has absent"):
        Index(package_named("absent"), PipSettings(no_index=True)).newest()


def test_members_of_a_wheel_are_read_one_by_one_with_one_directory(index: Served) -> None:
    wheel = Vllm().wheel(index.folder, ballast=BALLAST)
    published = Index(VLLM.package).find(Version("0.22.1"))
    with published.opened() as opened:
        directory = index.sent
        assert opened.read(QWEN).decode() == str(ModelFile())
        assert opened.read(OMNI)
        assert index.sent - directory < 4096
    assert index.sent < len(BALLAST) / 4
    index.ranges = False
    with pytest.raises(MachineError, match=r"\.whl cannot be read by byte ranges$"), published.opened():
        pass
    settings = PipSettings(no_index=True, find_links=(str(wheel.parent),))
    with Index(VLLM.package, settings).find(Version("0.22.1")).opened() as opened:
        assert opened.read(QWEN).decode() == str(ModelFile())
    index.ranges, index.status = True, 500
    with pytest.raises(MachineError, match=r"\.whl cannot be read \(it answers 500"), published.opened():
        pass


def test_a_release_without_the_file_is_refused(index: Served) -> None:
    Vllm(version="0.10.2").wheel(index.folder)
    with pytest.raises(UsageError, match=r"^vllm 0\.10\.2 has no vllm/sequence\.py$"):
        open_source("vllm==0.10.2").read("vllm/sequence.py")


def test_no_network_is_the_machines_fault() -> None:
    with pytest.raises(MachineError) as caught:
        open_source("vllm==0.22.1").read(QWEN)
    message = str(caught.value)
    assert message.startswith(f"vllm 0.22.1 cannot be looked up: {CLOSED} cannot be reached (")
    assert message.endswith("; give a wheel, an sdist or a source tree instead")
    assert "\n" not in message
    with pytest.raises(MachineError, match=r"cannot be listed: .* cannot be reached"):
        known_releases(VLLM.package)


def test_without_a_network_the_cached_releases_are_named(
    index: Served, machine: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for version in ("0.9.2", "0.22.1"):
        Vllm(version=version).wheel(index.folder)
        open_source(f"vllm=={version}").read(QWEN)
    monkeypatch.setenv("PIP_INDEX_URL", CLOSED)
    with pytest.raises(MachineError, match=r"or a release that is cached here \(0\.9\.2, 0\.22\.1\)$"):
        open_source("vllm==0.33.0").read(QWEN)
    (machine / "packages/vllm/mine").mkdir()
    (machine / "packages/vllm/mine/notes.py").touch()
    with pytest.raises(MachineError, match="give a wheel, an sdist or a source tree instead$"):
        open_source("vllm==0.33.0").read(QWEN)


REFUSALS = {403: "403 Forbidden", 429: "429 Too Many Requests", 503: "503 Service Unavailable"}


@pytest.mark.parametrize(("status", "reason"), REFUSALS.items())
def test_an_index_that_refuses_is_not_taken_for_an_empty_one(index: Served, status: int, reason: str) -> None:
    index.status = status
    with pytest.raises(MachineError) as caught:
        open_source("vllm==0.22.1").read(QWEN)
    assert f"{index.url} cannot be reached (it answers {reason}); give" in str(caught.value)


def test_one_unreachable_index_of_two_leaves_the_question_open(
    index: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    Vllm().wheel(index.folder)
    monkeypatch.setenv("PIP_EXTRA_INDEX_URL", CLOSED)
    assert label_and_get("0.22.1") == ("vllm 0.22.1", None)
    with pytest.raises(
        MachineError, match=r"vllm 0\.22\.2 cannot be looked up: .*:9/simple cannot be reached"
    ):
        open_source("vllm==0.22.2").read(QWEN)


def test_an_index_without_vllm_is_the_machines_fault(index: Served, logged: list[logging.LogRecord]) -> None:
    index.status = 404
    with pytest.raises(
        MachineError, match=r"cannot be looked up: .*/simple/vllm/: Client Error\(404\): Not Found;"
    ):
        open_source("vllm==0.22.1").read(QWEN)
    assert not logged


def test_an_index_that_is_not_trusted_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_INDEX_URL", "http://index.invalid/simple")
    with pytest.raises(
        MachineError, match=r"Skipping http://index\.invalid/simple/vllm/ for not being trusted"
    ):
        open_source("vllm==0.22.1").read(QWEN)


def test_no_index_at_all_is_the_machines_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    with pytest.raises(MachineError, match="cannot be looked up: pip is told of no place that has vllm;"):
        open_source("vllm==0.22.1").read(QWEN)


@pytest.mark.parametrize("status", [401, 403, 404])
def test_passwords_stay_out_of_messages(
    index: Served, monkeypatch: pytest.MonkeyPatch, logged: list[logging.LogRecord], status: int
) -> None:
    index.status = status
    monkeypatch.setenv("PIP_INDEX_URL", index.url.replace("//", "//name:secret@"))
    with pytest.raises(MachineError, match=r"http://\*\*\*@127\.0\.0\.1:\d+/simple") as caught:
        open_source("vllm==0.22.1").read(QWEN)
    assert "secret" not in str(caught.value)
    assert not [record for record in logged if "secret" in record.getMessage()]


def test_passwords_stay_out_of_the_notice_of_a_download(
    index: Served, monkeypatch: pytest.MonkeyPatch, logged: list[logging.LogRecord], machine: Path
) -> None:
    index.ranges = False
    wheel = Vllm().wheel(index.folder)
    page = index.folder / "links.html"
    host = index.url.removeprefix("http://").removesuffix("/simple")
    page.write_text(f'<a href="http://name:secret@{host}/files/{wheel.name}?token=secret">x</a>')
    settings = PipSettings(no_index=True, find_links=(f"http://{host}/files/links.html",))
    archive = Index(VLLM.package, settings).find(Version("0.22.1"))
    _, shown = archive.read(QWEN)
    assert shown == f"{wheel.name}/{QWEN}"
    assert "is downloaded whole" in logged[0].getMessage()
    assert not [record for record in logged if "secret" in record.getMessage()]
    assert not [path for path in machine.rglob("*") if "secret" in path.name]
    for served in ({"ranges": False}, {"ranges": True, "status": 500}):
        vars(index).update(served)
        with pytest.raises(MachineError, match=r"\*\*\*.*cannot be read") as caught, archive.opened():
            pass
        assert "secret" not in str(caught.value)


def test_a_wheel_that_vanishes_is_the_machines_fault(index: Served) -> None:
    wheel = Vllm().wheel(index.folder)
    archive = Index(VLLM.package).find(Version("0.22.1"))
    wheel.unlink()
    with pytest.raises(
        MachineError, match=r"vllm-0\.22\.1-.*\.whl cannot be read \(it answers 404 Not Found\); give"
    ):
        archive.read(QWEN)


def _damage(kept: Path) -> None:
    kept.write_text("x = ")


def _lose_digest(kept: Path) -> None:
    kept.with_name(f"{kept.name}.sha256").write_bytes(b"\xff")


@pytest.mark.parametrize("spoil", [_damage, _lose_digest, Path.unlink])
def test_a_damaged_cached_file_is_fetched_again(
    index: Served, machine: Path, spoil: Callable[[Path], object]
) -> None:
    Vllm().wheel(index.folder)
    open_source("vllm==0.22.1").read(QWEN)
    kept = machine / "packages/vllm/0.22.1" / QWEN
    spoil(kept)
    assert open_source("vllm==0.22.1").read(QWEN).text == str(ModelFile())
    assert kept.read_text() == str(ModelFile())


@pytest.mark.parametrize("ranges", [True, False])
def test_a_cache_that_cannot_be_written_costs_a_warning(
    index: Served, machine: Path, logged: list[logging.LogRecord], ranges: bool
) -> None:
    index.ranges = ranges
    Vllm().wheel(index.folder)
    machine.write_text("a file where the folder should be")
    assert label_and_get("0.22.1") == ("vllm 0.22.1", None)
    records = [record.getMessage() for record in logged if "cache" in record.getMessage()]
    assert records == [f"the cache {machine} cannot be written (Not a directory): continuing without it"]
    asked = index.asked.total()
    assert open_source("vllm==0.22.1").read(QWEN).text == str(ModelFile())
    assert index.asked.total() == asked  # this process holds it


# Only what is read while the disk is full is limited.  A child such as pip would inherit the limit, and what
# watches a process, such as coverage, writes a file at its end.
FULL_DISK = """\
import resource, sys
from deepstack_harness.engines.known import open_source
source = open_source("vllm==0.22.1")
source.read(sys.argv[1])
usual = resource.getrlimit(resource.RLIMIT_FSIZE)
resource.setrlimit(resource.RLIMIT_FSIZE, (100, usual[1]))  # no file may grow beyond 100 bytes
print(source.read(sys.argv[2]).filename)
resource.setrlimit(resource.RLIMIT_FSIZE, usual)
"""


def test_a_disk_that_is_full_costs_a_warning(index: Served, machine: Path) -> None:
    wheel = Vllm().wheel(index.folder)
    command = [sys.executable, "-c", FULL_DISK, OMNI, QWEN]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT)
    assert done.stdout == f"{wheel.name}/{QWEN}\n"
    assert done.stderr == f"the cache {machine} cannot be written (File too large): continuing without it\n"
    before = Path(OMNI).name
    assert {path.name for path in machine.rglob("*") if path.is_file()} == {before, f"{before}.sha256"}


def test_pips_files_and_variables_count_in_pips_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = tmp_path / "pip.conf"
    config.write_text(
        "[global]\nindex-url = https://global.invalid/simple\ncert = /global.pem\n"
        "trusted-host = a.invalid\n  b.invalid\n"
        "[install]\nindex-url = https://install.invalid/simple\nfind-links = /wheels /more\nno-index = 0\n"
    )
    monkeypatch.setenv("PIP_CONFIG_FILE", str(config))
    monkeypatch.delenv("PIP_INDEX_URL")
    monkeypatch.setenv("PIP_CERT", "/variable.pem")
    assert pip_settings.read() == PipSettings(
        index_url="https://install.invalid/simple",
        find_links=("/wheels", "/more"),
        trusted_hosts=("a.invalid", "b.invalid"),
        cert="/variable.pem",
    )


def test_pip_is_called_again_only_if_its_variables_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = tmp_path / "asked"
    interpreter = tmp_path / "python"
    interpreter.write_text(f"#!/bin/sh\necho x >> {asked}\necho \"global.cert='$PIP_CERT'\"\n")
    interpreter.chmod(0o755)
    monkeypatch.setattr("sys.executable", str(interpreter))
    seen = []
    for cert in ("/a.pem", "/b.pem", "/a.pem"):
        monkeypatch.setenv("PIP_CERT", cert)
        seen.append(pip_settings.read().cert)
    assert seen == ["/a.pem", "/b.pem", "/a.pem"]
    assert asked.read_text() == "x\nx\n"


def test_without_pip_the_variables_still_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.executable", str(tmp_path / "no-python"))
    monkeypatch.setenv("PIP_EXTRA_INDEX_URL", "https://one.invalid https://two.invalid")
    assert pip_settings.read() == PipSettings(
        index_url=CLOSED, extra_index_urls=("https://one.invalid", "https://two.invalid")
    )


def test_pips_default_counts_where_nothing_is_configured() -> None:
    index = Index(VLLM.package, PipSettings())
    assert index._links == []
    (address,) = index._indexes
    assert address.startswith("https://")
    more = Index(VLLM.package, PipSettings(extra_index_urls=("https://x.invalid",)))
    assert more._indexes == [address, "https://x.invalid"]


def test_a_certificate_that_is_not_there_is_named() -> None:
    with pytest.raises(MachineError, match=r"cannot be reached .*No such file"):
        Index(VLLM.package, PipSettings(index_url="https://127.0.0.1:9/simple", cert="/nowhere.pem")).find(
            Version("0.22.1")
        )


def test_half_a_wheel_on_the_index_is_refused(index: Served) -> None:
    wheel = Vllm().wheel(index.folder, ballast=BALLAST)
    wheel.write_bytes(wheel.read_bytes()[:-500])
    with pytest.raises(UsageError, match=r"\.whl' cannot be read as a wheel, is it complete"):
        open_source("vllm==0.22.1").read(QWEN)


def test_a_copied_cache_is_as_good(
    index: Served, machine: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Vllm().wheel(index.folder)
    open_source("vllm==0.22.1").read(QWEN)
    shutil.copytree(machine, tmp_path / "elsewhere")
    monkeypatch.setenv("DEEPSTACK_HARNESS_CACHE", str(tmp_path / "elsewhere"))
    monkeypatch.setenv("PIP_INDEX_URL", CLOSED)
    assert open_source("vllm==0.22.1").read(QWEN).filename == str(
        tmp_path / "elsewhere/packages/vllm/0.22.1" / QWEN
    )
