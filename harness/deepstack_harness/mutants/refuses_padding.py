"""Refuses more rows than tokens, as vLLM 0.20.0 and 0.20.1 do: the fault of vLLM issue 41485."""

from torch import Tensor

from deepstack_harness.revisions.reference import ReferenceBuffer


class RefusesPadding(ReferenceBuffer):
    """Breaks R2: P is padded."""

    def get(self, tokens: int) -> tuple[Tensor, ...] | None:
        """P is checked against N."""
        if tokens > self._tokens_set > 0:
            raise ValueError(f"get of {tokens} tokens, but only {self._tokens_set} are set")
        return super().get(tokens)
