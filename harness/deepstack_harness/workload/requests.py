"""Requests to an engine, as counts of visual, text and answer tokens."""

import re
from dataclasses import dataclass

from deepstack_harness.errors import UsageError
from deepstack_harness.workload.smart_resize import visual_tokens

_ID = re.compile(r"[\w.-]+")


@dataclass(frozen=True)
class Request:
    """A prompt and its answer.

    `images` are (height, width) in pixels, empty for a text-only request.  `text_tokens` counts the prompt
    without the images, `decode_tokens` the answer tokens that go through the decoder, one per step.
    Making one raises `UsageError` for an id that a trace cannot carry, a negative count, an image without
    area, and an empty prompt.
    """

    id: str
    images: tuple[tuple[int, int], ...]
    text_tokens: int
    decode_tokens: int

    def __post_init__(self) -> None:
        """Check the counts; raises `UsageError` for a request that no engine can be sent."""
        if not _ID.fullmatch(self.id):
            raise UsageError(f"request id '{self.id}' may have only letters, digits, '_', '.' and '-'")
        for name in ("text_tokens", "decode_tokens"):
            if (count := getattr(self, name)) < 0:
                raise UsageError(f"request '{self.id}': {name} is {count}, it should be 0 or more")
        if not self.prompt_tokens:
            raise UsageError(f"request '{self.id}' has neither images nor text: a prompt has 1 token or more")

    @property
    def visual_tokens(self) -> int:
        """Tokens of all images together, as Qwen3-VL's processor counts them."""
        try:
            return sum(visual_tokens(height, width) for height, width in self.images)
        except UsageError as error:
            raise UsageError(f"request '{self.id}': {error}") from None

    @property
    def prompt_tokens(self) -> int:
        """Visual and text tokens, which the prefill computes."""
        return self.visual_tokens + self.text_tokens

    @property
    def tokens(self) -> int:
        """All tokens that go through the decoder."""
        return self.prompt_tokens + self.decode_tokens
