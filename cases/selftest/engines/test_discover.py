"""Classes of a source: found without torch, found across circular bases, refused where nested too deeply."""

import os
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

import deepstack_harness
from cases.selftest.engines.bound_forward import forward_of
from cases.selftest.engines.synthetic_vllm import (
    HANDS_ON,
    INNER_MODEL,
    OTHER,
    QWEN,
    ModelFile,
    Vllm,
    write_driven,
)
from deepstack_harness.engines.classes import classes_of
from deepstack_harness.engines.known import find_classes, open_source
from deepstack_harness.engines.load import unload
from deepstack_harness.errors import UsageError

NAME = "Qwen3VLForConditionalGeneration"
THIRD = OTHER.replace("other", "third")


def model(bases: str = "NoSuchBase") -> str:
    return str(ModelFile(class_name=f"{NAME}({bases})", more=HANDS_ON)) + INNER_MODEL


CIRCULAR = {
    "itself": {QWEN: model(NAME)},
    "two classes": {QWEN: f"{model('Z')}\n\nclass Z({NAME}):\n    pass\n"},
    "names": {QWEN: f"{model('A')}\nA = B\nB = A\n"},
    "two files": {
        QWEN: f"from .other import Z\n{model('Z')}",
        OTHER: f"from .qwen3_vl import {NAME}  # deepstack\n\n\nclass Z({NAME}):\n    pass\n",
    },
    "imports": {
        QWEN: f"from .other import Z\n{model('Z')}",
        OTHER: "from .third import Z  # deepstack\n",
        THIRD: "from .other import Z\n",
    },
    "star imports": {
        QWEN: f"from .other import *\n{model('Z')}",
        OTHER: "from .third import *  # deepstack\n",
        THIRD: "from .other import *\n",
    },
    "helpers": {QWEN: f"{model()}\n\ndef a():\n    return b()\n\n\ndef b():\n    return a()\n"},
}


def found_in(root: Path, files: dict[str, str]) -> list[str]:
    """Find and define all classes of a tree; return their names."""
    Vllm("0.10.0", files[QWEN]).tree(root)
    for member, text in files.items():
        (root / member).write_text(text)
    return [driven.found.model_class for driven in classes_of(open_source(str(root)))]


@pytest.fixture(autouse=True)
def nothing_stays() -> Iterator[None]:
    """Forget what was imported."""
    yield
    unload()


ROOT = Path(deepstack_harness.__file__).parents[2]

FIND = """\
import sys
from deepstack_harness.engines.known import find_classes, open_source
for found in find_classes(open_source(sys.argv[1])):
    print(found.model_class)
assert "torch" not in sys.modules
"""


@pytest.mark.parametrize("kind", CIRCULAR)
def test_what_goes_round_comes_to_an_end(kind: str, tmp_path: Path) -> None:
    assert NAME in found_in(tmp_path, CIRCULAR[kind])


@pytest.mark.parametrize("expression", ["-" * 900 + "1", "1" + "+1" * 900, "config" + ".a" * 900])
def test_expressions_of_other_lines_do_no_harm(expression: str, tmp_path: Path) -> None:
    text = model().replace("self.config = config", f"self.config = {expression}")
    assert found_in(tmp_path, {QWEN: text}) == [NAME]


@pytest.mark.parametrize(
    "text",
    [
        model().replace("self.config = config", f"self.config = {'+'.join(['1'] * 20000)}"),
        model().replace("self.config = config", f"self.config = {'(' * 5000}1{')' * 5000}"),
        model().replace("self.config = config", f"self.config = config{'.a' * 50000}"),
        model().replace("self.config = config", f"self.config = {'9' * 10000}"),
        f"{model()}\0",
    ],
)
def test_code_that_cannot_be_parsed_is_refused(text: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"qwen3_vl\.py"):
        found_in(tmp_path, {QWEN: text})


def test_a_long_chain_of_bases_is_refused(
    tmp_path: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    request.addfinalizer(partial(sys.setrecursionlimit, sys.getrecursionlimit()))
    sys.setrecursionlimit(400)  # a chain above the default of 1000 takes 10 processor seconds
    monkeypatch.setenv("DEEPSTACK_HARNESS_MAX_DEPTH", "400")
    chain = "".join(f"class C{number + 1}(C{number}):\n    pass\n" for number in range(400))
    other = f"from .qwen3_vl import {NAME} as C0  # deepstack\n{chain}"
    with pytest.raises(UsageError, match="nested too deeply"):
        found_in(tmp_path, {QWEN: model(), OTHER: other})


def test_a_class_is_found_without_torch(tmp_path: Path) -> None:
    tree = write_driven(tmp_path)
    done = subprocess.run(
        [sys.executable, "-c", FIND, str(tree)], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines() == [
        "Granite4VisionForConditionalGeneration",
        "Qwen3VLForConditionalGeneration",
    ]


def test_finding_a_class_executes_nothing_and_defining_it_imports_its_file(tmp_path: Path) -> None:
    text = (write_driven(tmp_path) / QWEN).read_text()
    loud = f"import os\nLOUD = os.environ.setdefault('SOURCE_CODE_RAN', 'yes')\n{text}".replace(
        "self.filled = 0", "self.filled = len(LOUD) * 0", 1
    )
    source = open_source(str(write_driven(tmp_path, {QWEN: loud})))
    assert len(find_classes(source)) == 2
    assert "SOURCE_CODE_RAN" not in os.environ
    try:
        found = classes_of(source)
        assert os.environ["SOURCE_CODE_RAN"] == "yes"
    finally:
        os.environ.pop("SOURCE_CODE_RAN", None)
    assert [(item.found.model_class, bool(item.methods), bool(item.forward)) for item in found] == [
        ("Granite4VisionForConditionalGeneration", False, True),
        ("Qwen3VLForConditionalGeneration", True, True),
    ]


def test_a_helper_is_defined_once_for_all_that_import_it(tmp_path: Path) -> None:
    """Two names of one function are one object, as in Python."""
    text = (write_driven(tmp_path) / QWEN).read_text()
    both = text.replace(
        "import put_rows as place, ", "import put_rows as place, put_rows as again, "
    ).replace("place(rows, [level]", "assert place is again\n            place(rows, [level]")
    source = open_source(str(write_driven(tmp_path, {QWEN: both})))
    assert forward_of(source).model_class == "Qwen3VLForConditionalGeneration"
