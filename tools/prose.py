"""`python -m tools.prose`: docstrings by first word, tensors without shapes, comments and private words.

A search for a thing finds its docstring when that begins as other documentation does: a function with a verb
("Return", "Start"), a class with the noun that it is. Clauses ("What ..", "Whether ..") hide both.

Private words are those that this code once used for everything ("kept" had seven meanings), and other code of
this field hardly ever (a "stand-in" is a word of the glossary): `dialect` counts them, `tools.budget` has a
number for each room, and `python -m tools.prose FOLDER` prints the share of any other code to compare with.
"""

from __future__ import annotations

import ast
import io
import re
import sys
import tokenize
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "harness" / "deepstack_harness"
CLAUSES = frozenset(
    ("what", "whether", "of", "nothing", "as", "where", "how", "who", "which", "those", "that", "it", "this")
)
# The verbs that a docstring of a function begins with; a new one is added here.
VERBS = frozenset(
    word
    for line in (
        "accept add allocate allow announce append ask attach attend be begin bind call cancel capture",
        "cast change check choose clamp clear close collect compare compile compute convert copy count",
        "cut decide decode define delete describe do download draw drop embed end enter estimate",
        "execute exit fail fill find flush follow forget forward free gather generate get give handle",
        "have hide hold hunt ignore import interpret iterate join judge keep kill leave let limit list",
        "listen load log look lower make mark mask measure merge mix move multiply name note observe",
        "open order parse pass pause place plan play prefer prepare pretend print project prove put",
        "question raise read rebuild recognise record reduce refuse register release reload remember",
        "remove rename render repeat replace replay report reset resize resolve resume return roll",
        "round run save say scale scatter schedule see select send serve set settle share show shrink",
        "skip sort split stand start stop store sum switch take tell test time train transform treat",
        "turn unpack update use verify wait walk warm warn watch wrap write yield zero",
    )
    for word in line.split()
)
_SIZE = r"(?:\.\.|`?\w+`?|min\(\w+, \w+\))(?: [*/+-] \w+)?"
_SHAPE = re.compile(rf"\({_SIZE},(?: {_SIZE}(?:, {_SIZE})*)?\)|\bshapes?\b")
_PROPERTIES = frozenset(("property", "cached_property", "setter", "fixture"))
_DIALECT = re.compile(
    r"\b(?:alone|answer(?:s|ed)?|ask(?:s|ed)?|behind|beside|dear|drives?|driven|hand(?:s|ed) |keeps|kept|"
    r"lacks?|said|says?|stands?(?!-in)|tells?|told)\b",
    re.IGNORECASE,
)
_NO_NAMES = frozenset(("each", "one"))
"""Loop variables that hide what is iterated."""
_NO_VERBS = frozenset(("of", "_of", "at", "_at", "on", "_on", "to", "_to"))
"""Names of functions that have no verb."""


@dataclass(frozen=True)
class Docstring:
    """Docstring of a module, function or class: its place, its owner, and its first word in lower case."""

    path: str
    line: int
    kind: str
    name: str
    word: str

    @property
    def package(self) -> str:
        """The package, or top-level module, that the file belongs to."""
        return self.path.partition("/")[0].removesuffix(".py")

    @property
    def plain(self) -> bool:
        """True for a function that begins with a verb, and for a class or property that does not.

        A module may do either, but begins with no clause.  Properties and fixtures are used like values,
        so their docstrings may name the value.
        """
        if self.kind == "function":
            return self.word in VERBS
        conjugated = self.word.removesuffix("s") in VERBS or self.word.removesuffix("es") in VERBS
        return self.word not in CLAUSES and not (
            conjugated and self.kind == "class" and self.word not in VERBS
        )


