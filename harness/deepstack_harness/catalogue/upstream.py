"""Links to upstream issues and pull requests."""

from collections.abc import Mapping
from types import MappingProxyType

_REPOSITORIES: Mapping[str, str] = MappingProxyType(
    {
        "vllm": "vllm-project/vllm",
        "vllm-ascend": "vllm-project/vllm-ascend",
        "vllm-omni": "vllm-project/vllm-omni",
        "tpu-inference": "vllm-project/tpu-inference",
        "sglang": "sgl-project/sglang",
        "pytorch": "pytorch/pytorch",
        "FastDeploy": "PaddlePaddle/FastDeploy",
        "Qwen3-VL": "QwenLM/Qwen3-VL",
        "mlx-vlm": "Blaizzy/mlx-vlm",
    }
)


def link_of(reference: str) -> str | None:
    """Return the address of a reference such as `vllm 43602`; None for one that is not upstream.

    GitHub leads from the address of an issue to the pull request of that number.
    """
    project, _, number = reference.partition(" ")
    repository = _REPOSITORIES.get(project)
    return f"https://github.com/{repository}/issues/{number}" if repository and number.isdecimal() else None
