"""A class of a source, as a request names it to the worker that plays it."""

from dataclasses import dataclass
from typing import Literal

Way = Literal["methods", "forward"]
"""A class is driven by its get, set and clear, or by its `embed_input_ids` and `forward`."""


@dataclass(frozen=True)
class SourceClass:
    """A class of a source: the text by which the user named the source, and how the class is driven.

    `family` chooses the class that the engine has for a model family, driven by its methods; otherwise it
    is `model_class`, one of those that were found in the source.
    """

    text: str
    model_class: str
    way: Way = "methods"
    family: str | None = None
