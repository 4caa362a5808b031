"""Growth moves the storage and tells nobody, as every vLLM release does."""

from deepstack_harness.revisions.reference import ReferenceBuffer


class MovesUnannounced(ReferenceBuffer):
    """Breaks R6."""

    def resize(self, tokens: int) -> None:
        """The generation stays."""
        generation = self.generation
        super().resize(tokens)
        self.generation = generation