def docstrings() -> Iterator[Docstring]:
    """Yield the docstrings of all modules, functions, properties and classes of the package."""
    for path in _files():
        tree = ast.parse(path.read_text())
        for node in ast.walk(tree):
            if isinstance(node, ast.Module | ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                text = ast.get_docstring(node)
                if text:
                    where = path.relative_to(PACKAGE).as_posix()
                    line, name = getattr(node, "lineno", 1), getattr(node, "name", path.stem)
                    yield Docstring(where, line, _kind(node), name, _first(text))


def without_shapes() -> Iterator[str]:
    """Yield the place of every public function with a tensor in its signature that states no shape.

    A shape is `(n, hidden)`, `(n,)` or a sentence with the word shape.  A method without a docstring is
    documented by its class or by the method that it overrides, and one that only raises has no tensor.
    """
    for path in _files():
        for owner, node in _public(ast.parse(path.read_text())):
            text = ast.get_docstring(node) or (owner and node.name == "__init__" and ast.get_docstring(owner))
            stated = _SHAPE.search(text) if text else owner
            if not stated and _has_tensors(node) and not isinstance(node.body[-1], ast.Raise):
                yield f"{path.relative_to(PACKAGE).as_posix()}:{node.lineno} {node.name}"


def _public(
    tree: ast.Module | ast.ClassDef,
) -> Iterator[tuple[ast.ClassDef | None, ast.FunctionDef | ast.AsyncFunctionDef]]:
    for node in tree.body:
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
            yield from _public(node)
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and (
            not node.name.startswith("_") or node.name in ("__init__", "__call__")
        ):
            yield tree if isinstance(tree, ast.ClassDef) else None, node


def _has_tensors(node: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    given = (each.annotation for each in ast.walk(node.args) if isinstance(each, ast.arg))
    signature = " ".join(ast.unparse(each) for each in (*given, node.returns) if each)
    return re.search(r"\bTensor\b", signature) is not None


def comments() -> Counter[str]:
    """Return the number of comments in each package."""
    found: Counter[str] = Counter()
    for path in _files():
        tokens = tokenize.generate_tokens(io.StringIO(path.read_text()).readline)
        where = path.relative_to(PACKAGE).as_posix().partition("/")[0].removesuffix(".py")
        found[where] += sum(token.type == tokenize.COMMENT for token in tokens)
    return found


def dialect(text: str) -> Counter[str]:
    """Count the private words in docstrings and comments of a module, and names that hide what they are.

    >>> sorted(dialect("for each in rows: print(each)  # it tells what was kept"))
    ['each', 'kept', 'tells']
    """
    tokens = tokenize.generate_tokens(io.StringIO(text).readline)
    return private_words(list(ast.walk(ast.parse(text))), comments_in(tokens))


def private_words(nodes: Sequence[ast.AST], noted: str) -> Counter[str]:
    """Count as `dialect`, in the nodes of a module and the text of its comments."""
    found = Counter(word.lower() for word in _DIALECT.findall(_prose(nodes, noted)))
    for node in nodes:
        if isinstance(node, ast.For | ast.AsyncFor | ast.comprehension):
            names = {name.id for name in ast.walk(node.target) if isinstance(name, ast.Name)}
            found.update(names & _NO_NAMES)
        elif isinstance(node, ast.FunctionDef) and node.name in _NO_VERBS:
            found[f"def {node.name}"] += 1
    return found


def comments_in(tokens: Iterable[tokenize.TokenInfo]) -> str:
    """Return the comments of a module, a line for each."""
    return "\n".join(token.string for token in tokens if token.type == tokenize.COMMENT)


def _prose(nodes: Iterable[ast.AST], noted: str) -> str:
    """Return the docstrings of a module, and its comments."""
    strings = [
        node.value.value
        for node in nodes
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
        if isinstance(node.value.value, str)
    ]
    return "\n".join((*strings, noted))


def print_dialect(folder: Path) -> None:
    """Print how many private words the code of a folder has, in all and for 1,000 words of prose."""
    words, found = 0, Counter[str]()
    for path in sorted(folder.rglob("*.py")):
        text = path.read_text(encoding="utf-8")
        nodes = list(ast.walk(ast.parse(text)))
        noted = comments_in(tokenize.generate_tokens(io.StringIO(text).readline))
        words += len(re.findall(r"\w+", _prose(nodes, noted)))
        found.update(private_words(nodes, noted))
    share = 1000 * found.total() / max(words, 1)
    print(f"{folder.name}: {found.total():,} private words, {share:.1f} for each 1,000 words of prose")
    print("the most frequent:", dict(found.most_common(12)))


def _files() -> list[Path]:
    return sorted(path for path in PACKAGE.rglob("*.py") if "_data" not in path.relative_to(PACKAGE).parts)


def _kind(node: ast.Module | ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) -> str:
    if isinstance(node, ast.Module):
        return "module"
    if isinstance(node, ast.ClassDef):
        return "class"
    names = {word for each in node.decorator_list for word in re.findall(r"\w+", ast.unparse(each))}
    return "property" if names & _PROPERTIES else "function"


def _first(text: str) -> str:
    found = re.match(r"\W*([\w'-]+)", text)
    return found[1].lower() if found else ""


def main(folders: Sequence[str]) -> int:
    """Print the docstrings that are not plain, the counts by package, and the first words by number.

    For folders of other code only their private words are printed.
    """
    for folder in folders:
        print_dialect(Path(folder))
    if folders:
        return 0
    found = list(docstrings())
    for each in found:
        if not each.plain:
            print(f"{each.path}:{each.line}: {each.kind} {each.name} begins with '{each.word}'")
    for place in without_shapes():
        print(f"{place}: states no shape")
    by_package = Counter(each.package for each in found if not each.plain)
    words = Counter(each.word for each in found if each.kind == "function")
    print(f"not plain: {sum(by_package.values())} of {len(found)}:", dict(by_package))
    print("first words of functions:", dict(words.most_common(40)))
    noted = comments()
    print(f"comments: {sum(noted.values())}:", dict(noted.most_common()))
    print_dialect(PACKAGE)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
