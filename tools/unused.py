"""`python -m tools.unused`: definitions and files of the package that nothing in the package uses.

A name counts as used if code, or a string that is no docstring, of the package, its templates, the examples,
the fixtures or pyproject.toml names it. Strings count, because the registry, workers and templates name code
in strings. A name that only tests use is dead too: nobody who installs the package reaches it; and so is a
name that only `__all__` has. Constants of a module are definitions. A private name of a module has to be
used in its own file, outside of its definition, or imported elsewhere: other files may have the same name.
Names that are needed all the same are listed here by their reason. Lint runs it: it exits with 1 where a name
is left.
"""

from __future__ import annotations

import ast
import re
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "harness" / "deepstack_harness"
_WORD = re.compile(r"[A-Za-z_]\w*")
_NAMED_IN_TEXT = re.compile(r"(\w+)[.:](_\w+)")
_DATA = {".toml", ".html", ".css", ".js", ".jinja"}
# pytest, ast, logging and hypothesis call these by their names; the catalogue finds mutants and right buffers
# by their modules, other buffers of models/ by their names, and callers by an attribute.
_CALLED_BY_NAME = ("pytest_", "visit_", "emit")
_BY_DECORATOR = {"rule", "impl", "register_fake", "fixture", "hookimpl"}
_FOUND_BY_MODULE = ("models/mutants/", "models/correct.py", "models/histories/", "models/regions/")
_BUFFER, _CALLER = "Buffer", "faulty"

# Called by the code of a source, which expects these members of its base classes or of CUDA streams.
_OF_FOREIGN_CODE = {
    "engines/load.py create_module", "compile/torch_compat/modes.py _should_skip_dynamo",
    "engines/stand_ins.py get_language_model", "engines/stand_ins.py _embed_text_input_ids",
    "engines/kinds/vllm_construct.py with_hf_config", "engines/kinds/vllm_construct.py from_config",
    "engines/kinds/vllm_construct.py combine_and_mix",
    "engines/kinds/sglang_stand_ins.py get_slot", "engines/kinds/sglang_stand_ins.py replay_session",
    "engines/kinds/sglang_stand_ins.py complete_output",
    "engines/kinds/sglang_stand_ins.py is_modality", "engines/kinds/sglang_stand_ins.py add_to_output",
    "engines/kinds/vllm_ascend_model.py flash_comm_v1_enabled",
    "engines/kinds/vllm_ascend_model.py sp_enabled",
    "engines/kinds/sglang_stand_ins.py get_image_feature",
    "engines/kinds/sglang_stand_ins.py padding_values",
    "engines/stand_ins.py _mark_tower_model", "engines/stand_ins.py _mark_language_model",
    "audit/streams/device.py wait_event", "audit/streams/device.py record_event",
}  # fmt: skip
# Called by the tests of a user, or read by whoever writes a buffer.
_PUBLIC = {
    "fuzz/strategies.py engine_traces", "fuzz/strategies.py schedules",
    "compile/watched.py restore_guards", "compile/watched.py changes_answers",
    "contract/protocols.py AnnouncesMoves", "contract/protocols.py ReleasesStorage",
    "contract/protocols.py StatesVision", "contract/protocols.py StatesPayload",
    "contract/protocols.py BeginsSteps",
    "contract/protocols.py FollowsTensors", "contract/protocols.py WorksInGraph",
    "contract/protocols.py WrapsSession", "contract/protocols.py KnowsAccesses",
}  # fmt: skip
# Called only by cases/, and needed there: baselines of our own suite, the processes that a
# test kills, every class of an untrusted source bound at once (`audit` binds them in a worker), hunts for
# mutants that were generated, and the values of each axis that a trace of `check` has.
_OF_CASES = {
    "play/ranks.py pids", "engines/classes.py classes_of", "play/work.py bind_live",
    "catalogue/pairs.py axes_of",
    "audit/streams/projections.py dual_streams_of", "compile/torch_compat/modes.py spin",
}  # fmt: skip

Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


def unused() -> list[str]:
    """Return "path name" of each definition, and "path" of each file, that nothing uses."""
    trees = {
        path: ast.parse(path.read_text()) for folder in ("harness", "examples") for path in _python(folder)
    }
    used = {word for tree in trees.values() for text in _uses(tree) for word in _WORD.findall(text)}
    for path in [ROOT / "pyproject.toml", *PACKAGE.rglob("*"), *(ROOT / "fixtures").rglob("*")]:
        if path.suffix in _DATA:
            used |= set(_WORD.findall(path.read_text()))
    found = []
    reached = {path: set(_reached(tree)) for path, tree in trees.items()}
    reaching = Counter(name for seen in reached.values() for name in seen)
    for path, tree in trees.items():
        where = path.relative_to(PACKAGE).as_posix() if path.is_relative_to(PACKAGE) else _FOUND_BY_MODULE[0]
        if where.startswith(_FOUND_BY_MODULE):
            continue
        catalogued = where.startswith("models/")
        names = [node.name for node in _definitions(tree) if not (catalogued and _is_catalogued(node))]
        found += [f"{where} {name}" for name in (*names, *_constants(tree.body)) if name not in used]
        found += [
            f"{where} {name}"
            for name in _unused_here(tree)
            if name in used
            and not any(reaching[way] > (way in reached[path]) for way in (name, f"{path.stem}.{name}"))
        ]
        if path.stem not in used | {"__init__", "__main__"} and "__main__" not in _strings(tree):
            found.append(where)
    return found


