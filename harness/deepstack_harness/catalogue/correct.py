"""The right buffers by name, read from the files in `correct/` without importing them."""

import ast
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType

from deepstack_harness.catalogue.names import Entry

_FOLDER = Path(__file__).resolve().parents[1] / "correct"


@dataclass(frozen=True)
class CorrectBuffer(Entry):
    """A right buffer, and the regimes in which it is right: `live` or `both`."""

    regimes: str = field(kw_only=True)


def read_correct(folder: Path) -> dict[str, CorrectBuffer]:
    """Read the classes of `folder/*.py` by name, in the order of files and classes."""
    found = {}
    for file in sorted(folder.glob("[!_]*.py")):
        for node in ast.parse(file.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.ClassDef):
                name = re.sub(r"(?<!^)(?=[A-Z])", "_", node.name).lower()
                found[name] = CorrectBuffer(
                    f"deepstack_harness.correct.{file.stem}:{node.name}",
                    (ast.get_docstring(node) or "").partition("\n")[0],
                    regimes=_regimes(node),
                )
    return found


def _regimes(node: ast.ClassDef) -> str:
    for statement in node.body:
        match statement:
            case ast.Assign(targets=[ast.Name(id="regimes")], value=ast.Constant(value=str(value))):
                return value
    raise ValueError(f"class {node.name} does not say in which regimes it is right")


CORRECT: Mapping[str, CorrectBuffer] = MappingProxyType(read_correct(_FOLDER))
"""Right buffers that do not inherit from `reference`: a harness that refuses one is wrong."""
