"""The project's own files: pins, imports, text without places, names that point downwards."""

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
from deepstack_harness.catalogue import buffers, registry
from deepstack_harness.catalogue.buffers import MUTANTS
from deepstack_harness.contract.names import Names

ROOT = Path(__file__).parents[3]
IN_CHECKOUT = pytest.mark.skipif(not (ROOT / "tox.ini").exists(), reason="needs a checkout")

# What a torch built for a GPU brings along follows from the torch, and CI has none of it.
OF_A_GPU_BUILD = re.compile(r"(nvidia|cuda)-.*|triton")
# Ours, and the types that type checkers bring themselves.
NOT_INSTALLED = {"", "_typeshed", "cases", "deepstack_harness"}
PLACES = re.compile(
    rb"pypi\.org|pythonhosted\.org|registry\.npmjs|download\.pytorch\.org|deb\.debian\.org"
    rb"|(?<![\w.~-])/(?:root|home|Users|work|opt|mnt)/\w|(?<![\w.])/tmp/\w"
)


def declared() -> list[Requirement]:
    """What pyproject.toml requires: dependencies, extras, the build, and the tools of a checkout."""
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
            path
            for path in further
            if path.marker is None or any(path.marker.evaluate({"extra": extra}) for extra in extras)
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
    # A library that an extra brings is imported only where it is used.
    extras = project["optional-dependencies"]
    own = ("reports", "workload", "kernels", "ray")
    dependencies = [*project["dependencies"], *(line for name in own for line in extras[name])]
    allowed = {canonicalize_name(Requirement(line).name) for line in dependencies}
    owners = packages_distributions()
    for path in Path(deepstack_harness.__file__).parent.rglob("*.py"):
        if "_data" in path.parts:
            continue
        # A plugin of coverage.py is imported only by coverage.
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
    places = [
        (path.name, hit[0]) for path in files if path.is_file() for hit in PLACES.finditer(path.read_bytes())
    ]
    assert places == []


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


@pytest.mark.slow  # a fact of pytest-xdist
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


@pytest.mark.parametrize("release", ["0.33.0"])
def test_the_tests_of_a_release_share_a_worker_and_not_those_of_a_file(
    release: str, request: pytest.FixtureRequest
) -> None:
    group = request.node.get_closest_marker("xdist_group")
    assert group.args == (f"release {release}",)


PACKAGE = Path(deepstack_harness.__file__).parent
FILES = [path for path in PACKAGE.rglob("*.py") if "_data" not in path.relative_to(PACKAGE).parts]
NAMED = re.compile(r"deepstack_harness((?:\.\w+)+)")
NAMED_NOT_IMPORTED = re.compile(r"^(?! *(?:from|import) ).*deepstack_harness", re.MULTILINE)

# Packages whose tests are those of a package that uses them; this set may only shrink.
UNTESTED_ALONE: set[str] = set()

# Modules that name a package above themselves in a string, and why.
DOORS = {
    # Tables of names, which import nothing; what loads them is held to the order below.
    ("catalogue.regions", "models"),
    ("catalogue.registry", "audit"),
    ("catalogue.registry", "models"),
    # What judges the calls of a region in its script: it is quoted, not imported.
    ("catalogue.scripts", "models"),
    ("catalogue.buffers", "models"),
    # The entry point by which vLLM loads the plugin of the watch in processes of its own.
    ("compile.watch_process", "engines"),
}


def module_of(path: Path) -> str:
    """The dotted name of a file, without the package's."""
    return ".".join(path.relative_to(PACKAGE).with_suffix("").parts).removesuffix(".__init__")


