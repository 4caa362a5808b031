"""Each payload lies in new tensors, which a captured graph never sees: the fault of sglang 33726."""

from torch import Tensor

from deepstack_harness.revisions.reference import ReferenceBuffer


class RebindsOnSet(ReferenceBuffer):
    """Breaks R6: a replay goes on reading the tensors of the capture."""

    def set(self, payload: Tensor) -> None:
        """The right rows, in new storage, unannounced."""
        self._check(payload)
        self._levels = [level.clone() for level in self._levels]
        super().set(payload)
