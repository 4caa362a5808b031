"""Mutants of a model file: each statement that names a called member, deleted, repeated or replaced.

`live_results` imports the mutated source whole, with replacements for what the sources leave out, and calls
the methods of a real object. `furnished_results` calls the class as the harness furnishes it.
"""

import ast
import builtins
import importlib
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import torch
from torch import nn

from cases.selftest.engines.rebound_classes import CLEAR, NAME, QWEN, Rebound
from deepstack_harness.engines.classes import classes_of
from deepstack_harness.engines.known import open_source
from deepstack_harness.engines.load import unload
from deepstack_harness.errors import Reason

GET, SET = "_get_deepstack_input_embeds", "_set_deepstack_input_embeds"
_TWINS = {
    CLEAR: "def twin(self, count):\n    self.filled = 0\n",
    GET: "def twin(self, count):\n"
    "    levels = enumerate(self.deepstack_input_embeds)\n"
    "    return IntermediateTensors({f'deepstack_input_embeds_{i}': x[:count] + 1 for i, x in levels})\n",
    SET: "def twin(self, payload):\n    self.deepstack_input_embeds = [2 * level for level in payload]\n",
    "_check": "def twin(self, count):\n    raise ValueError('never')\n",
}
"""A member -> a function that does something else."""
SEQUENCE = (
    "class IntermediateTensors(dict):\n    @property\n    def tensors(self):\n        return dict(self)\n"
)
Results = tuple[object, ...]


@dataclass(frozen=True)
class Mutant:
    """A source with the statement of one member changed: how, and where.

    Its text is made when it is played: of 1,500 mutants that are named during a collection, 24 are.
    """

    how: str
    name: str
    line: int
    source: str

    @property
    def text(self) -> str:
        """The source as the mutant has it."""
        tree = ast.parse(self.source)
        match self.how:
            case "deleted":
                _in_place(tree, self.line, lambda node, _of: [ast.copy_location(ast.Pass(), node)])
            case "replaced":
                _in_place(tree, self.line, self._with_twin)
            case "repeated":  # a wrong twin after the class
                tree.body += ast.parse(f"{_TWINS[self.name]}setattr({NAME}, {self.name!r}, twin)").body
            case _:
                return self.source
        return ast.unparse(ast.fix_missing_locations(tree))

    def _with_twin(self, node: ast.stmt, owners: Sequence[ast.AST]) -> list[ast.stmt]:
        """Return the statement followed by a wrong twin, in the same scope."""
        name, inner = self.name, owners[-1]
        bound = {ast.Module: f"{NAME}.{name} = twin", ast.ClassDef: f"{name} = twin"}
        first = inner.args.args[0].arg if isinstance(inner, ast.FunctionDef) and inner.args.args else "self"
        text = bound.get(type(inner), f"{first}.{name} = twin.__get__({first})")
        return [node, *ast.parse(f"{_TWINS[name]}{text}").body]


def mutants(text: str) -> Iterator[Mutant]:
    """Yield every mutant of a model file."""
    tree = ast.parse(text)
    classes = [node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == NAME]
    for name in _TWINS:
        lines = [node.lineno for node in _statements(tree) if _names(node, name)]
        for line in sorted(set(lines)):
            if _in_place(tree, line, lambda node, _of: [node]):
                yield from (Mutant(how, name, line, text) for how in ("deleted", "replaced"))
            if classes and classes[0].lineno <= line <= (classes[0].end_lineno or 0):
                yield Mutant("repeated", name, line, text)


def _statements(tree: ast.AST) -> Iterator[ast.stmt]:
    return (node for node in ast.walk(tree) if isinstance(node, ast.stmt))


def _names(node: ast.stmt, name: str) -> bool:
    """Return whether a statement itself, not one of those inside it, names a member."""
    parts = [part for part in ast.iter_child_nodes(node) if not isinstance(part, ast.stmt)]
    own = isinstance(node, ast.FunctionDef) and node.name == name
    return own or any(
        name in (getattr(inner, "attr", None), getattr(inner, "value", None), getattr(inner, "id", None))
        for part in parts
        for inner in ast.walk(part)
    )


