"""New storage falls back to another device."""

from deepstack_harness.revisions.reference import ReferenceBuffer


class DeviceLostOnResize(ReferenceBuffer):
    """Breaks R7."""

    def resize(self, tokens: int) -> None:
        """meta stands for any device that the hidden states are not on."""
        super().resize(tokens)
        self._levels = [level.to("meta") for level in self._levels]
