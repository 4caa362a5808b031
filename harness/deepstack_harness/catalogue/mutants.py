"""The mutants by name, read from the files in `mutants/` without importing them, which would cost torch.

Every class of `mutants/r*.py` is a mutant.  Its class attributes say which rule it breaks (`rule`), under
which arm the fault shows (`arm`, by default `eager`) and to which class of faults it belongs (`fault`, by
default the word for the rule); the first line of its docstring says the fault.  The class `SomeFault` is the
mutant `some_fault`, unless it has a `name`.
"""

import ast
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType

from deepstack_harness.catalogue.correct import CORRECT
from deepstack_harness.catalogue.names import Entry, Names
from deepstack_harness.catalogue.registry import REVISIONS
from deepstack_harness.contract.rules import Rule

_FOLDER = Path(__file__).resolve().parents[1] / "mutants"


@dataclass(frozen=True)
class Mutant(Entry):
    """A buffer with one deliberate fault: the rule it breaks, and the arm under which that shows.

    `fault` is the class of the fault, such as `layout` of a payload.
    """

    rule: Rule = field(kw_only=True)
    arm: str = field(default="eager", kw_only=True)
    fault: str = field(kw_only=True)


def read_mutants(folder: Path) -> dict[str, Mutant]:
    """Read the mutants of `folder/r*.py`, in the order of the rules and of the classes."""
    found = dict(mutant for file in folder.glob("r*.py") for mutant in _mutants_of(file))
    order = list(Rule)
    return dict(sorted(found.items(), key=lambda item: order.index(item[1].rule)))


def _mutants_of(file: Path) -> Iterator[tuple[str, Mutant]]:
    inside = "inputs." if file.parent.name == "inputs" else ""
    for node in ast.parse(file.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.ClassDef):
            stated = _stated(node)
            yield (
                stated.get("name") or _snake(node.name),
                Mutant(
                    f"deepstack_harness.mutants.{inside}{file.stem}:{node.name}",
                    (ast.get_docstring(node) or "").partition("\n")[0],
                    rule=(rule := Rule(stated["rule"])),
                    arm=stated.get("arm", "eager"),
                    fault=stated.get("fault", rule.word),
                ),
            )


def _stated(node: ast.ClassDef) -> dict[str, str]:
    """Return the class attributes that are a text, or a member of an enum such as `Rule.R1`."""
    stated = {}
    for statement in node.body:
        match statement:
            case ast.Assign(targets=[ast.Name(id=name)], value=ast.Constant(value=str(value))):
                stated[name] = value
            case ast.Assign(targets=[ast.Name(id=name)], value=ast.Attribute(attr=value)):
                stated[name] = value
    return stated


def _snake(name: str) -> str:
    return re.sub(r"(?<!^)(?=[A-Z])", "_", name).lower()


MUTANTS: Mapping[str, Mutant] = MappingProxyType(read_mutants(_FOLDER))
"""Faulty variants of `reference`."""

INPUT_MUTANTS: Mapping[str, Mutant] = MappingProxyType(read_mutants(_FOLDER / "inputs"))
"""Those whose fault shows only on unusual payloads and histories (`catalogue.input_traces`)."""

ALL_MUTANTS: Mapping[str, Mutant] = MappingProxyType({**MUTANTS, **INPUT_MUTANTS})
"""Every mutant: what `selftest` hunts for."""

BUFFERS = Names("revision", {**REVISIONS.own, **ALL_MUTANTS, **CORRECT}, "revisions")
"""Every buffer that has a name: revisions of ours and of other packages, mutants and right buffers."""
