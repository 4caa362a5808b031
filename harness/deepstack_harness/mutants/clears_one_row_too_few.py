"""Clear leaves the last row of the payload."""

from deepstack_harness.revisions.reference import ReferenceBuffer


class ClearsOneRowTooFew(ReferenceBuffer):
    """Breaks R5."""

    def clear(self, tokens: int) -> None:
        """Off by one at N."""
        kept = [level[self._tokens_set - 1].clone() for level in self._levels] if self._tokens_set else []
        row = self._tokens_set - 1
        super().clear(tokens)
        for level, last in zip(self._levels, kept, strict=False):
            level[row] = last
