"""The list of engines: open a source of one of them, and find its classes again.

`ENGINES` are ours; `all_engines` has those of other installed packages too, which are declared under
`deepstack_harness.engines`.

`open_source` opens what a user names: a release, a wheel, a tree, or the bare name of an engine's package,
which becomes its newest release. A plugin needs a base source as well, whose classes it changes: the one
that a user names, or the release that the plugin pins. `find_classes` finds the deepstack classes of a
source by the kind of its engine; for a plugin these are the classes of its base, each with its patch.

`NOT_JUDGED` has the engines that carry deepstack and whose sources cannot be judged, each with the reason.
Their payloads were read in releases and repositories of August to November 2026.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import cache, lru_cache
from pathlib import Path
from types import MappingProxyType

from packaging.utils import canonicalize_name
from packaging.version import Version
from typing_extensions import TypeIs

from deepstack_harness.contract.names import Entry, Names
from deepstack_harness.engines.discover import (
    ArgumentFiles,
    Finder,
    FoundClass,
    SplitFiles,
    collector_paused,
    depth_limited,
    find_argument_models,
    find_splitters,
)
from deepstack_harness.engines.engine import KnownEngine, Overlay
from deepstack_harness.engines.kinds.fastdeploy import FASTDEPLOY
from deepstack_harness.engines.kinds.marked_engines import LMDEPLOY, TRANSFORMERS
from deepstack_harness.engines.kinds.sglang import SGLANG
from deepstack_harness.engines.kinds.splitters import SPLITTING
from deepstack_harness.engines.kinds.tensorrt import TENSORRT_LLM
from deepstack_harness.engines.kinds.tpu_inference import TPU_INFERENCE
from deepstack_harness.engines.kinds.vllm import VLLM
from deepstack_harness.engines.kinds.vllm_ascend import VLLM_ASCEND
from deepstack_harness.engines.kinds.vllm_omni import VLLM_OMNI
from deepstack_harness.engines.model_class import ModelClass, find_patch
from deepstack_harness.engines.syntax import NoBuffer, class_named
from deepstack_harness.errors import Reason, UsageError, reason_of, unknown_name
from deepstack_harness.sources.request import (
    OVER,
    Overlaid,
    PathRequest,
    Release,
    ReleaseRequest,
    locate,
    parse_source,
    split_over,
)
from deepstack_harness.sources.source import KnownPackage, NoSuchMember, Source

_OVERLAY = "it changes the forward of a vLLM class, and nobody has written how its runner gives the rows"
_ARGUMENT = "the payload is an argument, and nobody has written how its writer and its layers are called"
_NOT_PYTHON = "its decoder is no Python"

NOT_JUDGED: Mapping[str, str] = MappingProxyType(
    {
        "vllm-gaudi": f"{_OVERLAY}; it has no release on a package index",
        "vllm-rbln": "the payload is an input of a graph that the vendor's own compiler makes",
        "optimum-rbln": "the payload is an input of a graph that the vendor's own compiler makes",
        "sglang-omni": _ARGUMENT,
        "rtp-llm": f"{_ARGUMENT}; it has no release on a package index",
        "lightllm": "its payload is added by a Triton kernel out of an image cache",
        "mlx-vlm": "its payload is an argument of MLX arrays, whose semantics are not those of torch",
        "atom": "it has no deepstack of its own; its plugin for SGLang copies SGLang's argument",
        "ktransformers": "nobody has read it",
        "exllamav3": "nobody has read it",
        "llama-cpp": _NOT_PYTHON,
        "xllm": _NOT_PYTHON,
        "mnn": _NOT_PYTHON,
        "onnxruntime-genai": _NOT_PYTHON,
        "mistral-rs": _NOT_PYTHON,
    }
)
"""Normalised package name -> why it cannot be judged."""


def pinned_version(plugin: Source, engine: KnownEngine) -> Version | None:
    """Return the release of the base that a plugin's metadata or build files name; None where none does.

    Raises `MachineError` where a file cannot be fetched.
    """
    overlay = engine.overlay
    assert overlay is not None
    wanted = re.compile(
        _PINNED.format(name=re.escape(overlay.base.package.name)), re.MULTILINE | re.IGNORECASE
    )
    metadata = ("PKG-INFO", f"{engine.package.module}-{plugin.version}.dist-info/METADATA")
    for member in (*metadata, *overlay.pinned_in):
        try:
            pin = wanted.search(plugin.read(member).text)
            if pin:
                return Version(pin["required"] or pin["tag"])
        except (UsageError, ValueError):  # no such file, no text, no version: try the next file
            continue
    return None


_PINNED = (
    r"^(?:Requires-Dist:\s*)?{name}\s*\(?==\s*(?P<required>[^\s,;)*]+)\)?\s*(?:;.*)?$"
    r"|^ARG\s+{name}_TAG=v?(?P<tag>[0-9]\S*)\s*$"
)
"""A requirement of exactly one version, or the tag that a Dockerfile checks out."""


ENGINES: tuple[KnownEngine, ...] = (
    VLLM,
    VLLM_OMNI,
    SGLANG,
    TRANSFORMERS,
    LMDEPLOY,
    FASTDEPLOY,
    TENSORRT_LLM,
    *SPLITTING,
    TPU_INFERENCE,
    VLLM_ASCEND,
)
"""Our engines."""
DECLARED = Names(
    "engine",
    {engine.package.name: Entry("deepstack_harness.engines.known:ENGINES", engine.how) for engine in ENGINES},
    "engines",
)
"""Names of engines, with those of other installed packages; an entry point has the name of its package."""
RELEASED: tuple[KnownEngine, ...] = tuple(engine for engine in ENGINES if not engine.by_path)
"""The engines whose releases are on the package index."""


@cache
def all_engines() -> tuple[KnownEngine, ...]:
    """Return our engines, then those of other installed packages that can be loaded.

    Only here are the packages imported: a source tree is recognised by the `mark` of its engine.
    """
    others = map(declared_engine, (name for name in DECLARED if name not in DECLARED.own))
    return (*ENGINES, *(engine for engine in others if not isinstance(engine, Reason)))


def declared_engine(name: str) -> KnownEngine | Reason:
    """Return the engine that another installed package declares, or the reason why it cannot be used."""
    try:
        engine = DECLARED.load(name, _is_engine, "a deepstack_harness.engines.engine.KnownEngine")
    except UsageError as error:
        return reason_of(error)
    if engine.package.name != name:
        return Reason(
            f"engine '{name}' is an entry point for package '{engine.package.name}': give it that name"
        )
    return engine


def _is_engine(loaded: object) -> TypeIs[KnownEngine]:
    return isinstance(loaded, KnownEngine)


def open_source(text: str) -> Source:
    """Return the source that a user names: `vllm==0.22.1`, `installed:vllm`, or a path.

    `PLUGIN over BASE` names both sources of a plugin; without a base the plugin's files have to pin one.
    Raises `UsageError` for what is no source, for a package that is not among `all_engines`, and for a
    base of what is no plugin; `MachineError` where a file that may pin a base cannot be fetched.
    """
    named, base_named = split_over(text)
    source = locate_source(named)
    engine = engine_of(source)
    title = engine.package.title
    if engine.overlay is None:
        if base_named is not None:
            raise UsageError(f"'{text}': {title} changes no classes of another package")
        return source
    package = engine.overlay.base.package
    if base_named is None:
        version = pinned_version(source, engine)
        if version is None:
            raise UsageError(
                f"'{named}': {title} changes classes of {package.title}, and pins no version of it: give "
                f"--base {package.name}==VERSION, or write '{named}{OVER}{package.name}==VERSION'"
            )
        base: Source = Release(package, version)
    else:
        base = locate_source(base_named)
    if base.package != package.name:
        raise UsageError(f"'{named}': {title} changes classes of {package.title}, not of {base.label}")
    return Overlaid(source, engine.package.module, base)


def locate_source(text: str) -> Source:
    """Return the source that `text` names, of a plugin without its base; raise what `open_source` raises."""
    request = parse_source(text)
    if not isinstance(request, PathRequest) and request.package in DECLARED:
        engine = None if request.package in DECLARED.own else declared_engine(request.package)
        if isinstance(engine, Reason):
            raise UsageError(f"'{text}': {engine}")
    if not isinstance(request, PathRequest) and request.package in NOT_JUDGED:
        raise UsageError(f"'{text}': {request.package} cannot be called: {NOT_JUDGED[request.package]}")
    if isinstance(request, ReleaseRequest):
        refuse_release(text, request.package)
    return locate(text, [engine.package for engine in all_engines()])


def refuse_release(text: str, package: str) -> None:
    """Raise `UsageError` where the index has no release of a package that is the engine."""
    for engine in all_engines():
        if engine.package.name == package and engine.by_path:
            raise UsageError(
                f"'{text}': {engine.package.title} can only be judged by path, since {engine.by_path}: "
                "give a source tree"
            )


def open_alone(text: str) -> Source:
    """Return a source whose classes can be called without another one; raise `UsageError` for a plugin's."""
    source = open_source(text)
    overlay = engine_of(source).overlay
    if overlay is not None:
        raise UsageError(
            f"{source.label} changes classes of {overlay.base.package.title}: "
            "'audit --source SOURCE' judges them by every rule"
        )
    return source


