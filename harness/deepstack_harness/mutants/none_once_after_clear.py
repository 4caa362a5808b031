"""The first answer after a clear is None: the structure comes and goes."""

from torch import Tensor

from deepstack_harness.revisions.reference import ReferenceBuffer


class NoneOnceAfterClear(ReferenceBuffer):
    """Breaks R1."""

    _just_cleared = False

    def clear(self, tokens: int) -> None:
        """Remember that there is nothing now."""
        super().clear(tokens)
        self._just_cleared = True

    def get(self, tokens: int) -> tuple[Tensor, ...] | None:
        """None once, tensors from then on."""
        answer = super().get(tokens)
        just_cleared, self._just_cleared = self._just_cleared, False
        return None if just_cleared else answer
