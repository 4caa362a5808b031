"""Mutants that are generated from the source of `ReferenceBuffer`: one small change each, by `ast`.

Changed are comparisons, conditions, numbers, bounds of slices, calls such as `max`, keyword arguments, and
whole statements, which are left out.  Texts of errors are left alone.
"""

import ast
import copy
import inspect
from collections.abc import Iterator
from dataclasses import dataclass
from typing import cast

from deepstack_harness.contract.protocols import BufferFactory
from deepstack_harness.models import reference

_COMPARISONS: dict[type[ast.cmpop], tuple[type[ast.cmpop], ...]] = {
    ast.Lt: (ast.LtE, ast.GtE), ast.LtE: (ast.Lt, ast.Gt), ast.Gt: (ast.GtE, ast.LtE),
    ast.GtE: (ast.Gt, ast.Lt), ast.Eq: (ast.NotEq,), ast.NotEq: (ast.Eq,),
}  # fmt: skip
_LEFT_OUT = (ast.Assign, ast.AugAssign, ast.For)
"""Statements that are left out, beside calls."""
_CALLS = {"max": "min", "min": "max", "zeros": "ones", "new_zeros": "new_ones"}


@dataclass(frozen=True)
class GeneratedMutant:
    """One change of the reference: the function that has it, the code before and after."""

    function: str
    before: str
    after: str
    module: ast.Module

    @property
    def name(self) -> str:
        """The change in one line."""
        return f"{self.function}: {self.before} -> {self.after}"

    def factory(self) -> BufferFactory:
        """Return the changed class; raises whatever the changed module raises."""
        names: dict[str, object] = {"__name__": f"generated.{self.function}"}
        exec(compile(self.module, f"<{self.name}>", "exec"), names)
        return cast(BufferFactory, names["ReferenceBuffer"])


def generated_mutants() -> list[GeneratedMutant]:
    """Return every change of the reference; equal changes of one function are told apart by a count."""
    tree = ast.parse(inspect.getsource(reference))
    found: dict[str, GeneratedMutant] = {}
    for function in _functions(tree):
        for path, before in _nodes(function):
            for after in _changes(before):
                one = _mutant(tree, function, path, before, after)
                repeated = sum(key.partition(" #")[0] == one.name for key in found)
                found[one.name + (f" #{repeated + 1}" if repeated else "")] = one
    return [
        GeneratedMutant(one.function, one.before, name.partition(" -> ")[2], one.module)
        for name, one in found.items()
    ]


def _functions(tree: ast.Module) -> Iterator[ast.FunctionDef]:
    return (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef))


def _nodes(function: ast.FunctionDef) -> Iterator[tuple[int, ast.AST]]:
    """Iterate over the nodes of a function's body with their number in `ast.walk`, error texts left out."""
    texts = {
        id(child) for node in ast.walk(function) if isinstance(node, ast.Raise) for child in ast.walk(node)
    }
    for number, node in enumerate(ast.walk(function)):
        if id(node) not in texts and not _is_signature(function, node):
            yield number, node


def _is_signature(function: ast.FunctionDef, node: ast.AST) -> bool:
    outside = [function.args, *([function.returns] if function.returns else []), *function.decorator_list]
    return node is function or any(node is child for part in outside for child in ast.walk(part))


def _changes(node: ast.AST) -> Iterator[ast.AST]:
    match node:
        case ast.Compare(ops=[op]):
            yield from (_with(node, ops=[other()]) for other in _COMPARISONS.get(type(op), ()))
        case ast.If():
            yield from (_with(node, test=ast.Constant(value)) for value in (True, False))
        case ast.Constant(value=int(value)) if not isinstance(value, bool):
            yield from (ast.Constant(value + change) for change in (1, -1))
        case ast.Slice():
            yield from _bounds(node)
        case ast.Call():
            yield from _calls(node)
        case ast.Return(value=ast.expr()):
            yield ast.Return(ast.Constant(None))
    if isinstance(node, _LEFT_OUT) or (isinstance(node, ast.Expr) and isinstance(node.value, ast.Call)):
        yield ast.Pass()


def _bounds(node: ast.Slice) -> Iterator[ast.AST]:
    for side in ("lower", "upper"):
        bound = getattr(node, side)
        if bound is not None:
            yield _with(node, **{side: None})
            for op in (ast.Add(), ast.Sub()):
                yield _with(node, **{side: ast.BinOp(copy.deepcopy(bound), op, ast.Constant(1))})


def _calls(node: ast.Call) -> Iterator[ast.AST]:
    match node.func:
        case ast.Name(id=name) | ast.Attribute(attr=name) if name in _CALLS:
            key = "id" if isinstance(node.func, ast.Name) else "attr"
            yield _with(node, func=_with(node.func, **{key: _CALLS[name]}))
    for keyword in node.keywords:
        yield _with(node, keywords=[one for one in node.keywords if one is not keyword])


def _with(node: ast.AST, **fields: object) -> ast.AST:
    changed = copy.deepcopy(node)
    for key, value in fields.items():
        setattr(changed, key, value)
    return changed


def _mutant(
    tree: ast.Module, function: ast.FunctionDef, number: int, before: ast.AST, after: ast.AST
) -> GeneratedMutant:
    module = copy.deepcopy(tree)
    changed = next(node for node in _functions(module) if node.name == function.name)
    target = [*ast.walk(changed)][number]
    ast.fix_missing_locations(_Replace(target, after).visit(module))
    return GeneratedMutant(function.name, _told(before), _told(after), module)


class _Replace(ast.NodeTransformer):
    """Transformer that puts one node in the place of another."""

    def __init__(self, target: ast.AST, replacement: ast.AST) -> None:
        self._target = target
        self._replacement = replacement

    def visit(self, node: ast.AST) -> ast.AST:
        """Replace the node, or look into it."""
        if node is self._target:
            return ast.copy_location(copy.deepcopy(self._replacement), node)
        return self.generic_visit(node)


def _told(node: ast.AST) -> str:
    """Return the first line of the code of a node."""
    return ast.unparse(node).splitlines()[0]
