"""Cut an engine whose payload is an argument of its text model, so that nothing keeps it between calls.

Three parts of such an engine are cut: the text model, whose `forward` adds the payload; the function that
writes a step's payload; and the runner that captures and replays the text model.  Nothing runs here.
"""

import ast
from collections.abc import Iterator

from deepstack_harness.binding.argument_files import SINCE, ArgumentCut, ArgumentFiles, ClassPart
from deepstack_harness.binding.cut_helpers import cut_function
from deepstack_harness.binding.cut_model import ModelClass, ModelCut, cut_model
from deepstack_harness.binding.discover import FoundCut, depth_limited
from deepstack_harness.binding.syntax import Function, class_named, parse
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
    """Yield the classes whose own `forward` is given the payload and runs `self.layers`."""
    for member in source.mentioning(files.folder, files.argument):
        for node in parse(source.read(member)).body:
            if isinstance(node, ast.ClassDef) and any(_adds(each, files.argument) for each in node.body):
                yield member, node


def _adds(node: ast.stmt, argument: str) -> bool:
    if not isinstance(node, Function) or node.name != "forward":
        return False
    names = {each.arg for each in (*node.args.args, *node.args.kwonlyargs)}
    runs = any(isinstance(each, ast.Attribute) and each.attr == "layers" for each in ast.walk(node))
    return argument in names and runs


def _cut_or_why(source: Source, files: ArgumentFiles, member: str, name: str) -> ArgumentCut | str:
    try:
        text = cut_model(source, ModelClass(member, name, SINCE), files.text)
        wrapper = cut_model(source, files.wrapper.model, files.wrapper.way)
        writer = files.writer
        written = cut_function(
            source, writer.member, writer.function, stand_ins=writer.stand_ins, given=writer.given
        )
    except UsageError as error:
        return str(error)
    has_slot, place = False, ""
    try:
        replay: ModelCut | str = cut_model(source, files.replay.model, files.replay.way)
        has_slot, place = _registers(source, files), _replayed_at(source, files.replay)
    except UsageError as error:
        replay = str(error)
    verbs = files.replay.way.verbs or {}
    return ArgumentCut(text, wrapper, written, replay, files.argument, verbs, has_slot, place)


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
