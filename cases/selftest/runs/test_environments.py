"""Environments for torches: what a text names, what is made, and what an interruption leaves.

The environments are real ones: made by `venv` without pip, which sees the packages of this Python by a path
file.  The torch in them is a few lines, so that it can have any version and be imported in no time.
"""

import shutil
import subprocess
import sysconfig
from collections.abc import Sequence
from pathlib import Path

import pytest
from packaging.version import Version

from deepstack_harness.errors import MachineError, UsageError
from deepstack_harness.runs import environments
from deepstack_harness.runs.environments import (
    chosen_releases,
    folder_for,
    harness_path,
    is_interpreter,
    keep_newest,
    made_home,
    made_homes,
    make_home,
    named_home,
)
from deepstack_harness.sources import environments as made
from deepstack_harness.sources.environments import Installer, python_of

RELEASES = [
    Version(text) for text in ("2.9.1", "2.10.0", "2.11.0", "2.12.0", "2.12.1", "2.13.0", "2.14.0rc1")
]
WANTED = Version("2.12.1")

INSTALL = """
import sys, sysconfig
from pathlib import Path
site, seen, wanted = Path(sysconfig.get_path("purelib")), sys.argv[1], sys.argv[2]
version = wanted.partition("==")[2]
(site / "seen.pth").write_text(seen)
(site / "torch").mkdir()
(site / "torch" / "__init__.py").write_text("")
(site / f"torch-{version}.dist-info").mkdir()
metadata = f"Metadata-Version: 2.1\\nName: torch\\nVersion: {version}\\n"
(site / f"torch-{version}.dist-info" / "METADATA").write_text(metadata)
"""


class SmallInstaller(Installer):
    """An installer of a small torch, in addition to the packages of this Python."""

    def make(self, folder: Path) -> list[str]:
        return [*super().make(folder), "--without-pip"]

    def install(self, folder: Path, words: Sequence[str]) -> list[str]:
        return [str(python_of(folder)), "-c", INSTALL, sysconfig.get_path("purelib"), *words]


class BreakingInstaller(SmallInstaller):
    """An installer that writes half of what it should, and fails."""

    def install(self, folder: Path, words: Sequence[str]) -> list[str]:
        (folder / "half").write_text("")
        return [str(python_of(folder)), "-c", f"raise SystemExit('ERROR: no space left for {words[0]}')"]


@pytest.fixture(autouse=True)
def cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setenv("DEEPSTACK_HARNESS_CACHE", str(tmp_path / "cache"))
    install_with(monkeypatch, SmallInstaller)
    return tmp_path / "cache"


def install_with(monkeypatch: pytest.MonkeyPatch, installer: type[Installer]) -> None:
    monkeypatch.setattr(made, "find_installer", lambda: installer(None))


@pytest.mark.parametrize(
    ("texts", "expected"),
    [
        (["2.10.0"], ["2.10.0"]),
        (["2.12"], ["2.12.1"]),
        (["2.12.0"], ["2.12.0"]),
        (["2.14.0rc1"], ["2.14.0rc1"]),
        (["2.14"], ["2.14.0rc1"]),
        (["2.13", "2.10", "2.13.0"], ["2.13.0", "2.10.0"]),
        (["2.10..2.12"], ["2.10.0", "2.11.0", "2.12.1"]),
        (["2.12..2.15"], ["2.12.1", "2.13.0"]),
    ],
)
def test_a_text_names_releases(texts: list[str], expected: list[str]) -> None:
    assert chosen_releases(texts, RELEASES) == [Version(text) for text in expected]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("2.16", "the index has no such torch; near it are 2.12.1, 2.13.0, the newest is 2.13.0"),
        ("2.11.3", "near it are 2.10.0, 2.11.0, 2.12.0, 2.12.1"),
        ("3..4", "the index has no such torch"),
        ("2.x", "is neither a version, such as 2.15 or 2.10..2.15, nor an interpreter"),
    ],
)
def test_a_release_that_is_not_there_is_refused_with_its_neighbours(text: str, said: str) -> None:
    with pytest.raises(UsageError, match="--torch") as refused:
        chosen_releases([text], RELEASES)
    assert said in str(refused.value)


