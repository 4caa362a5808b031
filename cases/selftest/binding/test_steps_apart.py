"""Cutting and binding are two steps: the first imports no torch and executes nothing of a source."""

import os
import subprocess
import sys
from pathlib import Path

import deepstack_harness
from cases.selftest.binding.bound_forward import forward_of
from cases.selftest.binding.synthetic_driven import QWEN, write_tree
from cases.selftest.binding.synthetic_vllm import ModelFile, Vllm
from deepstack_harness.binding.cut_model import BY_FORWARD, BY_METHODS
from deepstack_harness.binding.discover import find_cuts
from deepstack_harness.binding.found_classes import define_found
from deepstack_harness.binding.stand_ins import FORWARD_STAND_INS, METHODS_STAND_INS
from deepstack_harness.engines.classes import methods_of
from deepstack_harness.engines.known import engine_of, open_source

ROOT = Path(deepstack_harness.__file__).parents[2]

CUT = """\
import sys
from deepstack_harness.binding.discover import find_cuts
from deepstack_harness.engines.known import engine_of, open_source
source = open_source(sys.argv[1])
for found in find_cuts(source, engine_of(source).files):
    print(found.model_class, type(found.methods).__name__, type(found.forward).__name__)
assert "torch" not in sys.modules
"""


def test_a_class_is_found_and_cut_without_torch(tmp_path: Path) -> None:
    tree = write_tree(tmp_path)
    done = subprocess.run(
        [sys.executable, "-c", CUT, str(tree)], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines() == [
        "Granite4VisionForConditionalGeneration str ModelCut",
        "Qwen3VLForConditionalGeneration str ModelCut",
    ]


def test_cutting_executes_nothing_and_reads_all_that_binding_needs(tmp_path: Path) -> None:
    text = (write_tree(tmp_path) / QWEN).read_text()
    loud = f"import os\nLOUD = os.environ.setdefault('CUT_CODE_RAN', 'yes')\n{text}".replace(
        "self.filled = 0", "self.filled = len(LOUD) * 0", 1
    )
    source = open_source(str(write_tree(tmp_path, {QWEN: loud})))
    cuts = find_cuts(source, engine_of(source).files)
    for path in tmp_path.rglob("*.py"):
        path.unlink()
    assert "CUT_CODE_RAN" not in os.environ
    try:
        found = [define_found(source, cut) for cut in cuts]
        assert os.environ["CUT_CODE_RAN"] == "yes"
    finally:
        os.environ.pop("CUT_CODE_RAN", None)
    assert [(one.model_class, bool(one.methods), bool(one.forward)) for one in found] == [
        ("Granite4VisionForConditionalGeneration", False, True),
        ("Qwen3VLForConditionalGeneration", False, True),
    ]


def test_every_name_that_cutting_replaces_has_an_object() -> None:
    assert METHODS_STAND_INS.keys() == BY_METHODS.stand_ins
    assert FORWARD_STAND_INS.keys() == BY_FORWARD.stand_ins


def test_a_helper_is_defined_once_for_all_that_import_it(tmp_path: Path) -> None:
    """Two names of one function are one object, as in Python."""
    text = (write_tree(tmp_path) / QWEN).read_text()
    both = text.replace(
        "import put_rows as place, ", "import put_rows as place, put_rows as again, "
    ).replace("place(rows, [level]", "assert place is again\n            place(rows, [level]")
    source = open_source(str(write_tree(tmp_path, {QWEN: both})))
    assert forward_of(source).model_class == "Qwen3VLForConditionalGeneration"


def test_an_attribute_of_the_real_bases_is_no_attribute_that_is_missing(tmp_path: Path) -> None:
    """`nn.Module` has `state_dict`: that is known once torch is there, and nothing is refused before."""
    text = str(ModelFile()).replace("if self.filled == 0:", "if self.filled == 0 and self.state_dict:")
    bound = methods_of(open_source(str(Vllm(qwen=text).tree(tmp_path))))
    assert bound.of.cut.of_host.keys() == {"state_dict", "_mark_tower_model"}
