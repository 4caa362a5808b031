"""Small sources in the shape of vLLM and of two plugins: their folders and names, and nothing of their code.

The base has a class for each of two models.  The plugins need packages that are not installed, so that
cutting out too much shows.
"""

from collections.abc import Mapping
from pathlib import Path

from cases.selftest.engines.synthetic_vllm import MODELS, text_of, write

VL, OMNI = "Qwen3VLForConditionalGeneration", "Qwen3OmniMoeThinkerForConditionalGeneration"
PATCHERS = "tpu_inference/models/vllm/experimental"
VL_PATCHER, OMNI_PATCHER = f"{PATCHERS}/qwen3_vl_patcher.py", f"{PATCHERS}/qwen3_omni_patcher.py"
WRAP = "vllm_ascend/patch/worker/patch_qwen3vl.py"

_BASE = text_of(f"{MODELS}/static_qwen3_vl.py")
_VL_PATCHER = """\
import jax
import jax.numpy as jnp
from torchax.interop import jax_view, torch_view
from vllm.sequence import IntermediateTensors


def store(model, payload):
    levels = payload.items() if isinstance(payload, dict) else enumerate(payload)
    model.kept = {f"deepstack_input_embeds_{i}" if isinstance(i, int) else i: as_own(v) for i, v in levels}


def as_own(value):
    return torch_view(jax_view(value))


def answer(model, original, num_tokens):
    return IntermediateTensors(model.kept) if getattr(model, "kept", None) else original(num_tokens)


@jax.jit
def side_by_side(embeds, levels):
    rows = jnp.transpose(jnp.stack(levels, axis=0), (1, 0, 2))
    return jnp.concatenate([embeds, rows.reshape(embeds.shape[0], -1)], axis=-1)


def packed(model, original, *args, **named):
    embeds = original(*args, **named)
    return torch_view(side_by_side(jax_view(embeds), [jax_view(v) for v in model.kept.values()]))


def _patched_forward(model, original, input_ids, positions, intermediate_tensors, inputs_embeds=None):
    if inputs_embeds is not None:
        width = model.visual_dim
        if inputs_embeds.shape[-1] > width:
            behind = inputs_embeds[..., width:].split(width, dim=-1)
            inputs_embeds = inputs_embeds[..., :width]
            levels = {f"deepstack_input_embeds_{i}": v for i, v in enumerate(behind)}
            model._set_deepstack_input_embeds(levels)
        else:
            model.kept = {}
    return original(input_ids, positions, intermediate_tensors, inputs_embeds)


def apply_qwen3_vl_patches(model):
    if not getattr(model, "use_deepstack", False):
        return
    get, embed, forward = model._get_deepstack_input_embeds, model.embed_input_ids, model.forward
    model._set_deepstack_input_embeds = lambda payload: store(model, payload)
    model._get_deepstack_input_embeds = lambda num_tokens: answer(model, get, num_tokens)
    model.embed_input_ids = lambda *args, **named: packed(model, embed, *args, **named)
    model.forward = lambda *args, **named: _patched_forward(model, forward, *args, **named)
"""
_OMNI_PATCHER = """\
from tpu_inference.distributed.jax_parallel_state import get_pp_group as first_stage
from tpu_inference.models.vllm.experimental.qwen3_vl_patcher import answer, store


def embedded(model, original, input_ids, multimodal_embeddings=None, *, is_multimodal=None):
    if multimodal_embeddings[0].shape[-1] == model.visual_dim:
        return model.language_model.embed_input_ids(input_ids)
    return original(input_ids, multimodal_embeddings, is_multimodal=is_multimodal)


def _patched_qwen3_omni_forward(model, input_ids, positions, intermediate_tensors=None, inputs_embeds=None):
    payload = None
    if inputs_embeds is not None and first_stage().is_first_rank:
        payload = model._get_deepstack_input_embeds(inputs_embeds.size(0))
    out = model.language_model.model(input_ids, positions, deepstack_input_embeds=payload)
    if inputs_embeds is not None:
        model._clear_deepstack_input_embeds(inputs_embeds.size(0))
    return out


def apply_qwen3_omni_patches(model):
    get, embed = model._get_deepstack_input_embeds, model.embed_input_ids
    model._set_deepstack_input_embeds = lambda payload: store(model, payload)
    model._get_deepstack_input_embeds = lambda num_tokens: answer(model, get, num_tokens)
    model.embed_input_ids = lambda *args, **named: embedded(model, embed, *args, **named)
    model.forward = lambda *args, **named: _patched_qwen3_omni_forward(model, *args, **named)
"""
CHUNKS = "levels.chunk(ranks)[rank]"
PADS = """\
torch.nn.functional.pad(levels, (0, 0, 0, -levels.size(0) % ranks)).chunk(ranks)[rank]"""
FIRST_ROWS = "levels.chunk(ranks)[0]"
_WRAP = """\
import torch
from vllm.distributed import get_tensor_model_parallel_rank, get_tensor_model_parallel_world_size
from vllm.model_executor.models.qwen3_vl import Qwen3VLForConditionalGeneration

from vllm_ascend.utils import enable_sp


def split(get):
    def part(*args):
        answer = get(*args)
        if answer is not None and enable_sp():
            ranks, rank = get_tensor_model_parallel_world_size(), get_tensor_model_parallel_rank()
            answer.tensors = {name: SPLIT for name, levels in answer.tensors.items()}
        return answer

    return part


Qwen3VLForConditionalGeneration.forward_of_another_patch = split
Qwen3VLForConditionalGeneration._get_deepstack_input_embeds = split(
    Qwen3VLForConditionalGeneration._get_deepstack_input_embeds
)
"""
ASKS_CONTEXT = """

from vllm_ascend.ascend_forward_context import _EXTRA_CTX


def shares():
    try:
        return _EXTRA_CTX.moved
    except AttributeError:
        return False
"""


def vllm_files(*names: str) -> dict[str, str]:
    """Return the files of a base that has these classes, by default both."""
    files = {"vllm/_version.py": "__version__ = version = '0.32.0'\n"}
    for name in names or (VL, OMNI):
        nested, member = (".thinker_config", "qwen3_omni_moe_thinker") if name == OMNI else ("", "qwen3_vl")
        files[f"{MODELS}/{member}.py"] = _BASE.replace(VL, name).replace(
            ".hf_config\n", f".hf_config{nested}\n"
        )
    return files


def tpu_files() -> dict[str, str]:
    """Return the files of a plugin that packs the payload of one model, and not that of the other."""
    return {VL_PATCHER: _VL_PATCHER, OMNI_PATCHER: _OMNI_PATCHER}


def ascend_files(split: str = CHUNKS) -> dict[str, str]:
    """Return the files of a plugin that gives each rank `split` of the rows."""
    return {WRAP: _WRAP.replace("SPLIT", split), "Dockerfile": "ARG VLLM_TAG=v0.32.0\n"}


def over(root: Path, plugin: Mapping[str, str], base: Mapping[str, str] | None = None) -> str:
    """Write a plugin and its base; return the text that names both."""
    base = vllm_files() if base is None else base
    return f"{write(root / 'plugin', plugin)} over {write(root / 'base', base)}"
