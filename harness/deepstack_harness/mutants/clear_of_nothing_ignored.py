"""A clear of no rows is ignored, and the payload lives on."""

from deepstack_harness.revisions.reference import ReferenceBuffer


class ClearOfNothingIgnored(ReferenceBuffer):
    """Breaks R5."""

    def clear(self, tokens: int) -> None:
        """Nothing to zero, so nothing to do."""
        if tokens:
            super().clear(tokens)
