"""Lets go of old storage when it moves, before graphs are captured again, as FastDeploy 5962 did."""

from deepstack_harness.revisions.reference import ReferenceBuffer


class FreesOnResize(ReferenceBuffer):
    """Breaks R6 under graphs, which read freed memory; it does say that it moves."""

    def resize(self, tokens: int) -> None:
        """Nothing of the earlier generation is kept."""
        super().resize(tokens)
        self.release()
