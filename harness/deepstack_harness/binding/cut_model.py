"""Cut one model class of a source, in one of the two ways in which it can be driven."""

import ast
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace

from deepstack_harness.binding.cut_class import ClassCut, Inherited, Outside, cut_class
from deepstack_harness.binding.cut_helpers import Helpers, Supply, importable, stand_ins_of
from deepstack_harness.binding.syntax import NoBuffer, class_named, members_of, package_imports
from deepstack_harness.errors import UsageError
from deepstack_harness.sources.source import NoSuchMember, Source, SourceFile


def _as_it_is(hidden: object) -> object:
    return hidden


@dataclass(frozen=True)
class EngineParts:
    """The parts of one engine that its classes name, beside those that every engine of vLLM's kind has.

    `stand_ins` has objects by the names that files import, `settings` values by their place below
    `vllm_config`, such as `model_config.multimodal_config`.  `answer` makes the answer of the language
    model out of its hidden states (n, hidden).  `reads_too` are attributes of a model that code outside of
    its class reads.
    """

    stand_ins: Mapping[str, object] = field(default_factory=dict)
    settings: Mapping[str, object] = field(default_factory=dict)
    answer: Callable[[object], object] = _as_it_is
    reads_too: frozenset[str] = frozenset()


PLAIN_PARTS = EngineParts()


@dataclass(frozen=True)
class ModelClass:
    """A model class of a package: its file, its name, and the first release that has its buffer.

    `nested` names the part of the Hugging Face configuration that is the model's own.  With
    `main_features` each row of visual embeddings starts with the features that replace the token
    embedding, and the levels follow; without, it has the levels alone.
    """

    member: str
    class_name: str
    since: str
    nested: str | None = None
    main_features: bool = True
    parts: EngineParts = field(default=PLAIN_PARTS, compare=False)


@dataclass(frozen=True)
class Way:
    """A way to drive a class: the methods that are cut, and the names that are given to them.

    `verbs` is None for get, set and clear, which are found by their names.  With `helpers` the
    functions that the file imports from its package are cut too; else such an import is refused,
    unless it is among `stand_ins`.  Without `init` nothing of the class's `__init__` is kept.
    """

    verbs: Mapping[str, str] | None
    stand_ins: frozenset[str]
    given: frozenset[str]
    helpers: bool
    init: bool = True


BY_METHODS = Way(
    verbs=None,
    stand_ins=frozenset({"IntermediateTensors", "StageMissingLayer", "init_logger"}),
    given=frozenset({"visual"}),
    helpers=False,
)
"""Drive the buffer's own get, set, clear and resize."""

BY_FORWARD = Way(
    verbs={"set": "embed_input_ids", "get": "forward"},
    stand_ins=BY_METHODS.stand_ins | {"get_pp_group"},
    given=BY_METHODS.given | {"language_model"},
    helpers=True,
)
"""Drive `embed_input_ids`, which sets the buffer, and `forward`, which reads and clears it."""


@dataclass(frozen=True)
class ModelCut:
    """A model class, cut and compiled: everything that is needed to define it, without its source.

    `supplies` says what its code finds under imported names; `base` is the class in another file
    that it is derived from, cut likewise.
    """

    source: Source
    model: ModelClass
    file: SourceFile
    cut: ClassCut
    supplies: Mapping[str, Supply]
    base: "ModelCut | None" = None

    def inherited(self) -> Inherited:
        """Return what a class in another file gets from this one."""
        definition = class_named(self.file, self.cut.class_name)
        return Inherited(members_of(definition, self.file), self.cut)


def cut_model(source: Source, model: ModelClass, way: Way, base: ModelCut | None = None) -> ModelCut:
    """Cut a class out of a source; `base` is the class in another file that it is derived from.

    Raises `NoBuffer` for a class without a buffer, another `UsageError`, with file and line, for
    what cannot be supplied, and `MachineError` when the source cannot be fetched.
    """
    file = source.read(model.member)
    return (
        _cut_with_helpers(source, file, model, way) if way.helpers else _cut(source, file, model, way, base)
    )


def cut_known(source: Source, model: ModelClass, way: Way) -> ModelCut:
    """Cut a class that `model` says since when there is; a `UsageError` for a missing one says so too."""
    try:
        return cut_model(source, model, way)
    except (NoSuchMember, NoBuffer) as error:
        raise UsageError(
            f"{error}; {model.class_name} has a buffer since {source.package} {model.since}"
        ) from error


def _cut(source: Source, file: SourceFile, model: ModelClass, way: Way, base: ModelCut | None) -> ModelCut:
    stand_ins = _stand_ins(model, way, base)
    inherited = base.inherited() if base else None
    done = cut_class(
        file,
        model.class_name,
        outside=Outside(way.given, model.parts.reads_too),
        stand_ins=stand_ins,
        inherited=inherited,
    )
    return ModelCut(source, model, file, done, stand_ins_of(done.replaced), base)


def _cut_with_helpers(
    source: Source,
    file: SourceFile,
    model: ModelClass,
    way: Way,
    derived: frozenset[ModelClass] = frozenset(),
) -> ModelCut:
    """Cut a class, and before it the class in another file that it has its methods from."""
    base = _imported_base(source, file, model, way, derived)
    stand_ins = _stand_ins(model, way, base)
    helpers = Helpers(source, stand_ins)
    done = cut_class(
        file,
        model.class_name,
        outside=Outside(way.given, model.parts.reads_too),
        stand_ins=importable(file, model.member) | stand_ins,
        inherited=base.inherited() if base else None,
        verbs=way.verbs,
        init=way.init,
    )
    return ModelCut(source, model, file, done, helpers.supply(model.member, file, done.replaced), base)


def _stand_ins(model: ModelClass, way: Way, base: ModelCut | None) -> frozenset[str]:
    """Return the imported names that are never looked up in the source."""
    return way.stand_ins | model.parts.stand_ins.keys() | ({base.cut.class_name} if base else set())


def _imported_base(
    source: Source, file: SourceFile, model: ModelClass, way: Way, derived: frozenset[ModelClass]
) -> ModelCut | None:
    """Cut the first base class from another file that can be cut, for a class that lacks a method.

    `derived` are the classes on the way here, which a damaged source may name as bases again.
    """
    definition = class_named(file, model.class_name)
    if members_of(definition, file).keys() >= set((way.verbs or {}).values()):
        return None
    origins = package_imports(file, model.member)
    on_the_way = derived | {model}
    for name in (base.id for base in definition.bases if isinstance(base, ast.Name) and base.id in origins):
        module, real_name = origins[name]
        there = replace(model, member=f"{module.replace('.', '/')}.py", class_name=real_name)
        if there not in on_the_way:
            with suppress(NoSuchMember, NoBuffer):
                return _cut_with_helpers(source, source.read(there.member), there, way, on_the_way)
    return None
