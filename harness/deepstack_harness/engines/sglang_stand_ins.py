"""Stand-ins for what SGLang's cut parts name: each does what these rely on, and no more."""

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any, NoReturn, cast

import torch
from torch import Tensor, nn

from deepstack_harness.binding.stand_ins import FirstRank, Settings

VISUAL, TEXT = 1, 0


class Batch(SimpleNamespace):
    """A forward batch of one request without cache; what was not given is refused by name."""

    def __getattr__(self, name: str) -> NoReturn:
        """Raise `AttributeError`: Python calls this for attributes that were not given."""
        raise AttributeError(f"the harness has no forward_batch.{name}", name=name, obj=self)


class CutBase(nn.Module):
    """The base class of cut classes of SGLang."""

    def __init__(self, **_: object) -> None:
        """Make an empty module: what is around the cut methods is given."""
        super().__init__()


class TextModel(CutBase):
    """The base class of text models: their layers and their norm note what they are given."""

    config: object
    embed_tokens = None
    end_layer = 0
    layers: list[object]
    layers_to_capture: tuple[int, ...] = ()
    norm: object
    pp_group = FirstRank()
    start_layer = 0

    def __call__(self, *given: object, **named: object) -> object:
        """Run forward, as a module does."""
        return cast("Any", self).forward(*given, **named)


class Wrapper(CutBase):
    """The base class of the class that separates the levels from the main features."""

    config: object
    deepstack_visual_indexes: list[int]
    num_deepstack_embeddings: int

    def get_image_feature(self, *_: object) -> None:
        """Return nothing: the writer's embeddings are given."""


class Modality:
    """Images alone (sglang/srt/managers/schedule_batch.py)."""

    name = "IMAGE"
    IMAGE: "Modality"

    @classmethod
    def all(cls) -> "list[Modality]":
        """Return every modality that a step here has."""
        return [cls.IMAGE]


Modality.IMAGE = Modality()


class _Residual:
    """The residual stream of a step whose layers answer zeros (layers/layer_boundary/residual/batch.py)."""

    @staticmethod
    def start(_: object) -> None:
        """Begin a step."""

    @staticmethod
    def complete_output(hidden: Tensor, _: object) -> Tensor:
        """Return the output (n, hidden) of a layer as it is: there is one rank, so that nothing is owed."""
        return hidden

    @staticmethod
    def add_to_output(hidden: Tensor, _: object, extra: Tensor) -> Tensor:
        """Add `extra` (n, hidden) to the output (n, hidden) of a layer, in place as the engine does."""
        return hidden.add_(extra)

    @staticmethod
    def final_norm(hidden: Tensor, _: object, norm: Any, *__: object, **named: Any) -> Any:  # noqa: ANN401
        """Call the norm with the output (n, hidden) of the last layer."""
        return norm(hidden, post_residual_addition=named.get("post_residual_addition"))

    norm = final_norm  # its name up to 0.5.21


class _AuxHiddenStates(list[object]):
    """Hidden states that a draft model asks for: none (sglang/srt/layers/aux_hidden_states.py)."""

    def capture(self, hidden: object) -> None:
        """Keep hidden states."""
        self.append(hidden)


def _execution() -> Settings:
    """Return the settings of an engine that serves: no reinforcement learning."""
    return Settings(
        "get_exec()", deterministic=Settings("get_exec().deterministic", rl_on_policy_target=None)
    )


def _flat(nested: list[Any]) -> list[Any]:
    return [each for one in nested for each in (_flat(one) if isinstance(one, list) else [one])]


def embedding_and_mask(
    embedding_items: list[Any], input_ids: Tensor, **_: object
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the visual rows (N, w), the marks (n, 1) of visual tokens, and the ids (n,)."""
    return embedding_items[0].feature, (input_ids == VISUAL).unsqueeze(-1), input_ids


STAND_INS: Mapping[str, object] = {
    "AuxHiddenStateList": _AuxHiddenStates,
    "Modality": Modality,
    "PPProxyTensors": dict,
    "batch": _Residual(),
    "flatten_nested_list": _flat,
    "get_exec": _execution,
}
KINDS = (Batch, CutBase, TextModel, Wrapper, Modality, _Residual, _AuxHiddenStates)
"""Stand-ins: an attribute that one of them lacks is the harness's fault, not the engine's."""


class Item:
    """The only image of a step."""

    pad_value = VISUAL

    def __init__(self, feature: Tensor) -> None:
        """Take its visual rows (N, w)."""
        self.feature = feature
        self.offsets = [(0, feature.size(0) - 1)]

    def is_modality(self, modality: object) -> bool:
        """Return True for images."""
        return modality is Modality.IMAGE

    def padding_values(self) -> list[int]:
        """Return the ids of its tokens."""
        return [VISUAL]


class Embedding:
    """The embedding of text tokens: zeros (n, hidden)."""

    num_embeddings = 2

    def __init__(self, hidden: int, dtype: torch.dtype, device: torch.device) -> None:
        self.embedding_dim = hidden
        self.weight = torch.zeros(2, hidden, dtype=dtype, device=device)

    def __call__(self, ids: Tensor) -> Tensor:
        """Embed ids (n,) -> (n, hidden)."""
        return self.weight[ids]
