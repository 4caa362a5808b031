"""Grows to one row less than it needs."""

from deepstack_harness.revisions.reference import ReferenceBuffer


class GrowthOneRowShort(ReferenceBuffer):
    """Breaks R4: off by one at the capacity."""

    def _make_room(self, tokens: int) -> None:
        if tokens > self.capacity:
            self.resize(tokens - 1)
