"""Cut an engine whose payload is an argument of its text model, so that nothing keeps it between calls.

Three parts of such an engine are cut: the text model, whose `forward` adds the payload; the function that
writes a step's payload; and the runner that captures and replays the text model.  Nothing runs here.
"""

import ast
from collections.abc import Iterator
from dataclasses import replace

from deepstack_harness.binding.argument_files import SINCE, ArgumentCut, ArgumentFiles, ClassPart
from deepstack_harness.binding.cut_helpers import cut_function
from deepstack_harness.binding.cut_model import ModelClass, ModelCut, cut_model
from deepstack_harness.binding.discover import FoundCut, depth_limited
from deepstack_harness.binding.syntax import Function, NoBuffer, class_named, parse
from deepstack_harness.errors import UsageError
from deepstack_harness.sources.source import NoSuchMember, Source, SourceFile

_NO_CALLS = "the payload is an argument: nothing is called between the writer and the text model"


def find_argument_cuts(source: Source, files: ArgumentFiles) -> list[FoundCut]:
    """Find and cut every text model that is given the payload, in the order of their files.

    Raises `UsageError` for a file that does not parse, `MachineError` when the source cannot be fetched.
    """
    with depth_limited(source):
        return [
            FoundCut(node.name, member, cut, cut if isinstance(cut, str) else _NO_CALLS)
            for member, node in _text_models(source, files)
            for cut in [_cut_or_why(source, files, member, node.name)]
        ]


def _text_models(source: Source, files: ArgumentFiles) -> Iterator[tuple[str, ast.ClassDef]]:
    """Yield the classes whose own method `files.adds` is given the payload and reads `self.KEEPS`."""
    for member in files.members or source.mentioning(files.folder, files.argument):
        for node in _statements(source, member):
            if isinstance(node, ast.ClassDef) and any(_adds(each, files) for each in node.body):
                yield member, node


def _statements(source: Source, member: str) -> list[ast.stmt]:
    """Return the statements of a file; none where this release does not have it."""
    try:
        return parse(source.read(member)).body
    except NoSuchMember:
        return []


def _adds(node: ast.stmt, files: ArgumentFiles) -> bool:
    if not isinstance(node, Function) or node.name != files.adds:
        return False
    names = {each.arg for each in (*node.args.args, *node.args.kwonlyargs)}
    runs = any(isinstance(each, ast.Attribute) and each.attr == files.keeps for each in ast.walk(node))
    return files.argument in names and runs


def _cut_or_why(source: Source, files: ArgumentFiles, member: str, name: str) -> ArgumentCut | str:
    wrapper, writer = files.wrapper, files.writer
    try:
        text = cut_model(source, ModelClass(member, name, SINCE), files.text)
        separates = cut_model(source, wrapper.model, wrapper.way) if wrapper else None
        written = (
            cut_function(
                source, writer.member, writer.function, stand_ins=writer.stand_ins, given=writer.given
            )
            if writer
            else None
        )
    except UsageError as error:
        return str(error)
    cut = ArgumentCut(text, separates, written, "", files.argument)
    return _with_replay(cut, source, files)


def _with_replay(cut: ArgumentCut, source: Source, files: ArgumentFiles) -> ArgumentCut:
    """Return the cut with the runner, or with the sentence that says why it has none."""
    parts = files.replay
    if isinstance(parts, str):
        return replace(cut, replay=parts)
    try:
        part, runner = _cut_runner(source, parts)
    except UsageError as error:
        return replace(cut, replay=str(error))
    return replace(
        cut, replay=runner, replay_verbs=part.way.verbs or {}, has_slot=_registers(source, files),
        replayed_at=_replayed_at(source, part), replay_settings=part.settings,
        replay_note=part.note,
    )  # fmt: skip


def _cut_runner(source: Source, parts: tuple[ClassPart, ...]) -> tuple[ClassPart, ModelCut]:
    """Cut the first runner of the first file that is there; raise `UsageError` where that cannot be done.

    Runners of other files are not tried: an engine that has a newer runner serves with it.
    """
    there = next((one.member for one in parts if _has(source, one.member)), parts[0].member)
    refusals: list[NoBuffer] = []
    for part in (one for one in parts if one.member == there):
        try:
            return part, cut_model(source, part.model, part.way)
        except NoBuffer as error:  # the class has other methods
            refusals.append(error)
    raise refusals[0]


def _has(source: Source, member: str) -> bool:
    try:
        source.read(member)
    except NoSuchMember:
        return False
    return True


def _registers(source: Source, files: ArgumentFiles) -> bool:
    """Return True if the file of slots names the payload."""
    try:
        tree = parse(source.read(files.slots))
    except NoSuchMember:
        return False
    return any(isinstance(node, ast.Constant) and node.value == files.argument for node in ast.walk(tree))


def _replayed_at(source: Source, part: ClassPart) -> str:
    """Return the lines of the closure that replays the graph, or those of the method around it."""
    method = _method(source.read(part.member), part.class_name, (part.way.verbs or {})["set"])
    inner = [node for node in ast.walk(method) if isinstance(node, ast.FunctionDef) and node is not method]
    closure: Function = next((node for node in inner if _replays(node)), method)
    return f"{part.member}:{closure.lineno}-{closure.end_lineno}"


def _method(file: SourceFile, class_name: str, name: str) -> Function:
    body = class_named(file, class_name).body
    return next(node for node in body if isinstance(node, Function) and node.name == name)


def _replays(node: ast.AST) -> bool:
    return any(isinstance(each, ast.Attribute) and each.attr == "replay" for each in ast.walk(node))
