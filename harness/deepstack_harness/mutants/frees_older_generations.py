"""Keeps old storage for one move only, however many there are until graphs are captured again."""

from deepstack_harness.revisions.reference import ReferenceBuffer


class FreesOlderGenerations(ReferenceBuffer):
    """Breaks R6 under graphs, which read freed memory; it does say that it moves."""

    def resize(self, tokens: int) -> None:
        """The last generation alone is kept."""
        super().resize(tokens)
        del self._retired[:-1]
