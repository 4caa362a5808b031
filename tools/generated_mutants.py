"""Mutants that are generated from a source by `ast`, one small change each.

Of `ReferenceBuffer` changed are comparisons, conditions, numbers, bounds of slices, calls such as `max`,
keyword arguments, and whole statements, which are left out.  Texts of errors are left alone.

    python -m tools.generated_mutants vllm==0.33.0 Qwen3VLForConditionalGeneration --every 5

changes single lines of the methods of a released class that carry its payload: a statement is deleted, two
are swapped, a bound is moved by one, a level is left out.  The source is read at run time.  Each change is a
tree that `audit` compares with the unchanged one; where it finds nothing new, the change survives.
"""

import argparse
import ast
import copy
import inspect
import sys
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import cast

from deepstack_harness.audit.audited_source import AuditedSource, AuditScope, audit_source
from deepstack_harness.audit.gate import Base, Gate, judge_gate, seen_classes
from deepstack_harness.cli.audit_table import outcome_of
from deepstack_harness.contract.protocols import BufferFactory
from deepstack_harness.engines.bound_class import ForwardModels, MethodsClass
from deepstack_harness.engines.classes import define_class
from deepstack_harness.engines.known import engine_of, finder_of, open_source
from deepstack_harness.engines.syntax import class_named
from deepstack_harness.errors import UsageError
from deepstack_harness.models import reference
from deepstack_harness.sources.source import NoSuchMember, Source

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
    changed = [*ast.walk(module)][[*ast.walk(tree)].index(function)]
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


def changed_lines(tree: ast.Module, methods: list[ast.FunctionDef]) -> Iterator[GeneratedMutant]:
    """Yield every change of one line of some methods, or of the order of two."""
    for function in methods:
        for number, before in _nodes(function):
            for after in _changes_of_line(before):
                yield _mutant(tree, function, number, before, after)


def _changes_of_line(node: ast.AST) -> Iterator[ast.AST]:
    """Yield a deleted statement, a bound that is moved by one, a level left out, two statements swapped."""
    match node:
        case ast.Call(func=ast.Name(id="range"), args=[count]):
            yield _with(node, args=[ast.Constant(1), count])
            yield _with(node, args=[ast.BinOp(copy.deepcopy(count), ast.Sub(), ast.Constant(1))])
        case ast.Slice():
            yield from (each for each in _bounds(node) if ast.unparse(each) != ast.unparse(node))
        case ast.Compare(ops=[ast.Lt() | ast.LtE() | ast.Gt() | ast.GtE() as op]):
            yield _with(node, ops=[_COMPARISONS[type(op)][0]()])
        case ast.Constant(value=int(value)) if not isinstance(value, bool):
            yield ast.Constant(value + 1)
        case ast.If() | ast.Assign() | ast.AugAssign() | ast.For() | ast.Expr(value=ast.Call()):
            yield ast.Pass()
    body: object = getattr(node, "body", None)
    if not isinstance(body, list):
        return
    for number in range(len(body) - 1):
        one, other = body[number : number + 2]
        if not isinstance(other, ast.Return | ast.Raise):
            yield _with(node, body=[*body[:number], other, one, *body[number + 2 :]])


@dataclass(frozen=True)
class ReleasedClass:
    """A class of a source: the files that it depends on, its own one parsed, and the methods to change."""

    source: Source
    name: str
    member: str
    files: dict[str, str]
    tree: ast.Module
    methods: list[ast.FunctionDef]

    @classmethod
    def find(cls, source: Source, name: str) -> "ReleasedClass":
        """Raise `UsageError` for a class that carries no payload."""
        finder = finder_of(source)
        cut = finder.found_named(name)
        if cut is None:
            raise UsageError(f"{source.label} has no class {name} that carries a payload")
        files = {member: source.read(member).text for member in _there(source, finder.files_of(name))}
        file = source.read(cut.member)
        bound = define_class(source, cut)
        ways = [
            way for way in (bound.methods, bound.forward) if isinstance(way, ForwardModels | MethodsClass)
        ]
        driven = {name for way in ways for name in way.known.lines}
        tree = ast.parse(file.text)
        statement = next(
            each for each in tree.body if getattr(each, "name", "") == class_named(file, cut.class_name).name
        )
        methods = [
            node for node in ast.walk(statement) if isinstance(node, ast.FunctionDef) and node.name in driven
        ]
        return cls(source, name, cut.member, files, tree, methods)

    def judge(self, root: Path, text: str) -> AuditedSource:
        """Judge the class with `text` as its file, in a tree that has nothing but what it depends on."""
        mark = engine_of(self.source).package
        for member, each in {**self.files, self.member: text}.items():
            (root / member).parent.mkdir(parents=True, exist_ok=True)
            (root / member).write_text(each, "utf-8")
        (root / mark.mark).mkdir(parents=True, exist_ok=True)
        scope = AuditScope(lambda name, _: name == self.name, systems=False, account=False)
        return audit_source(str(root), lambda _: None, scope, may_be_empty=True)

    def outcome(self, base: AuditedSource, mutant: GeneratedMutant) -> str:
        """Return what the gate says against a change; empty where the change survives."""
        with tempfile.TemporaryDirectory() as folder:
            changed = self.judge(Path(folder), ast.unparse(mutant.module))
        there = Base("unchanged", seen_classes(base.classes), {self.name: self.member})
        result = judge_gate([changed], Gate.FLAG, there)
        if not result.holds:
            return outcome_of(result)
        return "" if changed.subjects else "exit code 1: it carries no payload any more"


def _there(source: Source, members: frozenset[str]) -> Iterator[str]:
    for member in members:
        with suppress(NoSuchMember):
            source.read(member)
            yield member


def main(words: list[str] | None = None) -> int:
    """Print every change that survives, and the counts; return 0."""
    parser = argparse.ArgumentParser(prog="python -m tools.generated_mutants", description=__doc__)
    parser.add_argument("source")
    parser.add_argument("classes", nargs="+")
    parser.add_argument("--every", type=int, default=1, help="judge one of so many changes")
    args = parser.parse_args(words)
    source = open_source(args.source)
    for name in args.classes:
        found = ReleasedClass.find(source, name)
        mutants = [*changed_lines(found.tree, found.methods)][:: args.every]
        with tempfile.TemporaryDirectory() as folder:
            base = found.judge(Path(folder), ast.unparse(found.tree))
        red = 0
        for mutant in mutants:
            outcome = found.outcome(base, mutant)
            red += bool(outcome)
            lines = zip(
                ast.unparse(found.tree).splitlines(), ast.unparse(mutant.module).splitlines(), strict=False
            )
            was, now = next((pair for pair in lines if pair[0] != pair[1]), ("", ""))
            print(
                f"{name}.{mutant.function}: {was.strip()} -> {now.strip()}: {outcome or 'survives'}",
                flush=True,
            )
        print(f"{name}: {len(mutants)} changes, {red} red, {len(mutants) - red} survive", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
