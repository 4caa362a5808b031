"""What the package itself says: rules, the fields of a row, settings, fixtures, exit codes, docstrings.

The directives are `rule`, which takes one as its argument, `rules`, `row-fields`, `plugin-settings`,
`fixtures` and `exit-codes`.
"""

import dataclasses
import inspect
import re
from collections.abc import Iterator
from types import MappingProxyType
from typing import Any, get_type_hints

import pytest
from docutils import nodes
from docutils.statemachine import StringList
from gallery import prose, sentence, table
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective
from typing_extensions import override

from deepstack_harness import Row, pytest_plugin
from deepstack_harness.catalogue.incidents import readable_incidents
from deepstack_harness.contract.rules import Rule
from deepstack_harness.errors import ExitCode


def rule_lines(name: str) -> Iterator[str]:
    """Yield what the contract says of a rule, and the incidents that broke it."""
    rule = Rule(name)
    yield from (f"> {sentence(rule.promise)}", "")
    if rule.instance_of is not None:
        promise = rule.instance_of
        anchor = f"{promise.lower()}-{promise.word.replace(' ', '-')}"
        yield f"It is an instance of [{promise} {promise.word}](../promises.md#{anchor})."
    else:
        yield "It stands alone: it is an instance of none of the five promises."
    yield from (f"A *{rule.chance}* puts it to the test; a case without one says nothing about the rule.", "")
    broken = [incident for incident in readable_incidents() if rule in incident.rules]
    if broken:
        links = ", ".join(f"[{each.id}](../../gallery/{each.id}.md)" for each in broken)
        yield from (f"Incidents that broke it: {links}.", "")


def rules_lines() -> Iterator[str]:
    """Yield the table of all rules."""
    rows = (
        [f"[{rule}](rules/{rule}.md)", rule.word, sentence(rule.promise), rule.instance_of or "", rule.chance]
        for rule in Rule
    )
    yield from table(("rule", "word", "promise", "instance of", "put to the test by"), rows)


def row_lines() -> Iterator[str]:
    """Yield the fields of a row with their types, and what its class says of them."""
    hints = get_type_hints(Row)
    rows = []
    for field in dataclasses.fields(Row):
        missing = field.default is dataclasses.MISSING
        default = "required" if missing else f"`{field.default!s}`" if field.default != "" else "empty"
        hint = getattr(hints[field.name], "__bound__", None) or hints[field.name]  # of a type parameter
        kind = getattr(hint, "__name__", "") if isinstance(hint, type) else str(hint)
        rows.append([f"`{field.name}`", f"`{re.sub(r'[a-z_.]+[.](?=[A-Z])', '', kind)}`", default])
    yield from table(
        ("field", "type", "default"), ([cell.replace("|", "\\|") for cell in row] for row in rows)
    )
    yield from (markdown(inspect.getdoc(Row) or ""), "")


def setting_lines() -> Iterator[str]:
    """Yield the options and ini keys of the plugin, as pytest is told of them."""
    parser = pytest.Parser(_ispytest=True)
    pytest_plugin.pytest_addoption(parser)
    rows = []
    for option in parser.getgroup("deepstack").options:
        (name,) = option.names()
        key = name.removeprefix("--").replace("-", "_")
        attributes = option.attrs()
        value = f" {attributes['metavar']}" if attributes.get("metavar") else ""
        ini = f"`{key}`" if key in parser._inidict else "none"  # noqa: SLF001  # pytest has no public list
        rows.append([f"`{name}{value}`", ini, prose(attributes["help"])])
    yield from table(("option", "ini key", "what it does"), rows)


def fixture_lines() -> Iterator[str]:
    """Yield the docstring of each fixture."""
    for name, value in vars(pytest_plugin).items():
        definition = getattr(value, "_fixture_function_marker", None)
        if definition is None:
            continue
        title = definition.name or name
        yield from (f"## {title}", "", markdown(inspect.getdoc(value._fixture_function) or ""), "")  # noqa: SLF001


def code_lines() -> Iterator[str]:
    """Yield the exit codes by their names."""
    yield from table(("code", "name"), ([str(int(code)), f"`ExitCode.{code.name}`"] for code in ExitCode))


_LAID_OUT = re.compile(r"^(?:[\w, ]*\w {2,}\S| {2,}\S)")
"""A line of a paragraph that is laid out by hand: indented, or a name and its text in columns."""


def paragraphs(docstring: str) -> Iterator[tuple[bool, list[str]]]:
    """Yield the paragraphs of a docstring, each with whether it is laid out by hand."""
    for part in re.split(r"\n(?:[ ]*\n)+", docstring.strip("\n")):
        lines = part.splitlines()
        yield bool(_LAID_OUT.match(lines[0])), lines


def markdown(docstring: str) -> str:
    """Return a docstring as Markdown: what is laid out by hand in blocks."""
    text: list[str] = []
    before = False
    for laid_out, lines in paragraphs(docstring):
        if laid_out and before:  # one block with blank lines
            text[-1:] = ["", *lines, "```"]
        else:
            text += ["", *(["```text", *lines, "```"] if laid_out else map(prose_with_code, lines))]
        before = laid_out
    return "\n".join(text)


def lay_out(*event: Any) -> None:
    """Mark what is laid out by hand as literal text in a docstring that autodoc read, its last argument."""
    lines: list[str] = event[-1]
    text: list[str] = []
    for laid_out, part in paragraphs("\n".join(lines)):
        text += ["::", "", *(f"   {line}" for line in part), ""] if laid_out else [*part, ""]
    lines[:] = text


def prose_with_code(line: str) -> str:
    """Return a line whose `code` stays code; the double backticks of docstrings become single ones."""
    parts = re.split(r"(`+[^`]*`+)", line)
    return "".join(part.replace("``", "`") if part.startswith("`") else prose(part) for part in parts)


_PLAIN = MappingProxyType(
    {
        "rules": rules_lines,
        "row-fields": row_lines,
        "plugin-settings": setting_lines,
        "fixtures": fixture_lines,
        "exit-codes": code_lines,
    }
)


class Fact(SphinxDirective):
    """A directive without arguments: the Markdown that the function of its name yields."""

    @override
    def run(self) -> list[nodes.Node]:
        """Return the nodes."""
        return self.parsed(_PLAIN[self.name]())

    def parsed(self, lines: Iterator[str]) -> list[nodes.Node]:
        """Parse Markdown, headings too."""
        parent = nodes.Element()
        text = "\n".join(lines).splitlines()
        self.state.nested_parse(StringList(text), 0, parent, match_titles=True)
        return list(parent.children)


class RuleFact(Fact):
    """The directive `rule`, whose argument is the rule."""

    required_arguments = 1

    @override
    def run(self) -> list[nodes.Node]:
        """Return the nodes; an unknown rule is an error of the build."""
        if self.arguments[0] not in list(Rule):
            raise self.error(f"no rule {self.arguments[0]!r}")
        return self.parsed(rule_lines(self.arguments[0]))


def setup(app: Sphinx) -> dict[str, bool]:
    """Register the directives."""
    for name in _PLAIN:
        app.add_directive(name, Fact)
    app.add_directive("rule", RuleFact)
    app.setup_extension("sphinx.ext.autodoc")
    app.connect("autodoc-process-docstring", lay_out)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
