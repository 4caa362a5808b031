"""A finding on a buffer as a standalone program: torch only, exits with 1 while the fault is there.

The program plays the trace on the buffer and compares every answer with the payload that
was set last.  Whose buffer it is: one of ours, inlined; a class of the user's, imported; or a
vLLM class, whose methods are cut out of the source that the program is called with.
"""

import ast
import inspect
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from types import ModuleType

from deepstack_harness.catalogue.registry import MUTANTS, REVISIONS, resolve
from deepstack_harness.contract.rules import Rule
from deepstack_harness.contract.trace import RUNS_DECODER, Op, Step, Trace
from deepstack_harness.errors import UsageError
from deepstack_harness.scripts.standalone import environment

_INLINED = ("deepstack_harness.revisions.", "deepstack_harness.mutants.")
_WIDTH = 110
_NO_GRAPHS = frozenset({Op.CAPTURE, Op.REPLAY, Op.RELOAD})


@dataclass(frozen=True)
class Whose:
    """The buffer's class: a revision or mutant of ours, or MODULE:CLASS, or a `member` of a vLLM source.

    `member` is the file inside the source that has the class `name`.
    """

    name: str
    member: str | None = None

    @property
    def is_ours(self) -> bool:
        """Whether its code can be inlined."""
        return self.name in REVISIONS or self.name in MUTANTS


def render_finding(
    trace: Trace, rule: Rule, detail: str, whose: Whose, *, levels: int = 3, hidden: int = 8
) -> str:
    """The program's text; `levels` and `hidden` are the sizes of the buffer it makes.

    Raises `UsageError` for a trace with graphs, which a buffer alone does not have.
    """
    if whole := [str(step) for step in trace if step.op in _NO_GRAPHS]:
        raise UsageError(f"no script can play '{whole[0]}': it has a buffer alone, and no graphs")
    text = environment().get_template("finding.py.jinja").render(
        trace=trace, whose=whose, levels=levels, hidden=hidden, said=_said(trace, rule, detail, whose),
        steps=_wrapped(f"STEPS = {list(_steps(trace, levels, hidden))}", "    ").replace("'", '"'),
        code=_code_of(whose.name) if whose.is_ours else "",
        made=whose.name.partition(":")[::2],
    )  # fmt: skip
    return text.strip() + "\n"


def _said(trace: Trace, rule: Rule, detail: str, whose: Whose) -> str:
    lines = [f"{whose.name} breaks rule {rule} ({rule.word}).", f"Seen: {detail}", f"The trace: {trace}"]
    return "\n".join(_wrapped(f"# {' '.join(line.split())}", "#   ") for line in lines)


def _wrapped(text: str, indent: str) -> str:
    return textwrap.fill(text, _WIDTH, subsequent_indent=indent, break_long_words=False)


def _steps(trace: Trace, levels: int, hidden: int) -> Iterator[tuple[str, int, int, int]]:
    """(call, tokens, levels, hidden) of every call on the buffer."""
    for step in trace:
        for call in ("get", "clear") if step.op in RUNS_DECODER else (str(step.op),):
            yield call, step.tokens, *_shape(step, levels, hidden)


def _shape(step: Step, levels: int, hidden: int) -> tuple[int, int]:
    """Of a payload; where it deviates, it does so from the script's buffer too."""
    return (levels if step.levels is None else step.levels, hidden if step.hidden is None else step.hidden)


def _code_of(name: str) -> str:
    """The class and what it derives from, without docstrings, bases first; its name becomes `Buffer`."""
    made_by = resolve("buffer", {**REVISIONS, **MUTANTS}, name)
    assert isinstance(made_by, type)
    modules = dict.fromkeys(inspect.getmodule(one) for one in reversed(made_by.__mro__[:-1]))
    bodies = [_body(module) for module in modules if module is not None]
    statements = dict.fromkeys(text for body in bodies for text in body)
    return "\n\n\n".join([*statements, f"Buffer = {made_by.__name__}"])


def _body(module: ModuleType) -> Iterator[str]:
    for node in ast.parse(inspect.getsource(module)).body:
        if isinstance(node, ast.ImportFrom):
            yield from _imported(node)
        elif not isinstance(node, (ast.Import, ast.Expr)):
            yield ast.unparse(_Bare().visit(node))


def _imported(node: ast.ImportFrom) -> Iterator[str]:
    """Names from torch and the standard library as they are, our exceptions as plain ones."""
    source = node.module or ""
    if source == "deepstack_harness.errors":
        for alias in node.names:
            yield f"class {alias.name}(Exception):\n    pass"
    elif not source.startswith(_INLINED):
        yield ast.unparse(node)


class _Bare(ast.NodeTransformer):
    """Takes docstrings out."""

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        return self._without(node)

    def visit_ClassDef(self, node: ast.ClassDef) -> ast.AST:
        return self._without(node)

    def _without(self, node: ast.FunctionDef | ast.ClassDef) -> ast.AST:
        if ast.get_docstring(node) is not None:
            node.body = node.body[1:] or [ast.Pass()]
        return self.generic_visit(node)
