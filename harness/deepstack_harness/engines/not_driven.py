"""Engines that carry deepstack and whose sources cannot be judged, each with the reason.

Their payloads were read in releases and repositories of August to November 2026.
"""

from collections.abc import Mapping
from types import MappingProxyType

_OVERLAY = "it changes the forward of a vLLM class, and nobody has written how its runner gives the rows"
_ARGUMENT = "the payload is an argument, and nobody has written how its writer and its layers are called"
_NOT_PYTHON = "its decoder is no Python"

NOT_DRIVEN: Mapping[str, str] = MappingProxyType(
    {
        "vllm-gaudi": f"{_OVERLAY}; it has no release on a package index",
        "vllm-rbln": "the payload is an input of a graph that the vendor's own compiler makes",
        "optimum-rbln": "the payload is an input of a graph that the vendor's own compiler makes",
        "sglang-omni": _ARGUMENT,
        "rtp-llm": f"{_ARGUMENT}; it has no release on a package index",
        "lightllm": "its payload is added by a Triton kernel out of an image cache",
        "mlx-vlm": "its payload is an argument of MLX arrays, whose semantics are not those of torch",
        "atom": "it has no deepstack of its own; its plugin for SGLang copies SGLang's argument",
        "ktransformers": "nobody has read it",
        "exllamav3": "nobody has read it",
        "llama-cpp": _NOT_PYTHON,
        "xllm": _NOT_PYTHON,
        "mnn": _NOT_PYTHON,
        "onnxruntime-genai": _NOT_PYTHON,
        "mistral-rs": _NOT_PYTHON,
    }
)
"""Normalised package name -> why it cannot be judged."""
