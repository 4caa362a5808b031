"""Resizing leaves whatever was there in the rows behind the payload."""

from deepstack_harness.revisions.reference import ReferenceBuffer


class GrowthPaddingNotZeroed(ReferenceBuffer):
    """Breaks R4."""

    def resize(self, tokens: int) -> None:
        """Ones stand for what was there, so that the fault shows every time."""
        super().resize(tokens)
        for level in self._levels:
            level[self._tokens_set :].fill_(1)
