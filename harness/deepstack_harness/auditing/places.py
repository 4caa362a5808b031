"""Places of findings: the file inside the package, and the lines of the method that a rule is about."""

import ast
from dataclasses import replace

from deepstack_harness.auditing.source_worker import AuditedClass
from deepstack_harness.auditing.standing import Standing
from deepstack_harness.binding.syntax import parse
from deepstack_harness.contract.case import Regime
from deepstack_harness.contract.row import Row
from deepstack_harness.contract.rules import Rule
from deepstack_harness.contract.verdicts import BROKEN
from deepstack_harness.sources.source import Source

_VERBS = {Rule.R3: "set", Rule.R4: "set", Rule.R5: "clear"}
"""Calls that break a rule, by the method that does them; all other rules are about the answers of get."""
_Statement = ast.ClassDef | ast.FunctionDef
"""A class, or a function that splits a payload over ranks."""
_FORWARD = ("forward", "embed_input_ids")
"""Methods of a class that keeps its payload without get, set and clear."""


def located(standing: Standing, source: Source, found: AuditedClass) -> Standing:
    """Return the standing with `MEMBER:FIRST-LAST` in the rows of broken rules.

    The lines are those of the class's own method that the rule is about; where it inherits that method they
    are those of the class.
    """
    statement = _statement(source, found)
    rows = (_row_placed(row, found, statement) if row.verdict in BROKEN else row for row in standing.rows)
    return replace(standing, rows=tuple(rows))


def _row_placed(row: Row, found: AuditedClass, statement: _Statement | None) -> Row:
    if row.regime is Regime.CAPTURED and found.replayed_at:
        return replace(row, where=found.replayed_at)
    if row.rule is Rule.R9 and found.patched_at:
        return replace(row, where=found.patched_at)
    return _placed(row, found.member, statement)


def class_at(source: Source, found: AuditedClass) -> str:
    """Return `MEMBER:LINE` of a class."""
    statement = _statement(source, found)
    return f"{found.member}:{statement.lineno}" if statement else found.member


def inside_package(where: str, module: str) -> str:
    """Return a `FILE:LINE` as seen from the folder that holds `module`; other text stays as it is."""
    before, found, inside = where.replace("\\", "/").rpartition(f"/{module}/")
    return f"{module}/{inside}" if found and before else where


def _statement(source: Source, found: AuditedClass) -> _Statement | None:
    statements = parse(source.read(found.member)).body
    classes = (node for node in statements if isinstance(node, _Statement))
    return next((node for node in classes if node.name == found.model_class), None)


def _placed(row: Row, member: str, statement: _Statement | None) -> Row:
    if statement is None:
        return replace(row, where=member)
    verb = _VERBS.get(row.rule, "get")
    methods = [node for node in statement.body if isinstance(node, ast.FunctionDef)]
    own = (node for node in methods if "deepstack" in node.name and verb in node.name.split("_"))
    forward = (node for node in methods if node.name in _FORWARD)
    lines = next(own, None) or next(forward, None) or statement
    return replace(row, where=f"{member}:{lines.lineno}-{lines.end_lineno}")
