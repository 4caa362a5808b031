"""The project's own files: pins that are complete, imports that are declared, text without places."""

import ast
import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, packages_distributions, requires
from itertools import chain
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import deepstack_harness

ROOT = Path(__file__).parents[3]
IN_CHECKOUT = pytest.mark.skipif(not (ROOT / "tox.ini").exists(), reason="needs a checkout")

# What a torch built for a GPU brings along follows from the torch, and CI has none of it.
OF_A_GPU_BUILD = re.compile(r"(nvidia|cuda)-.*|triton")
# Ours, and the types that type checkers bring themselves.
NOT_INSTALLED = {"", "_typeshed", "cases", "deepstack_harness"}
PLACES = re.compile(
    rb"pypi\.org|pythonhosted\.org|registry\.npmjs|deb\.debian\.org"
    rb"|(?<![\w.~-])/(?:root|home|Users|work|opt|mnt)/\w|(?<![\w.])/tmp/\w"
)


def declared() -> list[Requirement]:
    """What pyproject.toml asks for: dependencies, extras, the build, and the tools of a checkout."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())
    project = settings["project"]
    lists = [project["dependencies"], *project["optional-dependencies"].values()]
    lists += [settings["build-system"]["requires"], *settings["dependency-groups"].values()]
    lines = chain.from_iterable(lists)
    return [Requirement(line) for line in lines if not line.startswith("deepstack-harness")]


def needed(wanted: list[Requirement]) -> Iterator[str]:
    """The names of `wanted` and of everything they need in turn, as far as it is installed."""
    seen: set[str] = set()
    while wanted:
        requirement = wanted.pop()
        name = canonicalize_name(requirement.name)
        if name in seen or OF_A_GPU_BUILD.fullmatch(name):
            continue
        seen.add(name)
        yield name
        try:
            further = [Requirement(line) for line in requires(name) or []]
        except PackageNotFoundError:
            continue
        extras = requirement.extras or {""}
        wanted += [
            each
            for each in further
            if each.marker is None or any(each.marker.evaluate({"extra": extra}) for extra in extras)
        ]


@IN_CHECKOUT
def test_every_dependency_is_pinned() -> None:
    text = (ROOT / "constraints.txt").read_text() + (ROOT / "constraints-any-torch.txt").read_text()
    pins = [line for line in text.splitlines() if line and not line.startswith(("#", "-"))]
    pinned = {canonicalize_name(line.partition("==")[0]) for line in pins}
    assert all(re.fullmatch(r"[a-z0-9-]+==[0-9][0-9a-z.]*", line) for line in pins)
    assert set(needed(declared())) <= pinned


def third_party(path: Path) -> set[str]:
    nodes = list(ast.walk(ast.parse(path.read_text())))
    names = [alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names]
    names += [node.module or "" for node in nodes if isinstance(node, ast.ImportFrom)]
    return {name.partition(".")[0] for name in names} - sys.stdlib_module_names - NOT_INSTALLED


def test_every_import_of_the_package_is_declared() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    # A library that an extra brings is imported where it is used alone.
    extras = project["optional-dependencies"]
    own = ("reports", "workload", "kernels", "ray")
    dependencies = [*project["dependencies"], *(line for name in own for line in extras[name])]
    allowed = {canonicalize_name(Requirement(line).name) for line in dependencies}
    owners = packages_distributions()
    for path in Path(deepstack_harness.__file__).parent.rglob("*.py"):
        if "_data" in path.parts:
            continue
        # A plugin of coverage.py is imported by coverage alone.
        mine = allowed | ({"coverage"} if path.name == "count_workers.py" else set())
        for name in third_party(path):
            assert mine & set(map(canonicalize_name, owners.get(name, [name]))), f"{path.name}: {name}"


@IN_CHECKOUT
def test_no_file_names_a_registry_or_a_place_on_a_machine() -> None:
    listing = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"]
    listed = subprocess.run(listing, cwd=ROOT, capture_output=True, text=True, check=False)
    if listed.returncode:
        pytest.skip("needs a git checkout")
    files = [ROOT / name for name in listed.stdout.split("\0") if name]
    assert len(files) > 20
    found = [
        (path.name, hit[0]) for path in files if path.is_file() for hit in PLACES.finditer(path.read_bytes())
    ]
    assert found == []


def test_a_case_runs_on_one_thread_with_a_cold_cache_and_no_hub() -> None:
    import torch

    assert torch.get_num_threads() == 1
    assert "inductor-" in Path(os.environ["TORCHINDUCTOR_CACHE_DIR"]).name
    assert os.environ["HF_HUB_OFFLINE"] == "1"


DYING = """
import os, signal, pytest

@pytest.mark.xdist_group("dying")
@pytest.mark.parametrize("number", range(3))
def test_dies(number):
    if number == 1:
        os.kill(os.getpid(), signal.SIGKILL)

@pytest.mark.parametrize("number", range(20))
def test_lives(number):
    pass
"""


def test_a_worker_that_dies_ends_the_run_as_a_failure(tmp_path: Path) -> None:
    (tmp_path / "test_dying.py").write_text(DYING)
    options = ["-n", "2", "--dist", "loadgroup", "-p", "conftest", "-p", "no:cacheprovider", "-c", os.devnull]
    package = Path(deepstack_harness.__file__).parents[1]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), str(package)])}
    ran = subprocess.run(
        [sys.executable, "-m", "pytest", *options, str(tmp_path)],
        env=environment, capture_output=True, text=True, check=False, timeout=120,
    )  # fmt: skip
    assert "crashed while running 'test_dying.py::test_dies[1]" in ran.stdout, ran.stdout + ran.stderr
    assert re.search(r"1 failed, \d+ passed", ran.stdout), ran.stdout
    assert ran.returncode == pytest.ExitCode.TESTS_FAILED


@pytest.mark.xdist_group("eager")
def test_cases_of_one_group_share_a_worker(request: pytest.FixtureRequest) -> None:
    # pytest-xdist reads the group off the node id; without it each worker compiles everything again.
    if not getattr(request.config.option, "loadgroup", False):
        pytest.skip("not one of several workers that are dealt whole groups")
    assert request.node.nodeid.endswith("@eager")
