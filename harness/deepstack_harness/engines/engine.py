"""The facts of one engine: how its sources are recognised, and where its deepstack classes lie."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from deepstack_harness.contract.rules import Rule
from deepstack_harness.engines.class_facts import STORAGE
from deepstack_harness.engines.discover import ArgumentFiles, SplitFiles
from deepstack_harness.engines.model_class import (
    BY_FORWARD,
    PLAIN_PARTS,
    CalledMethods,
    EngineParts,
    ModelClass,
    Patch,
)
from deepstack_harness.engines.syntax import function_hashes
from deepstack_harness.engines.tiny import Tiny
from deepstack_harness.sources.source import KnownPackage, Source


@dataclass(frozen=True)
class StoredPayload:
    """A payload that model classes store in a buffer of theirs.

    `by_methods` has the classes whose get, set and clear are called, and `by_forward` those whose
    `embed_input_ids` and `forward` are called, by the name of their family. `parts` are the names and
    settings that the classes need. `payload_argument` is the argument by which a class passes its payload to
    its language model. `forward` are the methods by which a class is called in the engine's order; None where
    it never is.
    """

    by_methods: Mapping[str, ModelClass]
    by_forward: Mapping[str, ModelClass] = field(default_factory=dict)
    parts: EngineParts = PLAIN_PARTS
    payload_argument: str = STORAGE
    forward: CalledMethods | None = BY_FORWARD

    @property
    def known(self) -> tuple[ModelClass, ...]:
        """The classes of which more is known than their names."""
        return tuple({**self.by_methods, **self.by_forward}.values())


@dataclass(frozen=True)
class Overlay:
    """A plugin over the classes of another engine, `base`, whose payload is stored.

    `patches` has what it does to each class, by the class's name, also to those that are derived from it.
    `reads_too` are the attributes of a model that it reads.
    `pinned_in` are files of the plugin that pin the version of the base. With `splits` the plugin gives each
    rank that shares a step its own rows. With `base_storage` a payload stays where the base puts it: what
    the base is known to break is known of the plugin too.
    """

    base: "KnownEngine"
    patches: Mapping[str, Patch]
    reads_too: frozenset[str] = frozenset()
    pinned_in: tuple[str, ...] = ()
    splits: bool = False
    base_storage: bool = False


@dataclass(frozen=True)
class RunnerInputs:
    """Arguments of every model whose presence the runner decides for a model and a rank.

    That was read in `releases`. `deciding` has, by its name `module.Class.method`, the texts of each function
    that decides it there: the first 16 digits of what `function_hashes` returns.
    """

    names: frozenset[str]
    releases: str
    deciding: Mapping[str, frozenset[str]]

    def not_read_in(self, source: Source) -> list[str]:
        """Return the deciding functions that a source has not, or with another text, by their names.

        Raises what `function_hashes` raises.
        """
        hashes = function_hashes(source, self.deciding)
        return [name for name, known in self.deciding.items() if hashes.get(name, "")[:16] not in known]


@dataclass(frozen=True)
class KnownEngine:
    """An engine whose source can be judged.

    `payload` is one of four types, by what the engine does with a payload: it stores it, passes it as an
    argument, splits it over ranks (and only that is judged), or changes what another engine does. `how` is
    the same in words, for `list engines`. `calls` is the object, MODULE:NAME, that makes its classes run
    (`engines.calls.EngineCalls`); it needs torch, so it is imported when a class is made.
    `folder` is searched for classes in files that have `word`.  `since` is the first release that has a
    deepstack class.  With `systems` a source has placeholder ranges and dual-stream helpers too.

    `inapplicable` has the rules that do not apply to the engine's classes, each with the reason. `by_path` is
    the reason why only files on disk can be judged, for an engine without releases on the package index.
    `needs` has, by the name of a class, what a checkpoint has to have before the class carries a payload,
    where no published one is known to.  `tiny` has the classes that are made by their own `__init__` too
    (`audit --construct`), and `surroundings` is the module that has what the engine puts around a model.
    """

    package: KnownPackage
    folder: str
    word: str
    since: str
    how: str
    payload: StoredPayload | ArgumentFiles | SplitFiles | Overlay
    calls: str = "deepstack_harness.engines.calls:VLLM_CALLS"
    systems: bool = False
    inapplicable: Mapping[Rule, str] = field(default_factory=dict)
    by_path: str = ""
    needs: Mapping[str, str] = field(default_factory=dict)
    tiny: Mapping[str, Tiny] = field(default_factory=dict)
    surroundings: str = ""

    @property
    def by_methods(self) -> Mapping[str, ModelClass]:
        """The model classes that have get, set and clear, by family; none where nothing is stored."""
        return self.payload.by_methods if isinstance(self.payload, StoredPayload) else {}

    @property
    def by_forward(self) -> Mapping[str, ModelClass]:
        """The model classes whose forward is called, by family; none where nothing is stored."""
        return self.payload.by_forward if isinstance(self.payload, StoredPayload) else {}

    @property
    def overlay(self) -> Overlay | None:
        """The changes of a plugin to another engine; None for an engine of its own."""
        return self.payload if isinstance(self.payload, Overlay) else None

    @property
    def files(self) -> StoredPayload:
        """The model classes that store a payload; of a plugin those of its base.

        Raises `TypeError` for an engine that stores no payload.
        """
        payload = self.payload
        if isinstance(payload, Overlay):
            base = payload.base.files
            return replace(base, parts=replace(base.parts, reads_too=payload.reads_too))
        if not isinstance(payload, StoredPayload):
            raise TypeError(f"{self.package.title} stores no payload in a class")
        return payload
