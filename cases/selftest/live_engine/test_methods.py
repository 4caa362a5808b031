"""Methods of another source, put into the class of a running engine as text."""

from pathlib import Path

import pytest

from deepstack_harness.engines.known import open_source
from deepstack_harness.errors import UsageError
from deepstack_harness.live_engine.methods import methods_text

FILE = """\
import torch


class Qwen3VLForConditionalGeneration:
    def _get_deepstack_input_embeds(self, num_tokens: "int") -> "IntermediateTensors":
        return None

    def _clear_deepstack_input_embeds(self, num_tokens):
        if num_tokens:
            # a comment in it
            self.filled = 0

    def forward(self):
        return 1
"""


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    models = tmp_path / "vllm" / "model_executor" / "models"
    models.mkdir(parents=True)
    (models / "qwen3_vl.py").write_text(FILE)
    (tmp_path / "vllm" / "_version.py").write_text("__version__ = version = '0.22.1'\n")
    return tmp_path


def test_each_method_is_a_function_of_its_own(tree: Path) -> None:
    found = methods_text(open_source(str(tree)), "qwen3_vl")
    assert set(found) == {"_get_deepstack_input_embeds", "_clear_deepstack_input_embeds"}
    place: dict[str, object] = {}
    for text in found.values():
        exec(compile(f"from __future__ import annotations\n{text}", "text", "exec"), place)
    assert set(found) <= place.keys()
    assert "# a comment in it" in found["_clear_deepstack_input_embeds"]


def test_a_class_without_such_methods_is_refused(tree: Path) -> None:
    file = tree / "vllm" / "model_executor" / "models" / "qwen3_vl.py"
    file.write_text(FILE.replace("_deepstack_input_embeds", "_other"))
    with pytest.raises(UsageError, match="has no method with deepstack_input_embeds in its name"):
        methods_text(open_source(str(tree)), "qwen3_vl")


def test_a_family_that_has_no_methods_of_its_own_is_refused(tree: Path) -> None:
    with pytest.raises(UsageError, match="unknown family whose methods can be put in 'granite4_vision'"):
        methods_text(open_source(str(tree)), "granite4_vision")