def ranks() -> dict[str, int]:
    """Packages and their place in the import order, the lowest first, as in the settings of import-linter."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]
    (layers,) = [contract["layers"] for contract in settings["contracts"] if contract["type"] == "layers"]
    return {
        name.strip(" ()"): place for place, line in enumerate(reversed(layers)) for name in line.split("|")
    }


def strings(path: Path) -> Iterator[str]:
    """The strings of a file, but for those that are statements: docstrings and notes after a name."""
    nodes = list(ast.walk(ast.parse(path.read_text())))
    alone = {id(node.value) for node in nodes if isinstance(node, ast.Expr)}
    for node in nodes:
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in alone:
            yield node.value


def named_above(path: Path, places: dict[str, int]) -> Iterator[tuple[str, str]]:
    """(module, package) where a string of the module names another package that is not below it."""
    module = module_of(path)
    own = module.partition(".")[0]
    for text in strings(path):
        for match in NAMED.finditer(text):
            package = match[1].split(".")[1]
            if package in places and package != own and places[package] >= places[own]:
                yield module, package


@pytest.mark.skipif(not (ROOT / "tox.ini").exists(), reason="needs a checkout")
def test_a_string_names_what_lies_below_it_or_is_listed_as_a_door() -> None:
    places = ranks()
    assert set(places) >= {module_of(path).partition(".")[0] for path in FILES} - {"__init__"}
    naming = [path for path in FILES if NAMED_NOT_IMPORTED.search(path.read_text())]
    doors = {pair for path in naming for pair in named_above(path, places)}
    assert doors == DOORS


TABLES: dict[str, dict[str, str]] = {
    table: {name: entry.target for name, entry in names.own.items()}
    for place in (registry, buffers)
    for table, names in vars(place).items()
    if isinstance(names, Names)
}


def users() -> Iterator[tuple[str, str]]:
    """(module, table) of every call `TABLE.load(..)`."""
    for path in FILES:
        text = path.read_text()
        for node in ast.walk(ast.parse(text)) if ".load(" in text else ():
            match node:
                case ast.Call(func=ast.Attribute(value=ast.Name(id=table), attr="load")) if table in TABLES:
                    yield module_of(path), table


@pytest.mark.skipif(not (ROOT / "tox.ini").exists(), reason="needs a checkout")
def test_what_is_loaded_by_name_lies_below_its_user() -> None:
    places = ranks()
    loaded = list(users())
    for module, table in loaded:
        own = module.partition(".")[0]
        for target in TABLES[table].values():
            package = target.split(".")[1]
            below = package == own or places[package] < places[own]
            assert below or (module, package) in DOORS, f"{module} loads {target}"
    # Each table is loaded in one place, which is typed; revisions are loaded as buffers.
    assert sorted(table for _, table in loaded) == sorted(set(TABLES) - {"REVISIONS"})
    assert set(MUTANTS) <= set(TABLES["BUFFERS"])


def test_a_public_class_name_is_used_once() -> None:
    owners: dict[str, list[str]] = {}
    for path in FILES:
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                owners.setdefault(node.name, []).append(module_of(path))
    assert {name: modules for name, modules in owners.items() if len(modules) > 1} == {}


def test_no_module_is_named_utils_or_the_like() -> None:
    empty = {"utils", "util", "common", "helpers", "helper", "misc", "shared", "stuff", "tools"}
    assert [module for module in map(module_of, FILES) if empty & set(module.split("."))] == []


@pytest.mark.skipif(not (ROOT / "tox.ini").exists(), reason="needs a checkout")
def test_the_tests_mirror_the_packages() -> None:
    """A test of `deepstack_harness.PACKAGE` lies in `cases/selftest/PACKAGE/`, that of a module next to it.

    `tools` has the tests of the programs in `tools/`.
    """
    tests = ROOT / "cases" / "selftest"
    folders = {path.parent.relative_to(tests).as_posix() for path in tests.rglob("test_*.py")}
    packages = {path.parent.relative_to(PACKAGE).as_posix() for path in FILES if path.name == "__init__.py"}
    assert folders - packages - {"project", "tools"} == set(), (
        "a folder of tests without a package of that name"
    )
    top = {package for package in packages if "/" not in package} - {"."}
    assert top - folders == UNTESTED_ALONE
    modules = {path.stem for path in PACKAGE.glob("*.py")}
    assert {path.stem.removeprefix("test_") for path in tests.glob("test_*.py")} <= modules
