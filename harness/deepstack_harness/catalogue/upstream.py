"""Upstream issues and pull requests: their links, and what became of them (`fixtures/upstream.toml`)."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Literal

from deepstack_harness.catalogue.data_files import data
from deepstack_harness.catalogue.versioned import load_toml

SCHEMA_VERSION = 1

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
        "mlx-engine": "lmstudio-ai/mlx-engine",
        "mbridge": "ISEEKYAN/mbridge",
        "Megatron-Bridge": "NVIDIA-NeMo/Megatron-Bridge",
        "ms-swift": "modelscope/ms-swift",
        "onnxruntime-genai": "microsoft/onnxruntime-genai",
        "LightLLM": "ModelTC/LightLLM",
        "MNN": "alibaba/MNN",
        "sonar": "dphnAI/sonar",
    }
)


@dataclass(frozen=True)
class Report:
    """An issue or a pull request, and its state in the month `seen` (`2026-08`).

    `reason` says why the catalogue has no incident of it; it is empty where one has the reference.
    """

    reference: str
    kind: Literal["issue", "pull request"]
    state: Literal["open", "closed", "merged"]
    seen: str
    reason: str = ""


@dataclass(frozen=True)
class Reports:
    """The whole file."""

    schema_version: int
    report: tuple[Report, ...]


def load(path: Path) -> Reports:
    """Read a file of reports; raises what `load_toml` raises."""
    return load_toml(path, Reports, "a file of upstream reports", SCHEMA_VERSION)


@cache
def reports() -> Mapping[str, Report]:
    """Return the reports that come with the harness, by reference."""
    return MappingProxyType({one.reference: one for one in load(data("fixtures/upstream.toml")).report})


def state_of(reference: str) -> str | None:
    """Return `pull request, open in 2026-08`; None for a reference whose state nobody wrote down."""
    report = reports().get(reference)
    return f"{report.kind}, {report.state} in {report.seen}" if report else None


def link_of(reference: str) -> str | None:
    """Return the address of a reference such as `vllm 43602`; None for one that is not upstream.

    GitHub leads from the address of an issue to the pull request of that number.
    """
    project, _, number = reference.partition(" ")
    repository = _REPOSITORIES.get(project)
    return f"https://github.com/{repository}/issues/{number}" if repository and number.isdecimal() else None
