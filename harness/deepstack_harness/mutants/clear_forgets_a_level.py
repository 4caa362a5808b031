"""Clear zeroes all levels but the last."""

from deepstack_harness.revisions.reference import ReferenceBuffer


class ClearForgetsALevel(ReferenceBuffer):
    """Breaks R5."""

    def clear(self, tokens: int) -> None:
        """One level is not seen."""
        levels, self._levels = self._levels, self._levels[:-1]
        try:
            super().clear(tokens)
        finally:
            self._levels = levels
