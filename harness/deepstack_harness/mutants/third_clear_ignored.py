"""One clear in its life does nothing: the third."""

from deepstack_harness.revisions.reference import ReferenceBuffer


class ThirdClearIgnored(ReferenceBuffer):
    """Breaks R5."""

    _clears = 0

    def clear(self, tokens: int) -> None:
        """All but one."""
        self._clears += tokens >= 0
        if self._clears != 3 or tokens < 0:
            super().clear(tokens)
