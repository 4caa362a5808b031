"""Make a class of an engine by its own `__init__`, with its own layers, from a tiny configuration.

It is a second opinion on classes that are otherwise furnished (`engines.bound_class`): nothing of the class
is left out, and the engine's own decorator compiles it.  It needs a configuration for each class (`Tiny`),
and for each engine what surrounds a model on one rank (`play.constructed_work.ModelSurroundings`).
Parts that change no payload are replaced: towers are empty, attention returns its query, experts their input.
Attention to an encoder adds a mean, since there the payload is what it reads.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

HIDDEN = 32
"""The hidden size of constructed classes: four heads of eight, the smallest that rotary embeddings take."""


class Config(SimpleNamespace):
    """A configuration of Hugging Face; an attribute that it does not have raises, as there.

    >>> Config(text_config=Config(hidden_size=32)).get_text_config().hidden_size
    32
    """

    def get_text_config(self, *_: object, **__: object) -> "Config":
        """Return the part about the language model, or this one where that is all."""
        text: Config = getattr(self, "text_config", self)
        return text


Inputs = Callable[[Any, Any, Any], Mapping[str, object]]
"""Return what a step passes to `forward`, given the model, a tensor of token ids, and the payload or None.

In a profile run all ids are 0.
"""


@dataclass(frozen=True)
class Tiny:
    """A class of an engine, and the smallest configuration in which its payload has an influence.

    `member` is its file.  `config` makes the configuration, given the module.  A row of the payload has
    `levels` times the hidden size, after `main` columns that are no levels.  `towers` are names of the module
    that are replaced by an empty module.  A `routed` class sends tokens to experts.  `inputs` are those of a
    class whose payload does not come by `embed_input_ids` and its media; `argument` is the compiled class and
    the argument by which it comes, as `audit --inputs` names them.
    """

    member: str
    config: Callable[[Any], object]
    levels: int = 3
    main: int = HIDDEN
    towers: tuple[str, ...] = ()
    routed: bool = False
    inputs: Inputs | None = None
    argument: tuple[str, str] = ("", "")

    @property
    def width(self) -> int:
        """The columns of a row that `embed_input_ids` is given."""
        return self.main + self.levels * HIDDEN
