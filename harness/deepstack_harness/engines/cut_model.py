"""Cut one model class of a source for one way to drive it, and define what was cut.

`cut_model` cuts the class with its bases, its helpers and what its `Way` names; `cut_patch` cuts the patch
that a plugin applies to a class of another package.  A plugin has either a function that is called with a
model and sets attributes of that object, or statements at the top level of a file that assign to a class.
Cutting runs nothing of the source.  `define_model`, `define_function` and `define_name` execute the
compiled code, over stand-ins for the names that would have to be imported.
"""

import ast
import itertools
import linecache
import sys
import traceback
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from types import CodeType, ModuleType
from typing import Any, NoReturn, TypeVar

from deepstack_harness.engines.cut_class import (
    HOST,
    STORAGE,
    STRICT,
    ClassCut,
    ClassFacts,
    CutOptions,
    Inherited,
    Outside,
    allocated,
    cut_class,
)
from deepstack_harness.engines.extract import (
    DECORATED,
    DEFAULT,
    HelperCut,
    Helpers,
    StandIn,
    Supply,
    Unavailable,
    importable,
    stand_ins_of,
)
from deepstack_harness.engines.lineage import Defined
from deepstack_harness.engines.rebinding import Making, Span
from deepstack_harness.engines.syntax import (
    Function,
    Members,
    NoBuffer,
    class_named,
    function_named,
    members_of,
    own_methods_called,
    package_imports,
    parse,
)
from deepstack_harness.errors import Reason, SourceError, UsageError
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
    libraries: Mapping[str, object] = field(default_factory=dict, repr=False)


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
    """A way to drive a class: the methods that are cut, and the names that are provided to them.

    `verbs` is None for get, set and clear, which are found by their names.  With `helpers` the
    functions that the file imports from its package are cut too; else such an import is refused,
    unless it is among `stand_ins`.  Without `init` nothing of the class's `__init__` is kept.  With
    `rehearsed` a class that names other packages, or has parts that cannot be built, is cut all the same: its
    rehearsal shows whether it can do without them.
    """

    verbs: Mapping[str, str] | None
    stand_ins: frozenset[str]
    provided: frozenset[str]
    helpers: bool
    init: bool = True
    rehearsed: bool = False


BY_METHODS = Way(
    verbs=None,
    stand_ins=frozenset({"IntermediateTensors", "StageMissingLayer", "init_logger"}),
    provided=frozenset({"visual"}),
    helpers=False,
)
"""Drive the buffer's own get, set, clear and resize."""

HOSTED = frozenset(
    {"_embed_text_input_ids", "get_language_model", "_mark_tower_model", "_mark_language_model"}
)
"""Methods that the host of a class has in place of the engine's own bases."""

BY_FORWARD = Way(
    verbs={"set": "embed_input_ids", "get": "forward"},
    stand_ins=BY_METHODS.stand_ins | {"get_forward_context", "get_pp_group"},
    provided=BY_METHODS.provided | {"language_model"},
    helpers=True,
    rehearsed=True,
)
"""Drive `embed_input_ids`, which sets the buffer, and `forward`, which reads and clears it."""


@dataclass(frozen=True)
class KnownModel:
    """A model class of a source, and what is known of it."""

    source: Source
    model: ModelClass
    file: SourceFile
    cut: ClassFacts


@dataclass(frozen=True)
class ModelCut(KnownModel):
    """A model class, cut and compiled: everything that is needed to define it, without its source.

    `supplies` says what its code finds under imported names; `base` is the class in another file
    that it is derived from, cut likewise.  `fallback` is the same class with stand-ins for the parts that
    cannot be built.  `patches` are what other modules do to the class.
    """

    cut: ClassCut
    supplies: Mapping[str, Supply]
    base: "ModelCut | None" = None
    fallback: "ModelCut | None" = None

    @property
    def chain(self) -> "Iterator[ModelCut]":
        """The cut, and those that it is derived from."""
        yield self
        if self.base is not None:
            yield from self.base.chain

    def inherited(self) -> Inherited:
        """Return what a class in another file gets from this one, and from those that it is derived from."""
        own = members_of(class_named(self.file, self.cut.class_name), self.file)
        above = self.base.inherited().members if self.base else {}
        return Inherited({**above, **own}, self.cut)


