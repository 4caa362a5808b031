"""The directive `command`: usage and options of a command, read from the parser that the program uses.

Each option is an entry of Sphinx's standard domain, so that pages link to it with
``{option}`deepstack-harness repro --arm` ``, and a link to an option that is gone fails the build.
"""

import argparse
import re
from collections.abc import Iterator

from docutils import nodes
from docutils.statemachine import StringList
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective
from typing_extensions import override

from deepstack_harness.cli.main import COMMANDS, build_parser

PROGRAM = "deepstack-harness"


def parser_of(command: str) -> argparse.ArgumentParser:
    """Return the parser of one command with all of its options."""
    actions = build_parser([command])._actions  # noqa: SLF001  # argparse has no public way to its commands
    (commands,) = (action for action in actions if isinstance(action, argparse._SubParsersAction))  # noqa: SLF001
    child: argparse.ArgumentParser = commands.choices[command]
    child.prog = f"{PROGRAM} {command}"
    return child


def lines_of(command: str) -> Iterator[str]:
    """Yield the Markdown of a command: its summary, its usage, and each group of options."""
    parser = parser_of(command)
    summary = COMMANDS[command]
    yield from (f"{summary[:1].upper()}{summary[1:]}.", "", "```text")
    yield re.sub(r"\n\s+", "\n    ", parser.format_usage().removeprefix("usage: ").strip())
    yield from ("```", "", f":::{{program}} {PROGRAM} {command}", ":::", "")
    for group in parser._action_groups:  # noqa: SLF001  # the groups of --help
        everything = group._group_actions  # noqa: SLF001
        actions = [action for action in everything if action.help != argparse.SUPPRESS]
        if not actions:
            continue
        yield from (f":::{{rubric}} {(group.title or 'options').capitalize()}", ":::", "")
        if group.description:
            yield from (escaped(group.description), "")
        for action in actions:
            yield from (f":::{{option}} {', '.join(written(action))}", described(parser, action), ":::", "")


def written(action: argparse.Action) -> list[str]:
    """Return each way to write an option with its value, or the name of an argument."""
    formatter = argparse.HelpFormatter("")
    value = formatter._format_args(action, formatter._get_default_metavar_for_optional(action))  # noqa: SLF001
    if not action.option_strings:
        positional = formatter._get_default_metavar_for_positional(action)  # noqa: SLF001
        return [formatter._format_args(action, positional)]  # noqa: SLF001
    return [f"{name} {value}".strip() if action.nargs != 0 else name for name in action.option_strings]


def described(parser: argparse.ArgumentParser, action: argparse.Action) -> str:
    """Return the help of an option with its placeholders filled, and the choices that its value hides."""
    formatter = parser._get_formatter()  # noqa: SLF001
    text = escaped(formatter._expand_help(action)) if action.help else ""  # noqa: SLF001
    if action.choices and action.metavar:
        text += f"\n\nOne of {', '.join(f'`{choice}`' for choice in action.choices)}."
    return text


def escaped(text: str) -> str:
    """Return text whose characters mean nothing to Markdown; 'quoted' commands become code."""
    parts = re.split(r"'([^'\s][^']*)'", text)
    prose = [re.sub(r"([\\*`|_<>\[\]$])", r"\\\1", part) for part in parts[::2]]
    code = [f"`{part}`" for part in parts[1::2]]
    return "".join(part for pair in zip(prose, [*code, ""], strict=True) for part in pair)


class CommandOptions(SphinxDirective):
    """Usage and options of the command that is named in the argument."""

    required_arguments = 1

    @override
    def run(self) -> list[nodes.Node]:
        """Return the nodes; an unknown command is an error of the build."""
        command = self.arguments[0]
        if command not in COMMANDS:
            raise self.error(f"no command {command!r}; there are {', '.join(COMMANDS)}")
        self.env.note_dependency(__file__)
        parent = nodes.Element()
        self.state.nested_parse(StringList(list(lines_of(command))), 0, parent)
        return list(parent.children)


def setup(app: Sphinx) -> dict[str, bool]:
    """Register the directive."""
    app.add_directive("command", CommandOptions)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
