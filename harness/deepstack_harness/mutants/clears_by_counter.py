"""Clears only where its counter says that there is something, as vLLM 0.20.0 .. 0.33.0 do."""

from deepstack_harness.revisions.reference import ReferenceBuffer


class ClearsByCounter(ReferenceBuffer):
    """Breaks R5 under graphs: the counter is 0 at capture, so no zeroing is recorded."""

    def clear(self, tokens: int) -> None:
        """Nothing where nothing is set."""
        if tokens < 0 or self._tokens_set:
            super().clear(tokens)