def cut_model(source: Source, model: ModelClass, way: Way, base: ModelCut | None = None) -> ModelCut:
    """Cut a class out of a source; `base` is the class in another file that it is derived from.

    Raises `NoBuffer` for a class without a buffer, another `UsageError`, with file and line, for
    what cannot be supplied and for what rebinds a member in a way that cannot be followed, and `MachineError`
    when the source cannot be fetched.
    """
    file = source.read(model.member)
    making = _making(source, file, model)
    if not way.helpers:
        cut = _cut(source, file, model, way, base)
    elif not way.rehearsed:
        cut = _cut_with_helpers(source, file, model, way)
    else:
        cut = _cut_with_fallback(source, file, model, way)
    return _explained(making, cut)


def _making(source: Source, file: SourceFile, model: ModelClass) -> Making:
    return Making(source, Defined(model.member, file, class_named(file, model.class_name)))


def _explained(making: Making, cut: ModelCut) -> ModelCut:
    """Return the cut; refuse a class that other code may change, which only an import of it shows."""
    links = list(cut.chain)
    chain = {each.place for link in links for each in making.lineage if each.member == link.model.member}
    names = {name for link in links for name in link.cut.names}
    making.refuse_patches(chain)
    spans = [span for link in links for span in link.cut.spans]
    spans += _spans_of([supply for link in links for supply in link.supplies.values()])
    refusal = making.unexplained(names & making.names, chain, spans)
    if refusal is not None:
        raise refusal
    return replace(cut, fallback=cut.fallback and _explained(making, cut.fallback))


def _spans_of(supplies: Sequence[Supply]) -> list[Span]:
    """Return the lines of the functions that a cut imports."""
    spans, todo, seen = list[Span](), list(supplies), set[int]()
    while todo:
        supply = todo.pop()
        if isinstance(supply, HelperCut) and id(supply) not in seen:
            seen.add(id(supply))
            spans += supply.extract.spans
            todo += supply.supplies.values()
    return spans


def cut_known(source: Source, model: ModelClass, way: Way) -> ModelCut:
    """Cut a class that `model` says since when there is; a `UsageError` for a missing one says so too."""
    try:
        return cut_model(source, model, way)
    except (NoSuchMember, NoBuffer) as error:
        raise UsageError(
            f"{error}; {model.class_name} has a buffer since {source.package} {model.since}"
        ) from error


def _cut(source: Source, file: SourceFile, model: ModelClass, way: Way, base: ModelCut | None) -> ModelCut:
    return _cut_linked(source, file, model, way, base, STRICT)


def _cut_linked(
    source: Source,
    file: SourceFile,
    model: ModelClass,
    way: Way,
    base: ModelCut | None,
    options: CutOptions,
) -> ModelCut:
    """Cut a class over `base`, and over what else its bases in other files give it."""
    making = _making(source, file, model)
    stand_ins = _stand_ins(model, way, base)
    done = cut_class(
        file,
        making.classes_in(model.member),
        outside=Outside(way.provided, model.parts.reads_too),
        stand_ins=importable(file, model.member) | stand_ins if way.helpers else stand_ins,
        inherited=base.inherited() if base else None,
        verbs=way.verbs,
        options=replace(options, init=way.init),
    )
    files = {model.member} | {link.model.member for link in (base.chain if base else ())}
    for name in sorted((done.lines.keys() & making.names) - HOSTED):
        provider = making.provider(name)
        if provider is not None and provider.member not in files:
            text = f"not driven: {name} is that of {provider.node.name} in {provider.member}"
            raise SourceError(Reason(text, file.filename, making.of.node.lineno))
    if way.helpers:
        supplies = Helpers(source, stand_ins).supply(model.member, file, done.replaced)
    else:
        supplies = stand_ins_of(done.replaced)
    foreign = {name: Unavailable(why) for name, why in done.foreign.items()}
    return ModelCut(source, model, file, done, {**supplies, **foreign}, base)


