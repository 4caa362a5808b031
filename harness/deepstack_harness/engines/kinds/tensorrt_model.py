"""Calls of TensorRT-LLM's writer: a step with packed embeddings returns views of the buffer."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from typing_extensions import override

from deepstack_harness.engines.argument_parts import ArgumentParts, Hosts
from deepstack_harness.engines.bind import ArgumentEngine
from deepstack_harness.engines.calls import ArgumentCalls
from deepstack_harness.engines.stand_ins import Settings, packed

_TEXT, _VISUAL = 0, 1
_VOCABULARY = 2
"""The tokens of text and of images: ids from here on are rows of the payload."""


class WriterBase(nn.Module):
    """The base class of the class (tensorrt_llm/_torch/models/modeling_multimodal_mixin.py)."""

    def __init__(self, *_: object, **__: object) -> None:
        """Make an empty module, of whatever settings."""
        super().__init__()

    def _fuse_multimodal_embeddings(
        self, *, input_ids: Tensor, multimodal_embeddings: Sequence[Tensor], **_: object
    ) -> tuple[None, Tensor, tuple[Tensor, ...]]:
        """Return no ids, embeddings (P, hidden) with the visual rows in front, and no level."""
        rows = [part.new_zeros(input_ids.size(0), part.size(1)) for part in multimodal_embeddings[:1]]
        return None, (rows or [input_ids])[0], ()


class _InPlaceOfCuda(TorchFunctionMode):
    """Mode in which tensors that code makes on "cuda" are made on `device`."""

    def __init__(self, device: torch.device) -> None:
        super().__init__()
        self._device = device

    @override
    def __torch_function__(
        self,
        func: Any,
        types: Any,
        args: Any = (),
        kwargs: Any = None,
    ) -> Any:
        def moved(value: object) -> object:
            named = isinstance(value, str | torch.device) and str(value).partition(":")[0] == "cuda"
            return self._device if named else value

        return func(*map(moved, args), **{name: moved(value) for name, value in (kwargs or {}).items()})


KINDS = (WriterBase, Settings)
"""Where an attribute of one of these is missing, the harness is at fault, and not the engine."""


class TensorRtEngine(ArgumentEngine):
    """One writer with its buffer."""

    def __init__(
        self,
        parts: ArgumentParts,
        capacity: int,
        hidden: int,
        levels: int,
        *,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        """Make the class; raise `UsageError` for what needs the whole package."""
        self.no_graphs = str(parts.runner)
        self._like = torch.zeros(0, hidden, dtype=dtype, device=device)
        root = "model_config.pretrained_config"
        vision = Settings(f"{root}.vision_config", deepstack_visual_indexes=list(range(levels)))
        text = Settings(f"{root}.text_config", hidden_size=hidden, torch_dtype=dtype, dtype=dtype)
        whole = Settings(root, vision_config=vision, text_config=text)
        config = Settings("model_config", max_num_tokens=capacity, pretrained_config=whole)
        with _InPlaceOfCuda(device):
            self._model: Any = parts.text(config)
        self._fuse = getattr(self._model, parts.known.verbs["get"])
        self.written: set[str] = set()
        self.captured: set[str] = set()

    @property
    @override
    def capacity(self) -> int:
        """Rows of the class's own buffer (levels, rows, hidden)."""
        return int(self._model.deepstack_input_embeds.size(1))

    @override
    def eager(self, tokens: int, payload: Tensor | None) -> tuple[Tensor, ...]:
        """Write a step with a payload (levels, N, hidden); return the views that the decoder is given."""
        ids = torch.full((tokens,), _TEXT, device=self._like.device)
        active: list[Tensor] = []
        extra: Sequence[Tensor] = ()
        with _InPlaceOfCuda(self._like.device):
            if payload is not None:
                ids[: payload.size(1)] = _VISUAL
                active, extra = self._model.after_active_multimodal_embeddings(
                    active_embeddings=[packed(payload)], multimodal_params=[]
                )
            _, _, views = self._fuse(
                input_ids=ids,
                multimodal_embeddings=active,
                mm_token_ids=torch.tensor([_VISUAL], device=ids.device),
                embedding_layer=Settings("embedding_layer", num_embeddings=_VOCABULARY),
                extra_embeds=extra,
            )
        return tuple(views)


CALLS = ArgumentCalls(TensorRtEngine, KINDS, Hosts(WriterBase))
