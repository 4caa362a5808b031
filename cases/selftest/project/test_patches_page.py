"""The page about what is patched in torch has every name that the package replaces, and no other."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[3]
PACKAGE = ROOT / "harness" / "deepstack_harness"
PAGE = (ROOT / "docs" / "reference" / "patches.md").read_text(encoding="utf-8")
MODULES = {path: path.read_text(encoding="utf-8") for path in PACKAGE.rglob("*.py")}


def replaced(text: str) -> Iterator[str]:
    """Yield the names of attributes of other packages that a module replaces, and of settings."""
    foreign = {number for number, line in enumerate(text.splitlines(), 1) if "ignore[method-assign]" in line}
    for node in ast.walk(ast.parse(text)):
        match node:
            case ast.Call(
                func=ast.Attribute(attr="object", value=ast.Name(id="patch")),
                args=[_, ast.Constant(value=str(name)), *_],
            ):
                yield name
            case ast.For(iter=ast.Tuple(elts=replacements), body=[ast.Expr(value=call)]):
                if "patch.object(" in ast.unparse(call):
                    for replacement in replacements:
                        match replacement:
                            case ast.Tuple(elts=[_, ast.Constant(value=str(name)), _]):
                                yield name
            case ast.Assign(targets=[ast.Attribute(attr=name, value=ast.Name(id=owner))]):
                if node.lineno in foreign or owner == "eval_frame":
                    yield name
            case ast.Call(func=ast.Attribute(attr="patch", value=ast.Name(id=owner)), keywords=settings):
                if "config" in owner:
                    yield from (setting.arg for setting in settings if setting.arg)


def test_each_name_that_is_replaced_is_on_the_page() -> None:
    replacing = [text for text in MODULES.values() if re.search(r"patch|method-assign|eval_frame", text)]
    names = {name for text in replacing for name in replaced(text)}
    assert len(names) > 15
    assert sorted(name for name in names if not re.search(rf"`[\w.]*{name}`", PAGE)) == []


def test_each_name_of_a_patch_on_the_page_is_in_the_package() -> None:
    code = "\n".join(MODULES.values())
    rows = [line.split("|")[2] for line in PAGE.splitlines() if line.startswith("|")]
    names = [name.rpartition(".")[2] for row in rows for name in re.findall(r"`([\w.]+)`", row)]
    assert [name for name in names if name not in code] == []
