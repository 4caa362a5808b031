"""The facts of one engine: how its sources are recognised, and where its deepstack classes lie."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from deepstack_harness.contract.rules import Rule
from deepstack_harness.engines.class_facts import STORAGE
from deepstack_harness.engines.discover import ArgumentFiles, ModelFiles, SplitFiles
from deepstack_harness.engines.model_class import (
    BY_FORWARD,
    PLAIN_PARTS,
    EngineParts,
    ModelClass,
    Patch,
    Way,
)
from deepstack_harness.engines.tiny import Tiny
from deepstack_harness.sources.source import KnownPackage


@dataclass(frozen=True)
class Overlay:
    """A plugin over the classes of another engine.

    `patches` has what it does to each class, by the class's name, also to those that are derived from it.
    `reads_too` are the attributes of a model that it reads.
    `pinned_in` are files of the plugin that say which version it is made for.  With `splits` the plugin gives
    each rank that shares a step its own rows.  With `base_storage` a payload stays where the base puts it:
    what the base is known to break is known of the plugin too.
    """

    base: "KnownEngine"
    patches: Mapping[str, Patch]
    reads_too: frozenset[str] = frozenset()
    pinned_in: tuple[str, ...] = ()
    splits: bool = False
    base_storage: bool = False

    @property
    def files(self) -> ModelFiles:
        """The place of the model files of the base, with what the plugin reads of a model."""
        parts = replace(self.base.parts, reads_too=self.reads_too)
        return replace(self.base.files, parts=parts)


@dataclass(frozen=True)
class KnownEngine:
    """An engine whose source can be judged.

    `by_methods` has the model classes that are driven by their get, set and clear, and
    `by_forward` those that are driven by `embed_input_ids` and `forward`, by the name of their
    family.  `how` says how a payload is set, read and cleared, for `list engines`.  `since` is the first
    release that has a deepstack class.  `parts` are the names and settings
    that its classes need.  With `systems` a source has placeholder ranges and dual-stream helpers too.

    `overlay` is there for a plugin that changes classes of another engine.  `argument` is there for an engine
    whose payload is an argument; then `by_argument` names the text model of each family.  `cannot_ask` says
    why a rule cannot be asked of the engine's classes.

    `split` is there for an engine that splits a payload over ranks, and is judged by that alone.

    `by_path` says why only files on disk can be judged, for an engine without releases on the package index.
    `payload_argument` and `forward` are those of `ModelFiles`.  `needs` has, by the name of a
    class, what a checkpoint has to have before the class carries a payload, where no published one is known
    to.  `tiny` has the classes that are made by their own `__init__` too (`audit --construct`), and
    `surroundings` is the module that has what the engine puts around a model.
    """

    package: KnownPackage
    folder: str
    word: str
    since: str
    how: str
    by_methods: Mapping[str, ModelClass] = field(default_factory=dict)
    by_forward: Mapping[str, ModelClass] = field(default_factory=dict)
    parts: EngineParts = PLAIN_PARTS
    systems: bool = False
    overlay: Overlay | None = None
    argument: ArgumentFiles | None = None
    by_argument: Mapping[str, str] = field(default_factory=dict)
    cannot_ask: Mapping[Rule, str] = field(default_factory=dict)
    split: SplitFiles | None = None
    by_path: str = ""
    payload_argument: str = STORAGE
    forward: Way | None = BY_FORWARD
    needs: Mapping[str, str] = field(default_factory=dict)
    tiny: Mapping[str, Tiny] = field(default_factory=dict)
    surroundings: str = ""

    @property
    def files(self) -> ModelFiles:
        """The place of the model files, for `discover`."""
        known = {**self.by_methods, **self.by_forward}
        return ModelFiles(
            self.folder,
            self.word,
            tuple(known.values()),
            self.parts,
            self.payload_argument,
            self.forward,
        )
