"""Hashes of functions: only of their text, equal to what a running interpreter computes."""

import inspect
import sys
from hashlib import sha256
from importlib import util
from pathlib import Path

import pytest

from cases.selftest.engines.synthetic_vllm import Vllm
from deepstack_harness.catalogue.orders import recordings
from deepstack_harness.engines.known import open_source
from deepstack_harness.engines.syntax import function_hashes, parse
from deepstack_harness.sources.source import Source

RUNNER = '''\
"""A runner, with a line\u2028separator that counts as no line."""
import functools


class Runner:
    """Steps."""

    def first(self):
        return 1

    @functools.lru_cache(
        maxsize=4,
    )
    def decorated(self, count):  # a remark
        """Answer."""

        def inner():
            return count

        return inner()
        # the end

    x = 3

    @staticmethod
    def last(): return 2
'''
NAMES = [f"vllm.v1.runner.Runner.{name}" for name in ("first", "decorated", "last")]


def source(folder: Path, text: str) -> Source:
    root = Vllm().tree(folder)
    file = root / "vllm/v1/runner.py"
    file.parent.mkdir(parents=True)
    file.write_text(text, "utf-8")
    return open_source(str(root))


def test_they_are_those_of_inspect(tmp_path: Path) -> None:
    found = function_hashes(source(tmp_path, RUNNER), NAMES)
    spec = util.spec_from_file_location("a_runner", tmp_path / "vllm/v1/runner.py")
    assert spec is not None
    assert spec.loader is not None
    module = util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    del sys.modules[spec.name]
    members = [inspect.unwrap(getattr(module.Runner, name)) for name in ("first", "decorated", "last")]
    running = [sha256(inspect.getsource(member).encode()).hexdigest() for member in members]
    assert [found[name] for name in NAMES] == running


@pytest.mark.parametrize(
    ("old", "new", "changed"),
    [
        ("return 1", "return 3", {"first"}),
        ("maxsize=4", "maxsize=5", {"decorated"}),
        ("x = 3", "y = 4", set()),
        ("class Runner", "class Other:\n    pass\n\n\nclass Runner", set()),
        ("return 2", "return 2.0", {"last"}),
    ],
)
def test_a_function_changes_only_its_own_hash(tmp_path: Path, old: str, new: str, changed: set[str]) -> None:
    assert old in RUNNER
    one = function_hashes(source(tmp_path / "one", RUNNER), NAMES)
    other = function_hashes(source(tmp_path / "other", RUNNER.replace(old, new)), NAMES)
    assert {name.rpartition(".")[2] for name in NAMES if one[name] != other[name]} == changed


@pytest.mark.parametrize(
    "text", ["", "class Runner:\n    pass\n", "class Runner(:", "\x00", "class Runner:\n    first = 1\n"]
)
def test_what_is_not_there_has_none(tmp_path: Path, text: str) -> None:
    assert function_hashes(source(tmp_path, text), NAMES) == {}
    assert function_hashes(source(tmp_path / "more", RUNNER), ["vllm.v1.nothing.Runner.first"]) == {}


@pytest.mark.network
@pytest.mark.parametrize(
    ("release", "inherits"),
    [pytest.param("0.31.0", False, marks=pytest.mark.slow), ("0.32.0", True), ("0.33.0", True)],
)
def test_releases_that_inherit_a_recording(release: str, inherits: bool) -> None:
    (recording,) = recordings("vllm")
    hashes = function_hashes(open_source(f"vllm=={release}"), recording.deciding)
    assert hashes.keys() == recording.deciding.keys()
    assert recording.applies_to(hashes) == inherits


def test_a_file_is_parsed_once_for_all_its_classes(tmp_path: Path) -> None:
    file = source(tmp_path, RUNNER).read("vllm/v1/runner.py")
    assert parse(file) is parse(file)