Put = Callable[[ast.stmt, Sequence[ast.AST]], list[ast.stmt]]


def _in_place(tree: ast.Module, line: int, put: Put) -> bool:
    """Replace the statement at a line; False where there is none."""
    todo: list[tuple[ast.AST, tuple[ast.AST, ...]]] = [(tree, (tree,))]
    while todo:
        node, owners = todo.pop()
        for part in ("body", "orelse", "finalbody"):
            statements = getattr(node, part, None)
            inner: list[ast.stmt] = statements if isinstance(statements, list) else []
            for place, statement in enumerate(inner):
                if statement.lineno == line:
                    inner[place : place + 1] = put(statement, owners)
                    return True
                is_scope = isinstance(statement, ast.ClassDef | ast.FunctionDef)
                todo.append((statement, (*owners, statement) if is_scope else owners))
    return False


def written(of: Rebound, mutant: Mutant, root: Path) -> Path:
    """Write the source with the mutated model file."""
    of.tree(root)
    (root / QWEN).write_text(mutant.text, "utf-8")
    (root / "vllm/sequence.py").write_text(SEQUENCE, "utf-8")
    return root


def _play(model: Callable[[], object], call: Callable[[object, str, object], Any]) -> Results:
    """Return what a get returns after each of some calls."""
    results: list[object] = []
    for steps in (
        ((SET, 3), (GET, 4)),
        ((SET, 3), (CLEAR, 3), (GET, 4)),
        ((SET, 3), (CLEAR, 1), (SET, 1), (GET, 4)),
    ):
        made = model()
        for name, count in steps:
            payload = 1.0 + torch.arange(2 * count * 5).view(2, count, 5)
            try:
                returned = call(made, name, payload if name == SET else count)
            except Exception as error:  # noqa: BLE001  # what the class raises is its result
                results.append(type(error).__name__)
            else:
                results.append([level.tolist() for level in returned] if name == GET else None)
    return tuple(results)


def furnished_results(root: Path) -> Results | tuple[Reason, ...]:
    """Return the results of the class as the harness furnishes it, or the reasons why it is refused."""
    (found,) = (item for item in classes_of(open_source(str(root))) if item.found.model_class == NAME)
    methods = found.methods
    if methods is None:
        return found.refusals
    calls = {GET: "get", SET: "set", CLEAR: "clear"}
    return _play(
        lambda: methods(8, 5, 2, dtype=torch.float32, device=torch.device("cpu")),
        lambda made, name, argument: getattr(made, calls[name])(argument),
    )


def live_results(root: Path) -> Results:
    """Return the results of a real object, in a package that is imported whole."""
    text = SimpleNamespace(hidden_size=5)
    config = SimpleNamespace(vision_config=SimpleNamespace(deepstack_visual_indexes=[0, 1]), text_config=text)
    settings = SimpleNamespace(
        model_config=SimpleNamespace(hf_config=config),
        scheduler_config=SimpleNamespace(max_num_batched_tokens=8),
    )
    unload()  # the modules that the harness has imported
    with _imported(root) as module:
        return _play(
            lambda: getattr(module, NAME)(vllm_config=settings),
            lambda made, name, argument: _levels(getattr(made, name)(argument), name),
        )


def _levels(returned: object, name: str) -> object:
    return list(returned.values()) if name == GET and isinstance(returned, dict) else returned


@contextmanager
def _imported(root: Path) -> Iterator[object]:
    """Import every module of a package, and at last forget them."""
    here = {name: module for name, module in sys.modules.items() if name.partition(".")[0] == "vllm"}
    assert not here
    with (
        patch.object(sys, "path", [str(root), *sys.path]),
        patch.dict(sys.modules),
        patch.object(builtins, "NoSuchTower", lambda *_: None, create=True),
        patch.object(builtins, "NoSuchModel", lambda *_: nn.Module(), create=True),
    ):
        importlib.invalidate_caches()
        module = importlib.import_module("vllm.model_executor.models.qwen3_vl")
        for path in sorted(root.rglob("*.py")):
            importlib.import_module(".".join(path.relative_to(root).with_suffix("").parts))
        yield module
