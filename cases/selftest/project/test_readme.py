"""README, CONTRIBUTING and docs/: short, links lead somewhere, and the parser takes each command."""

import ast
import importlib
import re
import shlex
import textwrap
import tomllib
from pathlib import Path

import pytest

from deepstack_harness.cli.main import COMMANDS, build_parser

ROOT = Path(__file__).parents[3]
GENERATED = ("gallery", "engines")
"""Folders of docs/ that the build of the site writes."""
WRITTEN_BY_THE_BUILD = [ROOT / "docs" / name for name in GENERATED]
PAGES = sorted(
    [
        *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "reports/README.md")),
        *(path for path in ROOT.glob("docs/**/*.md") if path.relative_to(ROOT).parts[1] not in GENERATED),
    ]
)
SET_UP = "python3 -m pip install tox && python3 -m tox"
CALLED = re.compile(
    # An option that is linked, `{option}`deepstack-harness repro --arm``, is no call.
    r"(?<!{option}`)(?:deepstack-harness|-m deepstack_harness) "
    r"((?:[\w=./:+-]+|'[^'`\n]*'|\"[^\"`\n]*\")(?: [^`\n#]*)?)"
)

pytestmark = pytest.mark.skipif(not (ROOT / "tox.ini").exists(), reason="needs a checkout")


def commands(page: Path) -> list[list[str]]:
    """Return the words of each command of ours that a page shows; a line may go on after a backslash."""
    whole = re.sub(r"\\\n *", "", page.read_text())
    text = [shlex.split(match[1].strip(), posix=True) for match in CALLED.finditer(whole)]
    return [words for words in text if words and words[0] in COMMANDS]


def test_the_readme_is_short() -> None:
    lines = (ROOT / "README.md").read_text().splitlines()
    assert len(lines) <= 120
    assert [line for line in lines if len(line) > 120 and not line.startswith(("|", "!"))] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_command_is_one_that_the_parser_takes(page: Path) -> None:
    for words in commands(page):
        build_parser(words).parse_args(words)


def test_commands_are_found() -> None:
    seen = {words[0] for page in PAGES for words in commands(page)}
    assert seen >= set(COMMANDS) - {"compare"}, (
        "a command that no page shows, or a pattern that finds nothing"
    )


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_leads_to_a_file_or_a_heading(page: Path) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", page.read_text()):
        if target.startswith("https://"):
            continue
        name, _, heading = target.partition("#")
        file = (page.parent / name).resolve() if name else page
        if file.parent in WRITTEN_BY_THE_BUILD and ROOT / "docs" in page.parents:
            continue  # the build of the site checks links to the pages that it writes
        assert file.exists(), target
        headings = (
            [
                re.sub(r"[^\w -]", "", line.lstrip("# ")).strip().lower().replace(" ", "-")
                for line in file.read_text().splitlines()
                if line.startswith("#")
            ]
            if heading
            else []
        )
        assert not heading or heading in headings, target


PACKAGE = ROOT / "harness" / "deepstack_harness"
PATH = re.compile(r"`((?:[\w.-]+/)+(?:[\w.-]+\.\w+)?|[\w/]+\.py)(?: [^`]*)?`")
TO_BE_WRITTEN = re.compile(r"three_layers|growth|r15|90001|[A-Z]{4}|/rN")
"""Files that the recipes of CONTRIBUTING.md write, and names that mean any file."""
WRITTEN_BY_COMMANDS = re.compile(r"\.tox/|coverage/|fuzz/$|reports/")


NAME_OUR_FILES = [page for page in PAGES if page.parent.name not in ("upstream", "how-to", "tutorial")]
"""Pages whose paths are those of the checkout: the others name files of engines, or of the reader."""


@pytest.mark.parametrize("page", NAME_OUR_FILES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_path_that_a_page_names_is_there(page: Path) -> None:
    named = {match[1] for match in PATH.finditer(page.read_text())}
    named = {path for path in named if not (TO_BE_WRITTEN.search(path) or WRITTEN_BY_COMMANDS.match(path))}
    assert [path for path in named if not ((ROOT / path).exists() or (PACKAGE / path).exists())] == []
    assert page.name != "CONTRIBUTING.md" or len(named) > 50, "a pattern that finds nothing"


def test_every_name_that_a_recipe_imports_is_there() -> None:
    text = (ROOT / "CONTRIBUTING.md").read_text()
    recipes = re.findall(r"^ *```python\n(.*?)```", text, re.DOTALL | re.MULTILINE)
    imports = [
        (node.module, alias.name)
        for recipe in recipes
        for node in ast.walk(ast.parse(textwrap.dedent(recipe)))
        if isinstance(node, ast.ImportFrom) and str(node.module).startswith("deepstack_harness.")
        for alias in node.names
    ]
    assert len(imports) > 5
    assert [name for name in imports if not hasattr(importlib.import_module(str(name[0])), name[1])] == []


def test_the_map_has_a_row_for_each_room_in_the_order_of_the_layers() -> None:
    text = (ROOT / "CONTRIBUTING.md").read_text()
    table = text.partition("## Where things are")[2].partition("## ")[0]
    rooms = re.findall(r"^\| `(\w+)` \|", table, re.MULTILINE)
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]
    (layers,) = [contract["layers"] for contract in settings["contracts"] if contract["type"] == "layers"]
    places = {name.strip(" ()"): place for place, line in enumerate(layers) for name in line.split("|")}
    assert sorted(rooms, key=lambda room: places[room]) == rooms
    assert set(rooms) == {path.parent.name for path in PACKAGE.glob("*/__init__.py")}
    arrows = re.findall(r"^    ([\w &]+) --> ([\w &]+)$", table, re.MULTILINE)
    assert {room for arrow in arrows for side in arrow for room in side.split(" & ")} == set(rooms)
    for upper, lower in arrows:
        lowest, highest = (
            max(places[room] for room in upper.split(" & ")),
            min(places[room] for room in lower.split(" & ")),
        )
        assert lowest < highest, f"{upper} --> {lower} goes up"


def test_ci_runs_the_commands_of_the_readme() -> None:
    assert SET_UP in (ROOT / ".ci" / "run").read_text()
    assert SET_UP in (ROOT / "README.md").read_text()
    assert "run: .ci/run" in (ROOT / ".github" / "workflows" / "ci.yml").read_text()
    assert "env_list = lint, tests\n" in (ROOT / "tox.ini").read_text()
