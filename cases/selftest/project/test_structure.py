"""The structure of the package: names that are strings point downwards, class names are used once."""

import ast
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

import deepstack_harness
from deepstack_harness.catalogue import buffers, registry
from deepstack_harness.catalogue.buffers import MUTANTS
from deepstack_harness.contract.names import Names

ROOT = Path(__file__).parents[3]
PACKAGE = Path(deepstack_harness.__file__).parent
FILES = [path for path in PACKAGE.rglob("*.py") if "_data" not in path.relative_to(PACKAGE).parts]
NAMED = re.compile(r"deepstack_harness((?:\.\w+)+)")

# Packages whose tests are those of a package that uses them; this set may only shrink.
UNTESTED_ALONE: set[str] = set()

# Modules that name a package above themselves in a string, and why.
DOORS = {
    # Tables of names, which import nothing; what loads them is held to the order below.
    ("catalogue.registry", "audit"),
    ("catalogue.registry", "models"),
    ("catalogue.buffers", "models"),
}


def module_of(path: Path) -> str:
    """The dotted name of a file, without the package's."""
    return ".".join(path.relative_to(PACKAGE).with_suffix("").parts).removesuffix(".__init__")


def ranks() -> dict[str, int]:
    """Packages and their place in the import order, the lowest first, as import-linter is told."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]
    (layers,) = [contract["layers"] for contract in settings["contracts"] if contract["type"] == "layers"]
    return {
        name.strip(" ()"): place for place, line in enumerate(reversed(layers)) for name in line.split("|")
    }


def strings(path: Path) -> Iterator[str]:
    """The strings of a file, but for those that stand alone: docstrings and notes behind a name."""
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
    found = {pair for path in FILES for pair in named_above(path, places)}
    assert found == DOORS


TABLES: dict[str, dict[str, str]] = {
    table: {name: entry.target for name, entry in names.own.items()}
    for place in (registry, buffers)
    for table, names in vars(place).items()
    if isinstance(names, Names)
}


def users() -> Iterator[tuple[str, str]]:
    """(module, table) of every call `TABLE.load(..)`."""
    for path in FILES:
        for node in ast.walk(ast.parse(path.read_text())):
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


def test_no_module_has_a_name_that_says_nothing() -> None:
    empty = {"utils", "util", "common", "helpers", "helper", "misc", "shared", "stuff", "tools"}
    assert [module for module in map(module_of, FILES) if empty & set(module.split("."))] == []


@pytest.mark.skipif(not (ROOT / "tox.ini").exists(), reason="needs a checkout")
def test_the_tests_mirror_the_packages() -> None:
    """A test of `deepstack_harness.PACKAGE` lies in `cases/selftest/PACKAGE/`, that of a module beside it.

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