def _cut_with_fallback(source: Source, file: SourceFile, model: ModelClass, way: Way) -> ModelCut:
    """Cut a class as it is, and once more without the parts that cannot be built, if there are any."""
    try:
        whole: ModelCut | None = _cut_with_helpers(source, file, model, way, options=_FOREIGN)
    except NoBuffer:
        raise
    except UsageError:
        whole = None
    if whole is not None and not _missing(whole):
        lenient = replace(whole.cut, stood_in=frozenset())  # the same, under settings that nobody gave
        return replace(whole, fallback=replace(whole, cut=lenient))
    cut_without = partial(_cut_without, source, file, model, way)
    attributes = allocated(file, model.class_name, way.verbs or {}, way.provided)
    try:
        nothing = _missing(cut_without(attributes))
    except UsageError:
        if whole is None:
            _cut_with_helpers(source, file, model, way, options=_FOREIGN)  # for its own error
            raise
        return whole
    stood_in = {name for name in attributes if not _is_buildable(name, attributes, cut_without, nothing)}
    fallback = cut_without(stood_in)
    return fallback if whole is None else replace(whole, fallback=fallback)


_FOREIGN = CutOptions(may_be_foreign=True)


def _cut_without(
    source: Source, file: SourceFile, model: ModelClass, way: Way, attributes: Collection[str]
) -> ModelCut:
    """Cut a class without the allocation of some attributes."""
    options = replace(_FOREIGN, stood_in=frozenset(attributes))
    return _cut_with_helpers(source, file, model, way, options=options)


def _is_buildable(
    name: str,
    attributes: Collection[str],
    cut_without: Callable[[Collection[str]], ModelCut],
    nothing: frozenset[str],
) -> bool:
    """Tell whether the allocation of one attribute needs no more than the methods, which miss `nothing`."""
    try:
        return not _missing(cut_without(set(attributes) - {name})) - nothing
    except UsageError:
        return False


def _missing(cut: ModelCut) -> frozenset[str]:
    """Return the names in a class and its bases that nothing supplies."""
    unavailable = {name for name, supply in cut.supplies.items() if isinstance(supply, Unavailable)}
    return frozenset(unavailable) | (_missing(cut.base) if cut.base else frozenset())


def _cut_with_helpers(
    source: Source,
    file: SourceFile,
    model: ModelClass,
    way: Way,
    derived: frozenset[ModelClass] = frozenset(),
    options: CutOptions = STRICT,
) -> ModelCut:
    """Cut a class, and before it the class in another file that it has its methods from."""
    base = _imported_base(source, file, model, way, derived, options)
    cut = _cut_linked(source, file, model, way, base, options)
    # `__init__` may call methods of a base in another file, which have to be cut as well.
    names = methods_called({"__init__"}, members_of(class_named(file, model.class_name), file))
    if base is None or not (more := names & cut.cut.names - cut.cut.lines.keys() - HOSTED):
        return cut
    base = _imported_base(source, file, model, way, derived, options, more=more)
    return _cut_linked(source, file, model, way, base, options)


def _stand_ins(model: ModelClass, way: Way, base: ModelCut | None) -> frozenset[str]:
    """Return the imported names that are never looked up in the source."""
    bases = {link.cut.class_name for link in base.chain} if base else set[str]()
    return way.stand_ins | model.parts.stand_ins.keys() | bases


def _imported_base(
    source: Source,
    file: SourceFile,
    model: ModelClass,
    way: Way,
    derived: frozenset[ModelClass],
    options: CutOptions,
    *,
    more: Collection[str] = (),
) -> ModelCut | None:
    """Cut the base class from another file that has the methods which a class lacks; None where none has.

    A class that lacks `way.verbs` needs a base that has all of them.  `derived` are the classes on the way
    here, which a damaged source may name as bases again.  `more` are further methods that it lacks.
    """
    verbs = set((way.verbs or {}).values())
    members = members_of(class_named(file, model.class_name), file)
    if members.keys() >= verbs:
        lacking = methods_called(verbs, members) - members.keys() - HOSTED if way.rehearsed else set()
        return _base_with(source, file, model, {*lacking, *more}, way, derived)
    for there in _bases_elsewhere(file, model, derived):
        with suppress(NoSuchMember, NoBuffer):
            base = source.read(there.member)
            return _cut_with_helpers(source, base, there, way, derived | {model}, options)
    return None


def _bases_elsewhere(
    file: SourceFile, model: ModelClass, derived: frozenset[ModelClass]
) -> Iterator[ModelClass]:
    """Yield the base classes of a class that its file imports from its package."""
    origins = package_imports(file, model.member)
    for base in class_named(file, model.class_name).bases:
        if isinstance(base, ast.Name) and base.id in origins:
            module, real_name = origins[base.id]
            there = replace(model, member=f"{module.replace('.', '/')}.py", class_name=real_name)
            if there != model and there not in derived:
                yield there


