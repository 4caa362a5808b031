"""Definitions of the classes of an engine: each engine names one such object (`KnownEngine.calls`)."""

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from typing import Protocol, TypeVar, runtime_checkable

from deepstack_harness.engines.argument_parts import Hosts, load_parts
from deepstack_harness.engines.bind import ArgumentClass, DefinedClass, MakeEngine
from deepstack_harness.engines.bound_class import ForwardClass, MethodsClass
from deepstack_harness.engines.discover import SINCE, ArgumentModel, FoundClass
from deepstack_harness.engines.engine import KnownEngine
from deepstack_harness.engines.load import LoadedSource, loaded_of
from deepstack_harness.engines.loaded_class import construct, define_by_forward
from deepstack_harness.engines.model_class import BY_METHODS, CalledMethods, ModelClass
from deepstack_harness.engines.stand_ins import Host
from deepstack_harness.engines.text_decoder import TextFamily, text_family
from deepstack_harness.errors import Reason, UsageError, reason_of
from deepstack_harness.sources.source import Source

B = TypeVar("B", MethodsClass, ForwardClass)


@runtime_checkable
class EngineCalls(Protocol):
    """Definition of the classes of one engine, in the process that runs their code."""

    def define(self, source: Source, found: FoundClass, engine: KnownEngine) -> DefinedClass:
        """Define a class in each way in which it can be called, with the reasons why others are missing."""
        ...


@runtime_checkable
class SharesSteps(Protocol):
    """The calls of an engine whose ranks share a step."""

    def as_rank(self, rank: int, ranks: int) -> AbstractContextManager[None]:
        """Be one of some ranks for a while."""
        ...


def model_of(found: FoundClass, engine: KnownEngine) -> ModelClass:
    """Return what is known of a class that stores a payload: by its name, or no more than its place."""
    known = {model.class_name: model for model in engine.files.known}
    plain = ModelClass(found.member, found.class_name, SINCE)
    return replace(known.get(found.class_name, plain), member=found.member, parts=engine.files.parts)


@dataclass(frozen=True)
class BufferCalls:
    """Definition of classes that store a payload; see `EngineCalls`.

    `kind` knows the settings of the engine, and classes are derived from `host`.  `libraries` has objects by
    their dotted names, in the place of attributes of libraries that are missing, and `names` those in the
    place of names of any module.
    """

    kind: type[MethodsClass] = MethodsClass
    host: type[Host] = Host
    names: Mapping[str, object] | None = None
    libraries: Mapping[str, object] = field(default_factory=dict)

    def define(self, source: Source, found: FoundClass, engine: KnownEngine) -> DefinedClass:
        """Define a class by its methods, by its forward, and with its text model.

        Raises what `Source.python_files` raises.
        """
        return self.define_as(source, found, model_of(found, engine), engine.files.forward)

    def define_as(
        self, source: Source, found: FoundClass, model: ModelClass, called: CalledMethods | None
    ) -> DefinedClass:
        """Define a class of which `model` is known; by its forward too with the methods `called`."""
        loaded = loaded_of(source)
        refusals: list[Reason] = []

        def defined(define: Callable[[], B]) -> B | None:
            try:
                return define()
            except UsageError as error:
                refusals.append(reason_of(error))
                return None

        methods = defined(lambda: self.by_methods(loaded, model))
        forward = defined(lambda: define_by_forward(loaded, model, called)) if called else None
        text: TextFamily | str = found.text if isinstance(found.text, str) else ""
        if isinstance(forward, ForwardClass) and not isinstance(found.text, str):
            try:
                text = text_family(loaded, forward, found.text)
            except UsageError as error:
                text = str(error)
        return DefinedClass(source, found, methods, forward, tuple(refusals), text=text)

    def by_methods(self, loaded: LoadedSource, model: ModelClass) -> MethodsClass:
        """Define a class by its get, set and clear, and rehearse it; raise `UsageError` where that fails."""
        with loaded.without_stubs():
            loaded.absent.values.update(self.libraries)
            bound = self.kind(*construct(loaded, model, BY_METHODS, self.names).derive(self.host))
            bound.rehearse()
            return bound


VLLM_CALLS = BufferCalls()
"""Those of vLLM, and of its forks."""


@dataclass(frozen=True)
class ArgumentCalls:
    """Definition of text models that are given a payload, with the engine around them; see `EngineCalls`.

    `make`, `kinds` are those of `ArgumentClass`, and `hosts` those of `load_parts`.
    """

    make: MakeEngine
    kinds: tuple[type, ...]
    hosts: Hosts

    def define(self, source: Source, found: FoundClass, engine: KnownEngine) -> DefinedClass:
        """Define a text model and rehearse it."""
        assert isinstance(found.methods, ArgumentModel)
        refusals = (found.forward,) if isinstance(found.forward, Reason) else ()
        try:
            loaded = loaded_of(source)
            bound = ArgumentClass(load_parts(loaded, found.methods, self.hosts), self.make, self.kinds)
            with loaded.without_stubs():
                graphs = bound.rehearse()
        except UsageError as error:
            return DefinedClass(source, found, refusals=(*refusals, reason_of(error)))
        return DefinedClass(source, found, bound, refusals=refusals, graphs=graphs)
