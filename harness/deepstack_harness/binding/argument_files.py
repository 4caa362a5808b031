"""The parts of an engine whose payload is an argument of its text model: where they lie, and what was cut."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from deepstack_harness.binding.cut_helpers import HelperCut
from deepstack_harness.binding.cut_model import ModelClass, ModelCut, Way

SINCE = "this release"


@dataclass(frozen=True)
class ClassPart:
    """Methods of one class that an engine is driven by: the names that are cut, and those that are given.

    `settings` are the engine's options that lead to the class, where they are not those of its orders, and
    `note` is a sentence about the class for whoever reads a verdict about it.
    """

    member: str
    class_name: str
    way: Way
    settings: str = ""
    note: str = ""

    @property
    def model(self) -> ModelClass:
        """The class, as `cut_model` takes it."""
        return ModelClass(self.member, self.class_name, SINCE)


@dataclass(frozen=True)
class Writer:
    """The function that writes the payload of a step; `given` are names of ours in the place of its own."""

    member: str
    function: str
    stand_ins: frozenset[str]
    given: frozenset[str]


@dataclass(frozen=True)
class ArgumentFiles:
    """The places of an engine whose payload is the argument `argument` of its text models.

    `text` says how a text model is cut, `wrapper` is the class that the writer asks about a payload, and
    `replay` has the runners, newest first, or is a sentence that says why there is none.  `slots` is the file
    that registers the inputs of a captured graph by their names.  `members` are the files of text models,
    where they do not lie right in `folder`.  A class is judged if its method `adds` is given `argument` and
    reads `self.KEEPS`.
    """

    argument: str
    folder: str
    text: Way
    replay: tuple[ClassPart, ...] | str
    wrapper: ClassPart | None = None
    writer: Writer | None = None
    slots: str = ""
    members: tuple[str, ...] = ()
    adds: str = "forward"
    keeps: str = "layers"


@dataclass(frozen=True)
class ArgumentCut:
    """One text model of a source with its engine around it, cut and compiled.

    An engine whose text models are given mask and levels as they come has neither `wrapper` nor `writer`.
    `replay` is a sentence where the source has no runner that can be driven; `replay_verbs` names its
    methods: `get` captures the text model, and is missing where no graph stands in for the model; `set` runs
    a step that replays it.  `has_slot` says that the payload is registered as an input of captured graphs.
    `replayed_at` is the place of the replay, `MEMBER:FIRST-LAST`, and `replay_settings` and
    `replay_note` are the settings and the note of the runner.
    """

    text: ModelCut
    wrapper: ModelCut | None
    writer: HelperCut | None
    replay: ModelCut | str
    argument: str
    replay_verbs: Mapping[str, str] = field(default_factory=dict)
    has_slot: bool = False
    replayed_at: str = ""
    replay_settings: str = ""
    replay_note: str = ""
