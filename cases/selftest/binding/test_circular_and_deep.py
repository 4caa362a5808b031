"""Bases and imports that go round, and code that is nested deeply: a sentence, or the class that is there."""

from pathlib import Path

import pytest

from cases.selftest.auditing.test_audit import GIVEN
from cases.selftest.binding.synthetic_vllm import HANDS_ON, QWEN, ModelFile, Vllm
from deepstack_harness.binding.discover import find_cuts
from deepstack_harness.binding.found_classes import define_found
from deepstack_harness.engines.known import engine_of, open_source
from deepstack_harness.errors import UsageError

NAME = "Qwen3VLForConditionalGeneration"
OTHER, THIRD = (f"vllm/model_executor/models/{name}.py" for name in ("other", "third"))


def model(bases: str = "NoSuchBase") -> str:
    return str(ModelFile(class_name=f"{NAME}({bases})", more=HANDS_ON)) + GIVEN


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
    source = open_source(str(root))
    cuts = find_cuts(source, engine_of(source).files)
    for cut in cuts:
        define_found(source, cut)
    return [cut.model_class for cut in cuts]


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


def test_a_long_chain_of_bases_is_refused(tmp_path: Path) -> None:
    chain = "".join(f"class C{number + 1}(C{number}):\n    pass\n" for number in range(1500))
    other = f"from .qwen3_vl import {NAME} as C0  # deepstack\n{chain}"
    with pytest.raises(UsageError, match="nested too deeply"):
        found_in(tmp_path, {QWEN: model(), OTHER: other})
