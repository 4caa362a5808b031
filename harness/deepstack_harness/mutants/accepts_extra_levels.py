"""Of a payload with too many levels the first ones are taken."""

from torch import Tensor

from deepstack_harness.revisions.reference import ReferenceBuffer


class AcceptsExtraLevels(ReferenceBuffer):
    """Breaks R8."""

    def set(self, payload: Tensor) -> None:
        """What is too many is dropped."""
        super().set(payload[: len(self._levels)])
