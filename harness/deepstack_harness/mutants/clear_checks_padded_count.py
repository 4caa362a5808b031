"""Refuses to clear more rows than tokens."""

from deepstack_harness.revisions.reference import ReferenceBuffer


class ClearChecksPaddedCount(ReferenceBuffer):
    """Breaks R2: the count of a clear is padded, as that of its get."""

    def clear(self, tokens: int) -> None:
        """P is checked against N."""
        if tokens > self._tokens_set > 0:
            raise ValueError(f"clear of {tokens} tokens, but only {self._tokens_set} are set")
        super().clear(tokens)
