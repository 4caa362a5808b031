"""Facts of a model class before its package is imported, and the ways to call it.

A plugin patches a class of another package: by a function that is called with a model and sets attributes of
that object, or by statements at the top level of a file that assign to a class (`Patch`).
"""

import ast
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from deepstack_harness.engines.class_facts import STORAGE
from deepstack_harness.engines.syntax import parse
from deepstack_harness.errors import Reason, SourceError, UsageError
from deepstack_harness.sources.source import Source


@dataclass(frozen=True)
class EngineParts:
    """The parts of one engine that its classes name, in addition to those of every engine of vLLM's kind.

    `stand_ins` has objects by the names that files import, `settings` values by their place below
    `vllm_config`, such as `model_config.multimodal_config`. `output` makes the return value of the language
    model out of its hidden states (n, hidden). `reads_too` are attributes of a model that code outside of
    its class reads. `libraries` has objects by their dotted names, for attributes of missing libraries.
    """

    stand_ins: Mapping[str, object] = field(default_factory=dict)
    settings: Mapping[str, object] = field(default_factory=dict)
    output: Callable[[object], object] = lambda hidden: hidden
    reads_too: frozenset[str] = frozenset()
    libraries: Mapping[str, object] = field(default_factory=dict, repr=False)


PLAIN_PARTS = EngineParts()


@dataclass(frozen=True)
class ModelClass:
    """A model class of a package: its file, its name, and the first release that has its buffer.

    `nested` names the part of the Hugging Face configuration that is the model's own.  With
    `main_features` each row of visual embeddings starts with the features that replace the token
    embedding, and the levels follow; without, it has only the levels.
    """

    member: str
    class_name: str
    since: str
    nested: str | None = None
    main_features: bool = True
    parts: EngineParts = field(default=PLAIN_PARTS, compare=False)


@dataclass(frozen=True)
class CalledMethods:
    """The methods of a class that are called, and the names that are provided to them.

    `verbs` is None for get, set and clear, which are found by their names. `provided` are members that the
    host of the class has in the place of its own. Without `init` nothing of the class's `__init__` runs.
    """

    verbs: Mapping[str, str] | None
    provided: frozenset[str] = frozenset()
    init: bool = True


BY_METHODS = CalledMethods(verbs=None, provided=frozenset({"visual"}))
"""The buffer's own get, set, clear and resize."""

HOSTED = frozenset(
    {"_embed_text_input_ids", "get_language_model", "_mark_tower_model", "_mark_language_model"}
)
"""Methods that the host of a class has in place of the engine's own bases."""

BY_FORWARD = CalledMethods(
    verbs={"set": "embed_input_ids", "get": "forward"}, provided=BY_METHODS.provided | {"language_model"}
)
"""`embed_input_ids`, which sets the buffer, and `forward`, which reads and clears it."""


@dataclass(frozen=True, kw_only=True)
class KnownModel:
    """Facts of a model class of a source, for code that calls it; `filename` is its file in tracebacks.

    `verbs` names the class's method for each of get, set, clear and resize. `lines` has every method that
    is called, with its line. `replaced` are the names of `METHODS_STAND_INS` that the methods use.
    `stood_in` are attributes whose allocation was left out, since it cannot be built, or None; `optional`
    are names that the code reads with a default of its own. `storage` are the attributes that set stores
    into. `places` has `MEMBER:FIRST-LAST` of each method.
    """

    source: Source
    model: ModelClass
    filename: str
    verbs: Mapping[str, str]
    lines: Mapping[str, int]
    replaced: frozenset[str]
    stood_in: frozenset[str] | None
    optional: frozenset[str]
    storage: frozenset[str]
    places: Mapping[str, str]


@dataclass(frozen=True)
class Patch:
    """The patch of one class: its file, and the function that is called with a model.

    Without `function` it is every statement of the file that assigns to a deepstack method of the class.
    `forward` names the plugin's function that runs a step in the place of the class's own forward; it comes
    with `function`.  With `audio` a step may have audio and no visual token.
    """

    member: str
    function: str = ""
    forward: str = ""
    audio: bool = False


@dataclass(frozen=True)
class FoundPatch:
    """A patch that its engine has `declared`, in a source; nothing of it has run.

    `at` is its place, `MEMBER:FIRST-LAST`, and `step_at` that of the plugin's own forward, if there is one.
    """

    declared: Patch
    at: str
    step_at: str = ""


def find_patch(source: Source, patch: Patch, model_class: str) -> FoundPatch:
    """Find the patch of a class.

    Raises `UsageError` for what has moved, and `MachineError` where a file cannot be fetched.
    """
    file = source.read(patch.member)
    if patch.function:
        functions = {node.name: node for node in parse(file).body[::-1] if isinstance(node, ast.FunctionDef)}
        places = []
        for name in (patch.function, patch.forward):
            if name not in functions:
                raise UsageError(f"{file.filename} defines no function {name}")
            node = functions[name]
            places.append(f"{patch.member}:{node.lineno}-{node.end_lineno}")
        return FoundPatch(patch, *places)
    assignments = list[ast.stmt]()
    for statement in parse(file).body:
        match statement:
            case ast.Assign(targets=[ast.Attribute(value=ast.Name(id=name), attr=attribute)]):
                assignments += [statement] if name == model_class and STORAGE in attribute else []
    if not assignments:
        raise UsageError(
            f"{file.filename} assigns to no method of {model_class} that has {STORAGE} in its name"
        )
    return FoundPatch(patch, f"{patch.member}:{assignments[0].lineno}-{assignments[-1].end_lineno}")


class CannotSupply(SourceError):
    """Code of a source used something that only the whole package has."""


def reason_at(error: Exception, filename: str, text: str) -> Reason:
    """Return a reason with the place of the innermost frame of `error` in `filename`."""
    frames = traceback.walk_tb(error.__traceback__)
    lines = [line for frame, line in frames if frame.f_code.co_filename == filename]
    return Reason(text, filename, lines[-1] if lines else None)