def _base_with(
    source: Source,
    file: SourceFile,
    model: ModelClass,
    names: Collection[str],
    way: Way,
    derived: frozenset[ModelClass],
) -> ModelCut | None:
    """Cut the methods `names` out of the first base class from another file that has some of them."""
    for there in _bases_elsewhere(file, model, derived) if names else ():
        with suppress(NoSuchMember, NoBuffer):
            if found := _cut_methods(source, there, names, way, derived | {model}):
                return found
    return None


def methods_called(verbs: Collection[str], members: Members) -> set[str]:
    """Return the methods of the same object that some methods call, also through others."""
    reached, todo = set[str](), set(verbs)
    while todo:
        called = {
            name for each in todo for node in members.get(each, ()) for name in own_methods_called(node)
        }
        todo = called - reached
        reached |= called
    return reached


def _cut_methods(
    source: Source, model: ModelClass, names: Collection[str], way: Way, derived: frozenset[ModelClass]
) -> ModelCut | None:
    """Cut some methods of a base class, and of its own bases; None where it has none of them.

    What they read is allocated by the class that is derived from it.
    """
    file = source.read(model.member)
    members = members_of(class_named(file, model.class_name), file)
    own = {name for name in names if any(isinstance(node, Function) for node in members.get(name, ()))}
    lacking = (set(names) - own) | (methods_called(own, members) - members.keys() - HOSTED)
    base = _base_with(source, file, model, lacking, way, derived)
    if not own:
        return base
    stand_ins = _stand_ins(model, way, base)
    done = cut_class(
        file,
        _making(source, file, model).classes_in(model.member),
        outside=Outside(way.provided),
        stand_ins=importable(file, model.member) | stand_ins,
        inherited=base.inherited() if base else None,
        verbs={name: name for name in sorted(own)},
        options=replace(_FOREIGN, init=False),
    )
    supplies = Helpers(source, stand_ins).supply(model.member, file, done.replaced)
    foreign = {name: Unavailable(why) for name, why in done.foreign.items()}
    return ModelCut(source, model, file, replace(done, of_host={}), {**supplies, **foreign}, base)


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
    """A patch of a source; nothing of it has run.

    `at` is its place, `MEMBER:FIRST-LAST`, and `step_at` that of the plugin's own forward, if there is one.
    """

    of: Patch
    at: str
    step_at: str = ""


def find_patch(source: Source, patch: Patch, model_class: str) -> FoundPatch:
    """Find the patch of a class.

    Raises `UsageError` for what has moved, and `MachineError` where a file cannot be fetched.
    """
    file = source.read(patch.member)
    if patch.function:
        at, step_at = (_function_at(file, patch, name) for name in (patch.function, patch.forward))
        return FoundPatch(patch, at, step_at)
    assignments = [node for node in parse(file).body if _assigns(node, model_class)]
    if not assignments:
        raise UsageError(
            f"{file.filename} assigns to no method of {model_class} that has {STORAGE} in its name"
        )
    return FoundPatch(patch, _place(patch, assignments))


def _assigns(node: ast.stmt, model_class: str) -> bool:
    match node:
        case ast.Assign(targets=[ast.Attribute(value=ast.Name(id=name), attr=attribute)]):
            return name == model_class and STORAGE in attribute
    return False


def _function_at(file: SourceFile, patch: Patch, name: str) -> str:
    """Return the place of a function of the file."""
    node = function_named(file, name)
    if node is None:
        raise UsageError(f"{file.filename} defines no function {name}")
    return _place(patch, [node])


def _place(patch: Patch, nodes: Sequence[ast.stmt]) -> str:
    return f"{patch.member}:{nodes[0].lineno}-{nodes[-1].end_lineno}"


H = TypeVar("H")


class CannotSupply(SourceError):
    """Code of a source used something that only the whole package has."""


class Refused:
    """Stand-in for an object that cannot be supplied; whoever uses it is told why."""

    def __init__(self, why: Reason) -> None:
        """Take the reason, with file and line."""
        self._why = why

    def __call__(self, *_: object, **__: object) -> NoReturn:
        """Raise `CannotSupply`."""
        raise CannotSupply(self._why)

    def __getattr__(self, name: str) -> NoReturn:
        """Raise `CannotSupply`."""
        raise CannotSupply(self._why)


