"""Objects for the names of JAX, torchax and vLLM that patches of tpu-inference use."""

from collections.abc import Mapping

import torch
from torch import Tensor

from deepstack_harness.binding.stand_ins import FORWARD_STAND_INS


class Jax:
    """JAX: a jitted function is called as it is."""

    jit = staticmethod(lambda function: function)


class JaxNumpy:
    """Functions of jax.numpy by which levels are packed."""

    concatenate = staticmethod(lambda arrays, axis=0: torch.cat(tuple(arrays), dim=axis))
    stack = staticmethod(lambda arrays, axis=0: torch.stack(tuple(arrays), dim=axis))
    transpose = staticmethod(lambda array, axes: array.permute(axes))


class _Module:
    """A module of vLLM that a patch sets names in.

    None of them is about the payload: they merge embeddings inside of JAX, and turn Triton off.
    """


def _as_value(tensor: Tensor) -> Tensor:
    """Return a copy of a tensor: JAX arrays are values, and a view of one is a new object of torchax."""
    return tensor.clone()


def _merge(inputs_embeds: Tensor, multimodal_embeddings: list[Tensor], is_multimodal: Tensor) -> Tensor:
    """Put rows (N, w) into the marked rows of (n, w) (vllm/model_executor/models/utils.py)."""
    merged = inputs_embeds.clone()
    merged[is_multimodal] = torch.cat(tuple(multimodal_embeddings))
    return merged


STAND_INS: Mapping[str, object] = {
    **FORWARD_STAND_INS,
    "MMEncoderAttention": None,  # in the towers alone
    "NestedTensors": None,  # an annotation
    "_apply_pad_sequence_patch": lambda: None,
    "_convert_to_torchax_tensor": _as_value,
    "_merge_multimodal_embeddings": _merge,
    "jax": Jax,
    "jax.numpy": JaxNumpy,
    "jax_view": _as_value,
    "numpy": None,  # in the towers alone
    "torch_view": _as_value,
    "vllm.model_executor.models.qwen3_vl": _Module(),
    "vllm.model_executor.models.utils": _Module(),
}
KINDS = (Jax, JaxNumpy)
"""An attribute that one of them lacks is the harness's fault, not the plugin's."""
