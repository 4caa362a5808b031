"""Parts of patched classes: stand-ins for the packages around a patch, and what a patch lacks."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

from cases.selftest.engines.synthetic_plugins import (
    ASKS_CONTEXT,
    MODELS,
    VL,
    VL_PATCHER,
    WRAP,
    ascend_files,
    over,
    tpu_files,
    vllm_files,
)
from deepstack_harness.engines.classes import classes_of
from deepstack_harness.engines.known import open_source
from deepstack_harness.engines.tpu_inference_model import PatchedClass
from deepstack_harness.engines.tpu_inference_stand_ins import STAND_INS as TPU_STAND_INS
from deepstack_harness.engines.vllm_ascend_model import STAND_INS as ASCEND_STAND_INS
from deepstack_harness.engines.vllm_ascend_model import as_rank
from deepstack_harness.engines.vllm_omni import VLLM_OMNI

BASE_VL = f"{MODELS}/qwen3_vl.py"


def test_the_context_of_a_step_knows_that_ranks_share_it_under_both_names() -> None:
    context = ASCEND_STAND_INS["_EXTRA_CTX"]
    for ranks in (1, 2):
        with as_rank(0, ranks):
            shares = [getattr(context, flag) for flag in ("flash_comm_v1_enabled", "sp_enabled")]
        assert shares == [ranks == 2] * 2


@pytest.mark.parametrize(
    ("applied", "said"),
    [
        ("[][0]", f"{WRAP}: the patch of {VL} raises IndexError: list index out of range"),
        ("_EXTRA_CTX.moved", f"{WRAP}: the context of a step has no moved here: it cannot be supplied"),
    ],
)
def test_a_patch_that_cannot_be_applied_is_told(tmp_path: Path, applied: str, said: str) -> None:
    text = f"{ascend_files()[WRAP]}{ASKS_CONTEXT}\n{VL}._set_deepstack_input_embeds = {applied}\n"
    (found,) = classes_of(open_source(over(tmp_path, {WRAP: text}, vllm_files(VL))))
    assert (found.methods, found.forward) == (None, None)
    assert found.refusals[-1].endswith(said)


@pytest.mark.parametrize(
    ("member", "before", "after", "said"),
    [
        (BASE_VL, "self.deepstack_input_embeds", "self.rows", "keeps no list of rows per level"),
        (VL_PATCHER, "jnp.stack", "jnp.dstack", "type object 'JaxNumpy' has no attribute 'dstack'"),
    ],
)
def test_what_a_patched_class_lacks_is_told(
    member: str, before: str, after: str, said: str, tmp_path: Path
) -> None:
    files = {**tpu_files(), **vllm_files(VL)}
    assert before in files[member]
    files[member] = files[member].replace(before, after)
    plugin = {name: files[name] for name in tpu_files()}
    base = {name: files[name] for name in vllm_files(VL)}
    found, *_ = classes_of(open_source(over(tmp_path, plugin, base)))
    assert (found.model_class, found.methods, found.forward) == (VL, None, None)
    assert said in found.refusals[-1]
    assert BASE_VL in found.refusals[-1]


def test_a_clear_of_no_rows_keeps_the_payload_and_any_other_erases_it(tmp_path: Path) -> None:
    found, *_ = classes_of(open_source(over(tmp_path, tpu_files(), vllm_files(VL))))
    assert isinstance(found.methods, PatchedClass)
    buffer = found.methods(8, 5, 2, dtype=torch.float32, device=torch.device("cpu"))
    buffer.set(torch.ones(2, 3, 5))
    for tokens, kept in ((0, True), (3, False)):
        buffer.clear(tokens)
        levels = buffer.get(3)
        assert levels is not None
        assert bool(torch.stack(levels).any()) is kept


@pytest.mark.parametrize(
    ("stand_ins", "changes_its_argument"),
    [(VLLM_OMNI.parts.stand_ins, True), (TPU_STAND_INS, False)],
    ids=["vllm-omni", "tpu-inference"],
)
def test_visual_rows_are_merged_into_the_marked_rows(
    stand_ins: Mapping[str, Any], changes_its_argument: bool
) -> None:
    """vLLM merges in place; arrays of JAX are values."""
    embeds, visual = torch.zeros(4, 2), torch.ones(2, 2)
    marked = torch.tensor([False, True, False, True])
    merged = stand_ins["_merge_multimodal_embeddings"](embeds, [visual], marked)
    assert merged[:, 0].tolist() == [0, 1, 0, 1]
    assert bool(embeds.any()) is changes_its_argument


def test_no_step_of_vllm_omni_has_audio_between_its_frames() -> None:
    stand_ins: Mapping[str, Any] = VLLM_OMNI.parts.stand_ins
    assert stand_ins["check_interleaved_audio_video"](None, 1) is False
