"""A resize below the payload cuts it."""

from deepstack_harness.revisions.reference import ReferenceBuffer


class ResizeCutsPayload(ReferenceBuffer):
    """Breaks R4: it has to be refused."""

    def resize(self, tokens: int) -> None:
        """What does not fit is lost."""
        if tokens >= 0:
            self._tokens_set = min(self._tokens_set, tokens)
        super().resize(tokens)
