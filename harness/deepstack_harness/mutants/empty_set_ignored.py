"""A payload of no tokens is ignored, and the one before it lives on."""

from torch import Tensor

from deepstack_harness.revisions.reference import ReferenceBuffer


class EmptySetIgnored(ReferenceBuffer):
    """Breaks R3."""

    def set(self, payload: Tensor) -> None:
        """Nothing to copy, so nothing to do."""
        if self._check(payload):
            super().set(payload)