def define_model(model: ModelCut, host: type[H], stand_ins: Mapping[str, object]) -> type[H]:
    """Define a cut class, and before it the class that it is derived from, over `host`.

    `stand_ins` has the objects that replace imported names.  Raises `UsageError` with file and
    line when that needs the whole package, or an attribute that neither class nor host has.
    """
    base, known = host, dict(stand_ins)
    if model.base is not None:
        base = define_model(model.base, host, stand_ins)
        known |= {each.__name__: each for each in base.__mro__}
    for name, why in model.cut.of_host.items():
        if name not in dir(base):
            raise SourceError(why)
    show_in_tracebacks(model.file)
    names = _objects(model.supplies, known, {})
    defined = define_name(model.cut.code, model.cut.class_name, **{HOST: base}, **names)
    if not (isinstance(defined, type) and issubclass(defined, host)):
        raise SourceError(Reason(f"not driven: {model.cut.class_name} is no class", model.file.filename))
    return defined


def define_function(function: HelperCut, stand_ins: Mapping[str, object], **more: object) -> Any:  # noqa: ANN401
    """Define a function that was cut out of a file; `more` are further names that its code finds.

    Raises `UsageError` with file and line when that needs the whole package.
    """
    show_in_tracebacks(function.file)
    names = _objects(function.supplies, stand_ins, {})
    return define_name(function.extract.code, function.name, **{**names, **more})


def _decorated(make: Callable[[], Callable[[object], object]]) -> Callable[[object], object]:
    """Return a decorator of cut code, which does nothing where it cannot be supplied."""

    def apply(function: object) -> object:
        try:
            return make()(function)
        except CannotSupply:
            return function

    return apply


def _default(make: Callable[[], object]) -> object:
    """Return the default of an argument of cut code; whoever uses one that is not there is told why."""
    try:
        return make()
    except CannotSupply as error:
        return Refused(error.reason)


_numbers = itertools.count()


def define_name(code: CodeType, name: str, /, **names: object) -> Any:  # noqa: ANN401  # its user knows its type
    """Execute `code`, where `names` are known, and return what it binds to `name`.

    Raises `UsageError` with file and line when that needs the whole package.
    """
    # A module that can be looked up: `dataclass` reads annotations there, and Dynamo the names of guards.
    module = ModuleType(f"{__name__}.cut{next(_numbers)}")
    sys.modules[module.__name__] = module
    known = vars(module)
    known |= {DECORATED: _decorated, DEFAULT: _default, **names}
    try:
        exec(code, known)
    except Exception as error:
        text = f"{name} cannot be defined without the rest of its package: {error}"
        raise SourceError(reason_at(error, code.co_filename, text)) from error
    return known[name]


def show_in_tracebacks(file: SourceFile) -> None:
    """Let tracebacks quote the lines that were compiled, also when they lie inside a wheel.

    Without a modification time linecache never drops the entry.
    """
    lines = file.text.splitlines(keepends=True)
    linecache.cache[file.filename] = (len(file.text), None, lines, file.filename)


def reason_at(error: Exception, filename: str, text: str) -> Reason:
    """Return a reason with the place of the innermost frame of `error` in `filename`."""
    frames = traceback.walk_tb(error.__traceback__)
    lines = [line for frame, line in frames if frame.f_code.co_filename == filename]
    return Reason(text, filename, lines[-1] if lines else None)


def _objects(
    supplies: Mapping[str, Supply], stand_ins: Mapping[str, object], made: dict[HelperCut, object]
) -> dict[str, object]:
    """Make the objects that stand behind imported names; `made` has the functions that there are already."""
    return {bound: _object(supply, stand_ins, made) for bound, supply in supplies.items()}


def _object(supply: Supply, stand_ins: Mapping[str, object], made: dict[HelperCut, object]) -> object:
    match supply:
        case StandIn(name):
            return stand_ins[name]
        case Unavailable(why):
            return Refused(why)
        case HelperCut():
            if supply not in made:
                made[supply] = _function(supply, stand_ins, made)
            return made[supply]


def _function(helper: HelperCut, stand_ins: Mapping[str, object], made: dict[HelperCut, object]) -> object:
    show_in_tracebacks(helper.file)
    names = _objects(helper.supplies, stand_ins, made)
    try:
        return define_name(helper.extract.code, helper.name, **names)
    except UsageError as error:
        return Refused(Reason(f"{helper.name} cannot be supplied: {error}"))
