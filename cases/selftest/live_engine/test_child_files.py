"""The files that run under an engine's interpreter import torch and the standard library alone."""

import ast
import sys
from pathlib import Path

import pytest

from deepstack_harness.live_engine.session import CHILD

FILES = sorted(CHILD.glob("*.py"))
# By name, through `import_module`: whatever an engine's environment has.
OF_THE_ENGINE = {"vllm", "transformers", "tokenizers", "safetensors", "PIL", "numpy"}


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_only_torch_and_the_standard_library_are_imported(path: Path) -> None:
    nodes = list(ast.walk(ast.parse(path.read_text())))
    names = {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    names |= {node.module or "" for node in nodes if isinstance(node, ast.ImportFrom)}
    assert {name.partition(".")[0] for name in names} <= sys.stdlib_module_names | {"torch"}


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_other_modules_are_those_of_an_engine(path: Path) -> None:
    for node in ast.walk(ast.parse(path.read_text())):
        match node:
            case ast.Call(func=ast.Name(id="import_module"), args=[ast.Constant(value=str(name))]):
                assert name.partition(".")[0] in OF_THE_ENGINE | {"torch"}


def test_there_are_files() -> None:
    assert {"engine.py", "ledger.py", "model_folder.py", "replay.py"} <= {path.name for path in FILES}
