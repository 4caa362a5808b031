"""The package of a source is imported from its own files; what is missing is a stub that nobody may use."""

import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import FunctionType, ModuleType

import pytest
import torch

from deepstack_harness.engines.known import open_source
from deepstack_harness.engines.load import LoadedSource, loaded_of, unload
from deepstack_harness.engines.model_class import CannotSupply
from deepstack_harness.engines.stubs import StubBase
from deepstack_harness.errors import SourceError

A = "vllm/model_executor/a.py"
B = "vllm/model_executor/b.py"
NAME = "vllm.model_executor"


@pytest.fixture(autouse=True)
def nothing_stays() -> Iterator[None]:
    """Forget what was imported."""
    before = set(sys.modules)
    yield
    unload()
    assert not [name for name in set(sys.modules) - before if name.startswith("vllm")]


def loaded(root: Path, files: Mapping[str, str]) -> LoadedSource:
    """Write files, and return them as a source that was not imported yet."""
    for member, text in files.items():
        path = root / member
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, "utf-8")
    return loaded_of(open_source(str(root)))


def names_of(root: Path, text: str, **others: str) -> Mapping[str, object]:
    """Import a file and return its names; `others` are further files of the folder."""
    files = {A: text, **{f"vllm/model_executor/{name}.py": of for name, of in others.items()}}
    return vars(loaded(root, files).module(A))


GUARDED = "try:\n    import no_such_library\nexcept ImportError:\n    no_such_library = 'absent'\n"
UNGUARDED = "import no_such_library\n"


def test_a_guarded_import_of_a_missing_library_fails(tmp_path: Path) -> None:
    assert names_of(tmp_path, GUARDED)["no_such_library"] == "absent"


def test_it_fails_after_another_file_was_given_a_stub_for_it(tmp_path: Path) -> None:
    """A stub is no module: no other import finds it."""
    names = names_of(tmp_path, f"from . import b\n{GUARDED}", b=UNGUARDED)
    assert names["no_such_library"] == "absent"


def test_it_fails_where_the_guard_is_in_the_file_that_imports_the_file(tmp_path: Path) -> None:
    guarded = "try:\n    from .b import y\nexcept ImportError:\n    y = 'absent'\n"
    assert names_of(tmp_path, guarded, b=f"{UNGUARDED}y = 1\n")["y"] == "absent"


@pytest.mark.parametrize(
    "guard",
    [
        "import contextlib\nx = 'absent'\nwith contextlib.suppress(ImportError):\n    import no_such as x\n",
        "try:\n    import no_such as x\nexcept (ValueError, ModuleNotFoundError):\n    x = 'absent'\n",
        "try:\n    import no_such as x\nexcept:\n    x = 'absent'\n",
        "try: \\\nimport no_such as x\nexcept ImportError:\n    x = 'absent'\n",
        "try:\n    '''\fimport y'''\n    import no_such as x\nexcept ImportError:\n    x = 'absent'\n",
        "def f():\n    try:\n        import no_such\n    except Exception:\n        return 'absent'\nx=f()\n",
        "from importlib.util import find_spec\nx = 'there' if find_spec('no_such') else 'absent'\n",
    ],
)
def test_every_form_of_guard_counts(guard: str, tmp_path: Path) -> None:
    assert names_of(tmp_path, guard)["x"] == "absent"


def test_a_handler_that_raises_is_no_guard(tmp_path: Path) -> None:
    text = "try:\n    import no_such\nexcept ImportError as error:\n    raise RuntimeError('no') from error\n"
    source = loaded(tmp_path, {A: f"{text}x = 1\n"})
    assert vars(source.module(A))["x"] == 1
    assert list(source.absent.modules) == ["no_such"]


def test_an_installed_library_that_torch_does_not_need_is_missing_too(tmp_path: Path) -> None:
    """Else a class would be another one on a machine that has more."""
    assert names_of(tmp_path, GUARDED.replace("no_such_library", "pytest"))["pytest"] == "absent"


def test_what_is_missing_is_reported_with_the_place_of_its_import(tmp_path: Path) -> None:
    source = loaded(tmp_path, {A: "import torch\n\nfrom no_such.inner import Thing, call\n"})
    source.module(A)
    assert source.absent.modules == {"no_such.inner": f"{tmp_path / A}:3"}