def engine_of(source: Source) -> KnownEngine:
    """Return the engine of a source that `open_source` opened."""
    return next(engine for engine in all_engines() if engine.package.name == source.package)


def newest_release(package: KnownPackage) -> str:
    """Return `PACKAGE==VERSION`: the final release, not yanked, that pip would install on this Python.

    The package index is queried. Raises `MachineError` where no such release can be seen, `UsageError` for an
    engine whose releases are not there.
    """
    refuse_release(package.name, package.name)
    # Not at the top: the clients for an index take longer to import than a local source to bind.
    from deepstack_harness.sources.index import Index

    return f"{package.name}=={Index(package).newest()}"


def newest_source(package: KnownPackage) -> str:
    """Return the newest release as a source: of a plugin that pins no base, over the newest base.

    Raises `MachineError` where a release cannot be seen.
    """
    text = newest_release(package)
    overlay = next(engine.overlay for engine in all_engines() if engine.package == package)
    if overlay is None:
        return text
    try:
        open_source(text)
    except UsageError:
        return f"{text}{OVER}{newest_release(overlay.base.package)}"
    return text


def named_package(text: str) -> KnownPackage | None:
    """Return the package whose bare name `text` is; None for anything else, and for a path that exists.

    A checkout of vLLM has a folder `vllm`, so that a path wins over the name.
    """
    named = [engine.package for engine in all_engines() if engine.package.name == canonicalize_name(text)]
    return named[0] if named and not Path(text).exists() else None


