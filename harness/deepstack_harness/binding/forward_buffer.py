"""An object of a cut class behind the `Buffer` interface, driven by `embed_input_ids` and `forward`."""

import torch
from torch import Tensor, nn

from deepstack_harness.binding.recording_model import RecordingModel
from deepstack_harness.binding.stand_ins import Host, VisionTower
from deepstack_harness.errors import StepUnavailable

TOKEN_IDS = {"image_token_id": 1, "video_token_id": 2, "audio_token_id": 3}
_TEXT_TOKEN = 0
_MAIN_FEATURE = 7.0  # no payload has it: a row of this value in a level was never set


def packed(payload: Tensor) -> Tensor:
    """Return visual embeddings (N, (1 + levels) * hidden) of a payload (levels, N, hidden).

    A row has what replaces the token's embedding, and behind it the token's levels.
    """
    return torch.cat([payload.new_full(payload.shape[1:], _MAIN_FEATURE), *payload], dim=1)


class DeepstackTower(VisionTower):
    """A vision tower whose levels come from its layers 0, 1, ..."""

    def __init__(self, levels: int) -> None:
        super().__init__()
        self.deepstack_visual_indexes = list(range(levels))


class ForwardHost(Host):
    """The base class of cut classes whose `forward` is driven: it has a language model that records."""

    language_model: RecordingModel

    def accompany(self, recorder: RecordingModel) -> None:
        """Set the language model, before `__init__` runs."""
        self.__dict__["language_model"] = recorder

    def get_language_model(self) -> RecordingModel:
        """Return the language model, as SupportsMultiModal in vLLM's interfaces.py does."""
        return self.language_model

    def _embed_text_input_ids(self, input_ids: Tensor, *_: object, **__: object) -> Tensor:
        # vLLM masks token ids outside the vocabulary; here every id is in it.
        return self.language_model.embed_input_ids(input_ids)

    def embed_input_ids(
        self,
        input_ids: Tensor,
        multimodal_embeddings: "list[Tensor] | tuple[Tensor, ...] | None" = None,
        *,
        is_multimodal: Tensor | None = None,
        **_: object,
    ) -> Tensor:
        """Return embeddings (n, hidden) of token ids (n,), the marked rows replaced by visual ones.

        `super().embed_input_ids` does this in vLLM (SupportsMultiModal in interfaces.py).  What else releases
        pass, such as `handle_oov_mm_token` up to 0.17.1, says how ids outside the vocabulary are masked.
        """
        embeddings = self.language_model.embed_input_ids(input_ids)
        if multimodal_embeddings:
            embeddings[is_multimodal] = torch.cat(tuple(multimodal_embeddings))
        return embeddings


class ForwardBuffer:
    """The buffer of one model object as the engine reaches it; see `protocols.Buffer`.

    As in the engine's model runner (vllm/v1/worker/gpu_model_runner.py): every
    scheduled step calls `embed_input_ids` with the unpadded tokens, visual or not,
    and then `forward` with the padded ones; a profile run calls `forward` only.
    """

    def __init__(self, host: ForwardHost, *, main_features: bool) -> None:
        """Take `host`, the object after the class's own `__init__`; see `Model` for `main_features`."""
        self._host = host
        self._recorder = host.language_model
        self._main_features = main_features
        self._embedded = False
        self._text: int | None = None
        self._forwarded: int | None = None

    @property
    def capacity(self) -> int:
        """The number of rows of level 0 of the class's own storage; 0 while there is none."""
        stored = _levels_in(self._host)
        return stored[0].size(0) if stored else 0

    def begin_step(self, tokens: int, *, profile: bool) -> None:
        """Announce that the next get belongs to a whole step, or to a profile run of the engine.

        A step embeds `tokens` tokens of text, unless tokens were embedded already.
        """
        self._text = None if profile or self._embedded else tokens

    def set(self, payload: Tensor, /) -> None:
        """Embed a step of N visual tokens, whose payload is (levels, N, hidden); N = 0 is one text token."""
        if payload.size(1) == 0:
            self._embed_text(1)
        else:
            self._embed([self._packed(payload)], torch.ones(payload.size(1), dtype=torch.bool))

    def get(self, tokens: int, /) -> tuple[Tensor, ...] | None:
        """Run the outer forward, and return the levels (P, hidden) that the language model was given.

        They are copies, made before the class cleared its rows.  Raises `StepUnavailable` for a
        negative count, which no engine step has.
        """
        if tokens < 0:
            raise StepUnavailable("the engine runs no step of fewer than 0 tokens")
        if self._text is not None:
            self._embed_text(self._text)
        self._text, self._embedded, self._forwarded = None, False, tokens
        embeddings = self._recorder.embed_input_ids(torch.empty(tokens))
        positions = torch.zeros(3, tokens, dtype=torch.int64, device=embeddings.device)
        self._host.forward(None, positions, None, embeddings)
        return self._recorder.take()

    def clear(self, tokens: int, /) -> None:
        """Do nothing: the forward of the get before has cleared its rows, or has failed to.

        Raises `StepUnavailable` where no get of as many tokens came right before.
        """
        if tokens != self._forwarded:
            raise StepUnavailable("the class clears inside its own forward only")
        self._forwarded = None

    def resize(self, tokens: int, /) -> None:
        """Raise `StepUnavailable`: the engine calls no resize."""
        raise StepUnavailable("the engine never resizes the buffer")

    def _embed_text(self, tokens: int) -> None:
        self._embed([], torch.zeros(tokens, dtype=torch.bool))

    def _embed(self, visual: list[Tensor], is_visual: Tensor) -> None:
        self._embedded, self._forwarded = True, None
        device = self._recorder.device
        ids = torch.where(is_visual, TOKEN_IDS["image_token_id"], _TEXT_TOKEN).to(device)
        self._host.embed_input_ids(ids, multimodal_embeddings=visual, is_multimodal=is_visual.to(device))

    def _packed(self, payload: Tensor) -> Tensor:
        """Return visual embeddings (N, ..) of a payload (levels, N, hidden): a token's levels in a row."""
        return packed(payload) if self._main_features else payload.permute(1, 0, 2).flatten(1)


def _levels_in(host: nn.Module) -> list[Tensor]:
    """Find the storage by what it is: a list or tuple of matrices."""
    for value in vars(host).values():
        if isinstance(value, list | tuple) and value and all(_is_matrix(each) for each in value):
            return list(value)
    return []


def _is_matrix(value: object) -> bool:
    return isinstance(value, Tensor) and value.dim() == 2
