"""A package `vllm` with what the test for its own suite imports, around the class of any source.

The decorator compiles as vLLM's does in mode DYNAMO_TRACE_ONCE: fullgraph, marked dimensions, no guards.
The class is cut out of the file of a source: get, set, clear, resize and forward, unchanged.
"""

import ast
import textwrap
from pathlib import Path

_NAME = "Qwen3VLForConditionalGeneration"
_KEPT = ("_get_deepstack", "_set_deepstack", "_clear_deepstack", "_resize_deepstack", "forward")
FILES = {
    "__init__.py": "",
    "compilation/__init__.py": "",
    "compilation/decorators.py": """
        import torch

        def support_torch_compile(*, dynamic_arg_dims):
            def decorate(cls):
                made, plain = cls.__init__, cls.forward

                def init(self, *, vllm_config, prefix=""):
                    made(self, vllm_config=vllm_config, prefix=prefix)
                    self.compiled = None
                    if vllm_config.compilation_config.mode == 2:
                        drop = {"guard_filter_fn": torch.compiler.skip_all_guards_unsafe}
                        self.compiled = torch.compile(
                            plain.__get__(self), fullgraph=True, dynamic=False,
                            backend=vllm_config.compilation_config.backend, options=drop,
                        )

                def call(self, **arguments):
                    if self.compiled is None:
                        return plain(self, **arguments)
                    for name, dim in dynamic_arg_dims.items():
                        found = arguments[name]
                        tensors = found.tensors.values() if hasattr(found, "tensors") else [found]
                        for tensor in tensors:
                            if tensor is not None:
                                torch._dynamo.mark_dynamic(tensor, dim % tensor.ndim)
                    return self.compiled(**arguments)

                cls.__init__, cls.__call__ = init, call
                return cls
            return decorate
    """,
    "config.py": """
        from contextlib import nullcontext
        from dataclasses import dataclass
        from enum import IntEnum

        class CompilationMode(IntEnum):
            NONE = 0
            DYNAMO_TRACE_ONCE = 2

        @dataclass
        class CompilationConfig:
            mode: CompilationMode
            backend: str

        @dataclass
        class DeviceConfig:
            device: str

        @dataclass
        class VllmConfig:
            compilation_config: CompilationConfig
            device_config: DeviceConfig

        def set_current_vllm_config(config):
            return nullcontext()
    """,
    "forward_context.py": """
        from contextlib import nullcontext

        def set_forward_context(metadata, *, vllm_config):
            return nullcontext()
    """,
    "sequence.py": """
        class IntermediateTensors:
            def __init__(self, tensors):
                self.tensors = tensors

            def __getitem__(self, key):
                return self.tensors[key]
    """,
    "model_executor/__init__.py": "",
    "model_executor/models/__init__.py": "",
}


def write_package(folder: Path, text: str) -> Path:
    """Write the package with the class that `text`, the file of a source, defines."""
    for name, content in {**FILES, "model_executor/models/qwen3_vl.py": _model_file(text)}.items():
        path = folder / "vllm" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(textwrap.dedent(content))
    return folder


def _model_file(text: str) -> str:
    (found,) = [node for node in ast.parse(text).body if getattr(node, "name", "") == _NAME]
    assert isinstance(found, ast.ClassDef)
    methods = [node for node in found.body if getattr(node, "name", "").startswith(_KEPT)]
    head = (
        "from __future__ import annotations\n\nimport torch\nfrom torch import nn\n\n"
        "from vllm.sequence import IntermediateTensors\n\n\ndef get_pp_group():\n    raise RuntimeError\n"
    )
    body = textwrap.indent("\n\n".join(map(ast.unparse, methods)), "    ")
    return f"{head}\n\nclass {_NAME}(nn.Module):\n{body}\n"
