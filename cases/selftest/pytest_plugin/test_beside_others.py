"""The plugin in a project that uses other plugins, and its cost to a project that does not use it."""

from importlib.util import find_spec
from pathlib import Path

import pytest

from cases.selftest.pytest_plugin.test_third_party import PLUGIN, Project, installed
from deepstack_harness.runs.frames import read_run

__all__ = ["installed"]
OTHERS = ("pytest_randomly", "pytest_rerunfailures", "pytest_timeout", "xdist")
LACKING = [name for name in OTHERS if find_spec(name) is None]
OWN_PROFILE = """
from hypothesis import settings

settings.register_profile("own", max_examples=7)
settings.load_profile("own")
"""
TESTS = """
import random
import pytest
from hypothesis import given, settings, strategies
from deepstack_harness.models.reference import ReferenceBuffer

attempts = []
played = []


@pytest.mark.timeout(200)
def test_contract(deepstack_contract):
    deepstack_contract(ReferenceBuffer)
    attempts.append(random.random())
    assert len(attempts) == 2, "it passes when it is run again"
    assert attempts[0] == attempts[1]  # pytest-randomly seeds each attempt, and the harness draws nothing


@given(number=strategies.integers())
def test_own_profile(number):
    assert settings.default.max_examples == 7
    played.append(number)


@pytest.mark.parametrize("number", range(3))
def test_others(number):
    assert len(played) <= 7
"""
MODES = """
def test_fixtures_are_there(request, pytestconfig):
    assert pytestconfig.pluginmanager.hasplugin("deepstack_harness.pytest_plugin")
    assert "deepstack_contract" in request.session._fixturemanager._arg2fixturedefs
"""


@pytest.fixture
def project(tmp_path: Path, installed: str) -> Project:
    """A project with a hypothesis profile of its own, and two test files of the same name."""
    for folder, text in (("one", TESTS), ("two", MODES)):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "test_same.py").write_text(text)
    (tmp_path / "conftest.py").write_text(OWN_PROFILE)
    return Project(tmp_path, installed)


@pytest.mark.slow  # 11 s
@pytest.mark.skipif(bool(LACKING), reason=f"not installed: {', '.join(LACKING)}")
def test_with_four_other_plugins_at_once(project: Project) -> None:
    """Only `--import-mode importlib` allows two files of one name outside of packages."""
    status, printed = project.pytest(
        "-n", "2", "--import-mode", "importlib", "--reruns", "1", "--timeout", "240", "-p", "randomly",
        "-p", "rerunfailures", "-p", "no:cacheprovider", "-W", "error", "--deepstack-report", "out",
    )  # fmt: skip
    assert status == 0, printed
    assert "6 passed, 1 rerun" in printed, printed
    found = read_run(project.folder / "out")
    assert set(found.rows["verdict"]) == {"PASS", "SKIP"}
    assert {node.partition("::")[2] for node in found.rows["node_id"]} == {"test_contract"}
    attempts = found.cases.groupby("trace").size()
    assert set(attempts) == {2}, attempts  # both attempts are reported, and none of them twice


def test_in_the_import_mode_prepend(project: Project) -> None:
    (project.folder / "two" / "test_same.py").rename(project.folder / "two" / "test_another.py")
    status, printed = project.pytest("--import-mode", "prepend", "-p", "no:randomly", "two")
    assert (status, "1 passed" in printed) == (0, True), printed


CAPTURED = """
import logging
import pytest
import torch


@pytest.mark.parametrize("name", ["graph_budget", "compile_steps", "guard_watch"])
def test_torch_debug(name, request, caplog):
    request.getfixturevalue(name)
    torch.compile(torch.neg, backend="eager")(torch.ones(2))  # `guard_watch` wants to see a region
    caplog.clear()
    caplog.set_level(logging.DEBUG)
    logging.getLogger("torch.__trace").warning("told")
    logging.getLogger("torch.__trace").debug("flood")
    logging.getLogger("mine").debug("mine")
    assert [record.getMessage() for record in caplog.records] == ["told", "mine"]
"""


@pytest.mark.slow  # 10 s
def test_torchs_debug_records_are_not_captured(project: Project) -> None:
    (project.folder / "test_captured.py").write_text(CAPTURED)
    status, printed = project.pytest("-p", "no:randomly", "test_captured.py")
    assert (status, "3 passed" in printed) == (0, True), printed


LISTING = """
import pathlib, sys

def pytest_unconfigure():
    pathlib.Path("modules.txt").write_text("\\n".join(sorted(sys.modules)))
"""


def test_a_project_that_does_not_use_it_pays_little(project: Project) -> None:
    """Compare what is imported, which a busy machine does not change: the start took 1.04 to 1.08 times."""
    (project.folder / "conftest.py").write_text(LISTING)
    imported = []
    for words in ((), ("-p", f"no:{PLUGIN}")):
        status, printed = project.pytest("--collect-only", "-p", "no:randomly", *words, "two")
        assert status == 0, printed
        imported.append(set((project.folder / "modules.txt").read_text().split()))
    with_it, without = imported
    ours = {name for name in with_it - without if name.startswith("deepstack_harness")}
    assert PLUGIN in ours
    assert len(ours) < 12, ours
    assert len(with_it - without - ours) < 30, with_it - without - ours
    heavy = ("torch", "pandas", "datasets", "hypothesis", "numpy", "libcst")
    assert {name for name in with_it if name.startswith(heavy)} == set()
