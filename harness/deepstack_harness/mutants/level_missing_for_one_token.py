"""Leaves a level out, for a single token only: the size of a decode step."""

from torch import Tensor

from deepstack_harness.revisions.reference import ReferenceBuffer


class LevelMissingForOneToken(ReferenceBuffer):
    """Breaks R1."""

    def get(self, tokens: int) -> tuple[Tensor, ...] | None:
        """All levels but the last."""
        answer = super().get(tokens)
        return answer[:-1] if answer and tokens == 1 else answer
