"""The facts of one engine: how its sources are recognised, and where its deepstack classes lie."""

from collections.abc import Mapping
from dataclasses import dataclass

from deepstack_harness.binding.cut_model import ModelClass
from deepstack_harness.binding.discover import ModelFiles
from deepstack_harness.sources.known_package import KnownPackage


@dataclass(frozen=True)
class KnownEngine:
    """An engine whose source can be judged.

    `by_methods` has the model classes that are driven by their get, set and clear, and
    `by_forward` those that are driven by `embed_input_ids` and `forward`, by the name of their
    family.  `since` is the first release that has a deepstack class.
    """

    package: KnownPackage
    folder: str
    word: str
    since: str
    by_methods: Mapping[str, ModelClass]
    by_forward: Mapping[str, ModelClass]

    @property
    def files(self) -> ModelFiles:
        """The place of the model files, for `discover`."""
        return ModelFiles(self.folder, self.word, tuple(self.by_forward.values()))
