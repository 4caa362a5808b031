"""Released torches have every name that `torch_compat` uses; `cases/torch_facts` checks the installed one."""

import importlib.util
import re
import zipfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import cache
from pathlib import Path

import pytest
from packaging.version import Version

import deepstack_harness.compile.torch_compat
from cases.selftest.compile.torch_compat.torch_names import Name, Sources, has_at_run_time, used_names
from deepstack_harness.compile.torch_compat import inductor
from deepstack_harness.compile.torch_compat.inductor import SPELLINGS
from deepstack_harness.errors import MachineError
from deepstack_harness.sources.cache import CachedRelease
from deepstack_harness.sources.index import Index
from deepstack_harness.sources.source import KnownPackage

FOLDER = Path(deepstack_harness.compile.torch_compat.__file__).parent
TORCH = KnownPackage("torch", "torch", "torch/_inductor", "torch/version.py")
OLDEST = Version("2.10.0")
"""The oldest torch that pyproject.toml accepts."""


@pytest.fixture(scope="module")
def used() -> dict[Name, str]:
    return used_names(FOLDER, SPELLINGS)


def missing(used: Mapping[Name, str], has: Callable[[str], bool]) -> list[str]:
    return [f"{name} ({where})" for name, where in used.items() if not any(map(has, name.spellings))]


def advice(version: object, lost: list[str]) -> str:
    """Return the failure message: which names are missing, and what to do."""
    return "\n  ".join(
        [
            f"torch {version} lacks names that deepstack_harness/compile/torch_compat uses:",
            *lost,
            "Where a name was renamed, declare both spellings in SPELLINGS of torch_compat/inductor.py.",
            "Where it is gone, change the module that is named here.  Then install that torch in an",
            "environment of its own and run the whole suite there: behaviour may have changed too.",
        ]
    )


@contextmanager
def released(version: Version) -> Iterator[Sources]:
    """Yield the sources of one torch on the index: 45 range reads, 2.5 MB; the next time from the cache."""
    release = CachedRelease(TORCH.name, version)
    with ExitStack() as stack:

        @cache
        def wheel() -> zipfile.ZipFile:
            return stack.enter_context(Index(TORCH).find(version).opened())

        def cached(member: str, fetch: Callable[[], bytes]) -> str:
            found = release.load(member)
            data = found[0] if found else fetch()
            if not found:
                release.store(member, data)
            return importlib.util.decode_source(data)

        def listing() -> bytes:
            return "\n".join(name for name in wheel().namelist() if name.endswith((".py", ".pyi"))).encode()

        members = cached("members.txt", listing).splitlines()
        yield Sources(members, lambda member: cached(member, lambda: wheel().read(member)))


@pytest.mark.slow  # 5 s each; the installed torch is checked daily
@pytest.mark.network
@pytest.mark.parametrize("which", ["newest", "oldest"])
def test_released_torches_have_every_name(used: dict[Name, str], which: str) -> None:
    version = Index(TORCH).newest() if which == "newest" else OLDEST
    # What `torch` itself has is public, and mostly comes from C++; triton is another package.
    inside = {name: where for name, where in used.items() if re.match(r"torch\.\w+\.", str(name))}
    assert len(inside) > 50
    with released(version) as sources:
        lost = missing(inside, sources.has)
    assert not lost, advice(version, lost)


# How sources are read, on a made-up package

TOY = {
    "torch/__init__.py": "from torch._parts import *\nfrom . import _parts as parts",
    "torch/_stub.pyi": "def _in_cpp() -> None: ...",
    "torch/utils/_config_module.py": "class ConfigModule:\n    def patch(self): ...",
    "torch/_config.py": "from torch.utils._config_module import install_config_module\noption = 1",
    "torch/_other.py": "class Far:\n    def from_far(self): ...",
    "torch/_parts.py": """
import sys
from typing import TYPE_CHECKING

from ._other import Far as Near

if TYPE_CHECKING:
    from torch._other import Typed
else:
    untyped = 1

try:
    import fast
except ImportError:
    fast = slow = None

class Base:
    def inherited(self): ...

class Derived(Base, Near, dict[str, int]):
    own: int = 1
    if sys.platform:
        def branched(self): ...

table = {}
table[key] = [first, second] = (1, 2)
""",
}


@pytest.mark.parametrize(
    ("dotted", "there"),
    [
        ("torch._parts", True),
        ("torch._gone", False),
        ("torch._parts.Derived", True),
        ("torch.Derived", True),
        ("torch.parts.slow", True),
        ("torch._parts.Near.from_far", True),
        ("torch._parts.untyped", True),
        ("torch._parts.Typed", False),
        ("torch._parts.fast", True),
        ("torch._parts.second", True),
        ("torch._parts.key", False),
        ("torch._parts.table.anything", True),
        ("torch._parts.Derived.own", True),
        ("torch._parts.Derived.branched", True),
        ("torch._parts.Derived.inherited", True),
        ("torch._parts.Derived.from_far", True),
        ("torch._parts.Derived.gone", False),
        ("torch._parts.own", False),
        ("torch._config.patch", True),
        ("torch._config.option", True),
        ("torch._config.gone", False),
        ("torch._stub._in_cpp", True),
        ("torch._stub._gone", False),
    ],
)
def test_what_sources_define_and_import_is_known(dotted: str, there: bool) -> None:
    assert Sources(TOY, TOY.__getitem__).has(dotted) is there


def test_names_are_read_from_imports_attributes_and_text(tmp_path: Path) -> None:
    (tmp_path / "door.py").write_text(
        """
import os
import torch._a.b
import torch._dynamo as dynamo
from torch._inductor import config, ir as _ir
from pathlib import Path

def use(value):
    from torch._late import Late
    Path("x").exists()
    value.attribute
    with config.patch(some_option=1), dynamo.config.patch(other=2):
        patch.object(Late, "method", None)
        look_up("torch._inductor.ir:New")
    return _ir.Node.create(), torch._a.b.c
"""
    )
    found = {str(name) for name in used_names(tmp_path, {"torch._inductor.ir:New": ("New", "Old.er")})}
    assert found == {
        "torch._a.b", "torch._a", "torch._a.b.c", "torch._dynamo", "torch._dynamo.config",
        "torch._dynamo.config.patch", "torch._dynamo.config.other", "torch._inductor.config",
        "torch._inductor.config.patch", "torch._inductor.config.some_option", "torch._inductor.ir",
        "torch._inductor.ir.Node", "torch._inductor.ir.Node.create", "torch._late.Late",
        "torch._late.Late.method", "torch._inductor.ir.New or torch._inductor.ir.Old.er",
    }  # fmt: skip


def test_a_name_that_is_looked_up_and_not_declared_is_nowhere(tmp_path: Path) -> None:
    (tmp_path / "door.py").write_text('look_up("torch._inductor.ir:IRNode")')
    assert missing(used_names(tmp_path, SPELLINGS), has_at_run_time) == [
        "a name that SPELLINGS does not declare (door.py:1)"
    ]


def test_every_declared_name_is_looked_up() -> None:
    texts = [path.read_text() for path in FOLDER.glob("*.py")]
    assert [name for name in SPELLINGS if not any(f'look_up("{name}")' in text for text in texts)] == []


def test_a_spelling_that_is_unknown_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inductor, "SPELLINGS", {"torch._inductor.ir:New": ("New", "Newer.still")})
    with pytest.raises(MachineError, match=r"has none of New, Newer\.still in torch\._inductor\.ir: "):
        inductor.look_up("torch._inductor.ir:New")
