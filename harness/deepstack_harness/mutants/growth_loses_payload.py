"""Growing on get starts from zeros, as vLLM 0.23.0 .. 0.33.0 do."""

from deepstack_harness.revisions.reference import ReferenceBuffer


class GrowthLosesPayload(ReferenceBuffer):
    """Breaks R4."""

    def resize(self, tokens: int) -> None:
        """New storage, and nothing copied."""
        super().resize(tokens)
        for level in self._levels:
            level.zero_()