def _python(folder: str) -> list[Path]:
    return sorted((ROOT / folder).rglob("*.py"))


@cache
def _nodes(tree: ast.AST) -> list[ast.AST]:
    """Return what `ast.walk` yields; the lines of a module are walked once, for themselves and for it."""
    if isinstance(tree, ast.Module):
        return [tree, *(node for line in tree.body for node in _nodes(line))]
    return [*ast.walk(tree)]


def _uses(tree: ast.AST) -> Iterator[str]:
    """Yield the texts in which a file can name a definition: names, attributes, imports, strings."""
    for node in _nodes(tree):
        match node:
            case ast.Name(id=name, ctx=ast.Load()) | ast.Attribute(attr=name) | ast.keyword(arg=str(name)):
                yield name
            case ast.ImportFrom(module=str(module), names=names):
                yield module
                yield from (alias.name for alias in names)
            case ast.Import(names=names):
                yield from (alias.name for alias in names)
    yield from _strings(tree)


def _strings(tree: ast.AST) -> set[str]:
    """Return the strings of a file but its docstrings, notes that stand alone under a name, and `__all__`."""
    nodes = _nodes(tree)
    alone = {id(node.value) for node in nodes if isinstance(node, ast.Expr)}
    for node in nodes:
        if isinstance(node, ast.Assign | ast.AnnAssign | ast.AugAssign) and "__all__" in _stored(node):
            alone |= {id(part) for part in ast.walk(node)}
    return {
        node.value
        for node in nodes
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in alone
    }


def _reached(tree: ast.AST) -> Iterator[str]:
    """Yield how a file names what another one has: `name` where it is imported, else `module.name`."""
    for node in _nodes(tree):
        match node:
            case ast.ImportFrom(names=names):
                yield from (alias.name for alias in names)
            case ast.Attribute(attr=name, value=ast.Name(id=module)):
                yield f"{module}.{name}"
    for text in _strings(tree):
        yield from (f"{module}.{name}" for module, name in _NAMED_IN_TEXT.findall(text))


def _constants(lines: Sequence[ast.stmt]) -> Iterator[str]:
    """Yield the names that lines of a module assign, but those that Python itself reads."""
    for line in lines:
        if isinstance(line, ast.Assign | ast.AnnAssign):
            yield from (name for name in _stored(line) if name != "_" and not name.startswith("__"))


def _stored(line: ast.stmt) -> list[str]:
    nodes = ast.walk(line)
    return [node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)]


def _unused_here(tree: ast.Module) -> Iterator[str]:
    """Yield the private names of a module that nothing in it uses but their own definitions."""
    uses = [{word for text in _uses(line) for word in _WORD.findall(text)} for line in tree.body]
    using = Counter(name for names in uses for name in names)
    for own, line in zip(uses, tree.body, strict=True):
        names = [*(node.name for node in _definitions(line) if node is line), *_constants([line])]
        yield from (name for name in names if re.match("_[^_]", name) and using[name] == (name in own))


def _is_catalogued(node: Definition) -> bool:
    """Return True for a class of models/ that the catalogue reads: a buffer, or a caller."""
    if not isinstance(node, ast.ClassDef):
        return False
    stated = {
        ast.unparse(target) for line in node.body if isinstance(line, ast.Assign) for target in line.targets
    }
    return node.name.endswith(_BUFFER) or _CALLER in stated


def _definitions(tree: ast.AST) -> Iterator[Definition]:
    """Yield the definitions that only our own code can use."""
    for node in _nodes(tree):
        if (
            not isinstance(node, Definition)
            or node.name == "_"
            or node.name.startswith(("__", *_CALLED_BY_NAME))
        ):
            continue
        decorators = {word for each in node.decorator_list for word in _WORD.findall(ast.unparse(each))}
        if not decorators & _BY_DECORATOR:
            yield node


if __name__ == "__main__":
    lines = sorted(set(unused()) - _OF_FOREIGN_CODE - _PUBLIC - _OF_CASES)
    print(*lines, sep="\n")
    sys.exit(bool(lines))