def test_a_statement_that_raises_is_reported_and_the_file_goes_on(tmp_path: Path) -> None:
    source = loaded(tmp_path, {A: "x = 1\ny, z = 1 / 0, 2\nw = x + 1\n"})
    names = vars(source.module(A))
    (why,) = source.absent.failed
    assert (why.file, why.line, why.text) == (str(tmp_path / A), 2, "ZeroDivisionError: division by zero")
    assert names["w"] == 2
    with pytest.raises(CannotSupply, match=f"{NAME}.a.z is not there and is read"):
        _ = source.module(A).z


@pytest.mark.parametrize(
    "raises",
    [
        "1 / 0; ran.append('after')",
        "x = (\n    1\n    / 0\n); ran.append('after')",
        "@undefined\ndef x(): ...\nran.append('after')",
        "@staticmethod\n@undefined\nclass x:\n    pass\nran.append('after')",
        "for x in (1, 0):\n    1 / x\nran.append('after')\nundefined",
    ],
)
def test_only_the_statement_that_raises_is_left_out(raises: str, tmp_path: Path) -> None:
    names = names_of(
        tmp_path,
        f"from __future__ import annotations\nran = ['before']\n{raises}\n"
        "def late(value: undefined): ...\nran.append('end')\n",
    )
    assert names["ran"] == ["before", "after", "end"]
    late = names["late"]
    assert isinstance(late, FunctionType)
    assert late.__annotations__ == {"value": "undefined"}


def test_a_package_that_was_imported_before_is_not_taken_for_it(tmp_path: Path) -> None:
    unload()  # what another test has left
    other = sys.modules["vllm"] = ModuleType("vllm")
    try:
        assert names_of(tmp_path, "x = 1\n")["x"] == 1
        unload()
        assert sys.modules["vllm"] is other
    finally:
        del sys.modules["vllm"]


def test_files_lie_on_the_disk_under_the_names_that_modules_have(tmp_path: Path) -> None:
    """As transformers looks for its own."""
    text = "import inspect\nfrom pathlib import Path\nlines = Path(__file__).read_text()\n\n"
    text += "def f():\n    return 1\n"
    names = names_of(tmp_path, f"{text}source = inspect.getsource(f)\n")
    assert names["lines"] == f"{text}source = inspect.getsource(f)\n"
    assert names["source"] == "def f():\n    return 1\n"


USES = {
    "calls it": "Thing()",
    "reads of it": "Thing.value",
    "compares it": "Thing == 1",
    "compares with it": "1 == Thing",
    "orders it": "Thing > 1",
    "iterates it": "list(Thing)",
    "tests it": "bool(Thing)",
    "asks for None": "Thing is None",
    "passes it on": "str(Thing)",
    "isinstance": "isinstance(1, Thing)",
    "isinstance of it": "isinstance(KEPT, int)",
    "subscripts it": "KEPT[0]",
    "adds": "KEPT + 1",
    "adds to": "1 + KEPT",
    "takes the length": "len(KEPT)",
    "derives": "type('X', (), {}) if KEPT else 0",
    "enters it": "KEPT.__enter__()",
    "reads an attribute again": "KEPT.known",
    "of a module": "no_such.other",
    "of a module in a module": "no_such.inner.other",
    "imports it": "__import__('no_such').other",
}


@pytest.mark.parametrize("how", USES)
def test_a_function_that_uses_a_stub_after_the_import_is_refused_with_its_place(
    how: str, tmp_path: Path
) -> None:
    text = "import no_such\nfrom no_such import Thing, KEPT as kept\nTABLE = [kept]\nkept.known\n"
    text += f"def use():\n    KEPT = TABLE[0]\n    return {USES[how]}\n"
    source = loaded(tmp_path, {A: text})
    use = source.module(A).use
    with pytest.raises(CannotSupply) as raised:
        use()
    assert raised.value.reason.line == 7
    assert raised.value.reason.file == str(tmp_path / A)
    assert raised.value.reason.text.startswith("no_such") or f"{NAME}.a." in raised.value.reason.text
    assert source.absent.touched == [raised.value.reason]