def test_a_path_is_distinguished_from_a_version() -> None:
    assert [is_interpreter(text) for text in ("2.15", "./env", "/usr/bin/python3", "~/nightly")] == [
        False, True, True, True,
    ]  # fmt: skip


def test_an_environment_is_made_once_led_to_this_harness_and_used_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    told: list[str] = []
    home = make_home(WANTED, told.append)
    assert (home.torch, home.name, home.folder) == ("2.12.1", "torch-2.12.1", folder_for(WANTED))
    assert len(told) == 1
    assert "up to 6 GB on the disk and 3 GB to fetch" in told[0]
    install_with(monkeypatch, BreakingInstaller)
    assert make_home(WANTED, pytest.fail) == home == made_home(WANTED)
    (path_file,) = folder_for(WANTED).glob("lib/python3*/site-packages/deepstack_harness.pth")
    assert path_file.read_text().strip() == str(harness_path()) == home.environment["PYTHONPATH"]
    assert (harness_path() / "deepstack_harness" / "runs" / "environments.py").samefile(environments.__file__)
    assert [path.name for path in harness_path().iterdir()] == ["deepstack_harness"]


def test_half_an_environment_is_none_and_is_made_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    install_with(monkeypatch, BreakingInstaller)
    with pytest.raises(MachineError, match=r"the installation for torch 2\.12\.1 failed.*no space left"):
        make_home(WANTED, lambda _: None)
    assert made_home(WANTED) is None
    assert made_homes() == []
    install_with(monkeypatch, SmallInstaller)
    assert make_home(WANTED, lambda _: None).torch == "2.12.1"
    assert not (folder_for(WANTED) / "half").exists()


def test_an_environment_of_other_requirements_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    make_home(WANTED, lambda _: None)
    monkeypatch.setattr(environments, "requirements", lambda: ["msgspec>=99"])
    assert made_home(WANTED) is None


def test_a_full_disk_is_reported_before_anything_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    usage = shutil.disk_usage("/")._replace(free=10**9)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage)
    with pytest.raises(
        MachineError, match=r"1\.0 GB free, an environment with torch 2\.12\.1 needs 10\.0 GB"
    ):
        make_home(WANTED, pytest.fail)
    assert not folder_for(WANTED).exists()


def test_the_environments_that_were_used_last_are_retained() -> None:
    first, second = (make_home(Version(text), lambda _: None) for text in ("2.10.0", "2.11.0"))
    make_home(Version("2.10.0"), pytest.fail)  # used again
    assert keep_newest(2) == []
    assert keep_newest(1) == [second.folder]
    assert [home.torch for home in made_homes()] == ["2.10.0"]
    assert keep_newest(0) == [first.folder]
    assert made_homes() == []


def test_the_torch_of_an_interpreter_is_looked_up(tmp_path: Path) -> None:
    ours = make_home(WANTED, lambda _: None)
    for text in (str(ours.folder), str(ours.python)):
        home = named_home(text)
        assert (home.python, home.torch, home.folder) == (ours.python, "2.12.1", None)
    with pytest.raises(UsageError, match="is no interpreter, and no folder with bin/python"):
        named_home(str(tmp_path / "nowhere"))
    with pytest.raises(MachineError, match="is no Python that runs"):
        named_home("/bin/true")


def test_an_interpreter_without_torch_or_packages_is_refused_by_name(tmp_path: Path) -> None:
    folder = tmp_path / "bare"
    subprocess.run(SmallInstaller(None).make(folder), check=True)
    with pytest.raises(MachineError, match="has no torch"):
        named_home(str(folder))
    (site,) = folder.glob("lib/python3*/site-packages")
    (site / "torch-1.dist-info").mkdir()
    (site / "torch-1.dist-info" / "METADATA").write_text("Metadata-Version: 2.1\nName: torch\nVersion: 1\n")
    (site / "torch.py").write_text("")
    with pytest.raises(
        MachineError, match="packages are missing that the harness needs: .* -m pip install covertable "
    ):
        named_home(str(folder))
    (site / "torch.py").write_text("raise OSError('libcudart.so is not there')")
    with pytest.raises(MachineError, match=r"cannot be imported by .*: OSError: libcudart\.so is not there"):
        named_home(str(folder))
