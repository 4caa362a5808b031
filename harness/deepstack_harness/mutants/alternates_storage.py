"""Two storages in turn, one for each payload."""

from torch import Tensor

from deepstack_harness.revisions.reference import ReferenceBuffer


class AlternatesStorage(ReferenceBuffer):
    """Breaks R6: half of the answers come from storage that no graph was captured on."""

    _spare: tuple[Tensor, ...] = ()

    def set(self, payload: Tensor) -> None:
        """The right rows, in the other storage, unannounced."""
        self._check(payload)
        spare = self._spare or tuple(level.clone() for level in self._levels)
        for level, other in zip(self._levels, spare, strict=True):
            other.copy_(level)
        self._spare, self._levels = tuple(self._levels), list(spare)
        super().set(payload)

    def resize(self, tokens: int) -> None:
        """The other storage has the old size."""
        super().resize(tokens)
        self._spare = ()