def test_a_use_that_the_code_swallows_is_noted_all_the_same(tmp_path: Path) -> None:
    text = "from no_such import thing\ndef use():\n    try:\n        return thing()\n"
    text += "    except Exception:\n        return 0\n"
    source = loaded(tmp_path, {A: text})
    assert source.module(A).use() == 0
    (why,) = source.absent.touched
    assert why.line == 4
    assert why.text == f"{NAME}.a.thing is not there and is read"


def test_while_files_are_imported_a_stub_takes_part_in_everything(tmp_path: Path) -> None:
    names = names_of(
        tmp_path,
        "from no_such import Base, register, Known, MAXIMUM, Generic, NoSuchError\n"
        "@register('name', Base.kind)\nclass Derived(Base, Generic[int]):\n    x: Known | None = Known(1)\n"
        "@register\ndef f(x=MAXIMUM):\n    return 3\n"
        "size = 3 if MAXIMUM > 2 else 4\nwith Known.lock:\n    y = [each for each in Known]\n"
        "class Own(NoSuchError):\n    pass\n",
    )
    derived, function = names["Derived"], names["f"]
    assert isinstance(derived, type)
    assert issubclass(derived, StubBase)
    assert callable(function)
    assert function() == 3
    assert (names["size"], names["y"]) == (4, [])
    assert isinstance(names["Own"], type)
    assert issubclass(names["Own"], Exception)


def test_files_that_import_each_other_see_what_python_shows_them(tmp_path: Path) -> None:
    source = loaded(
        tmp_path,
        {A: "x = 1\nfrom .b import y\nz = y\n", B: "from .a import x\ny = x + 1\nfrom .a import z\n"},
    )
    assert source.module(A).z == 2
    (why,) = source.absent.failed
    assert (why.file, why.line) == (str(tmp_path / B), 3)
    assert "partially initialized" in why.text


def test_a_class_that_is_given_to_a_maker_of_decorators_is_not_what_is_decorated(tmp_path: Path) -> None:
    text = "from missing import registry\n\nclass Info: ...\n\n"
    text += "@registry.register(Info, info=Info)\nclass Model: ...\n"
    assert str(names_of(tmp_path, text)["Model"]).endswith(".Model'>")


def test_the_getattr_of_a_module_is_its_own(tmp_path: Path) -> None:
    lazy = (
        "def __getattr__(name):\n    if name == 'made':\n        return 7\n    raise AttributeError(name)\n"
    )
    assert names_of(tmp_path, "from .b import made as x\n", b=lazy)["x"] == 7


@pytest.mark.parametrize("act", ["import sys\nsys.exit(3)", "1 / 0", "from .a import x\nraise ImportError"])
def test_a_file_that_would_end_its_import_is_reported(act: str, tmp_path: Path) -> None:
    source = loaded(tmp_path, {A: f"{act}\n", B: "from . import a\ny = 2\n"})
    assert source.module(B).y == 2
    assert str(tmp_path) in source.absent.failed[0].file


def test_a_file_that_is_no_python_is_refused_with_its_place(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match=r"a\.py:1: not valid in Python"):
        loaded(tmp_path, {A: "def f(:\n"}).module(A)


def test_an_import_that_changes_torch_is_refused(tmp_path: Path) -> None:
    source = loaded(tmp_path, {A: "import torch\nBEFORE = torch.equal\ntorch.equal = lambda *_: True\n"})
    try:
        names = vars(source.module(A))
        with pytest.raises(SourceError, match=r"changes torch\.equal, on which measuring relies"):
            source.check_instrument()
    finally:
        torch.equal = names["BEFORE"]
    source.check_instrument()


def test_code_is_known_to_have_run_where_the_import_has_run_it(tmp_path: Path) -> None:
    text = "def called():\n    return 1\n\ndef other():\n    return 2\n\n"
    text += "x = called()\nif False:\n    y = 1\nz = 1 / 0\n"
    source = loaded(tmp_path, {A: text, B: "u = 1\n"})
    source.watch([A])
    source.module(A)
    ran = {line for line in range(1, 11) if source.ran(A, line)}
    assert {2, 7, 9} <= ran
    assert not {5, 10} & ran
    assert not source.ran(B, 1)
