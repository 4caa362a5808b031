"""Where get grows, the generation changes with the next call only."""

from torch import Tensor

from deepstack_harness.revisions.reference import ReferenceBuffer


class AnnouncesLate(ReferenceBuffer):
    """Breaks R6: the first answer from new storage comes unannounced."""

    _unsaid = 0

    def get(self, tokens: int) -> tuple[Tensor, ...] | None:
        """Say what the call before this one did, and nothing of this one."""
        grows = tokens > self.capacity
        self.generation += self._unsaid
        answer = super().get(tokens)
        self.generation -= grows
        self._unsaid = int(grows)
        return answer