def find_patched(
    source: Source, overlay: Overlay, wanted: Callable[[str, str], bool] = lambda *_: True
) -> list[FoundClass]:
    """Find every class of the base that the plugin changes, derived ones too, with its patch.

    A class has the patch of its nearest base that has one, or the reason why that patch is not there. A
    patched class that the base source does not have is refused. Raises `UsageError` for a file that does not
    parse, and `MachineError` where one cannot be fetched.
    """
    finder = finder_of(source)
    found = {item.model_class: item for item in finder.found()}
    changed = []
    for item in found.values():
        if not wanted(item.model_class, item.member):
            continue
        lineage = (item.model_class, *finder.derived_from(item.model_class))
        if (name := next((name for name in lineage if name in overlay.patches), None)) is None:
            continue
        try:
            changed.append(replace(item, patch=find_patch(source, overlay.patches[name], name)))
        except UsageError as error:
            changed.append(replace(item, methods=reason_of(error), forward=reason_of(error)))
    for name, patch in overlay.patches.items():
        if found and name not in found and wanted(name, patch.member):
            text = f"{source.label} has no class {name} that keeps a deepstack payload"
            why = Reason(f"{text}, which {patch.member} changes")
            changed.append(FoundClass(name, patch.member, why, why))
    return changed


def find_classes(source: Source, wanted: Callable[[str, str], bool] = lambda *_: True) -> list[FoundClass]:
    """Find the deepstack classes of a source that are `wanted`, by name and file; nothing of it runs.

    Raises `UsageError` for a file that does not parse, and
    `MachineError` where one cannot be fetched.
    """
    engine = engine_of(source)
    if isinstance(engine.payload, ArgumentFiles):
        found = find_argument_models(source, engine.payload)
    elif isinstance(engine.payload, SplitFiles):
        found = find_splitters(source, engine.payload)
    else:
        with collector_paused(), depth_limited(source):
            if engine.overlay is not None:
                return find_patched(source, engine.overlay, wanted)
            return finder_of(source).found(wanted)
    return [item for item in found if wanted(item.model_class, item.member)]


@lru_cache(maxsize=4)
def finder_of(source: Source) -> Finder:
    """Return what finds the classes of a source whose engine stores its payload in classes."""
    engine = engine_of(source)
    base, stored = engine.overlay.base if engine.overlay else engine, engine.files
    return Finder(source, base.folder, base.word, stored.parts, stored.payload_argument)


def found_named(source: Source, model_class: str) -> FoundClass | None:
    """Find one deepstack class of a source, with the text model that it passes its payload to.

    None where there is none.  Raises what `find_classes` raises.
    """
    engine = engine_of(source)
    if isinstance(engine.payload, ArgumentFiles | SplitFiles):
        return next(iter(find_classes(source, lambda name, _: name == model_class)), None)
    with collector_paused(), depth_limited(source):
        found = finder_of(source).found_named(model_class)
    if engine.overlay is None:
        return found
    patched = next(iter(find_classes(source, lambda name, _: name == model_class)), None)
    return patched and replace(patched, text=found.text if found else "")


def family_class(source: Source, family: str = "qwen3_vl") -> ModelClass:
    """Return the class that has the get, set and clear of a family; its file is there.

    Raises `UsageError` about what is missing when this source has no such buffer, `MachineError` when the
    source cannot be fetched.
    """
    engine = engine_of(source)
    if isinstance(engine.payload, ArgumentFiles | SplitFiles):
        raise UsageError(
            f"{source.label} has no get, set and clear to call, its payload is an argument: "
            "'audit --source SOURCE' judges it"
        )
    models = engine.by_methods
    # A variant such as `qwen3_vl:2b` changes our decoder and not the engine's class.
    name = family.partition(":")[0]
    if name not in models:
        raise unknown_name("model", family, models)
    model = replace(models[name], parts=engine.files.parts)
    with since_stated(source, model), depth_limited(source):
        class_named(source.read(model.member), model.class_name)
    return model


@contextmanager
def since_stated(source: Source, model: ModelClass) -> Iterator[None]:
    """Add to the error for a class without a buffer since which release there is one."""
    try:
        yield
    except (NoSuchMember, NoBuffer) as error:
        raise UsageError(
            f"{error}; {model.class_name} has a buffer since {source.package} {model.since}"
        ) from error
