"""The two faults that the review of vLLM #40143 found, each alone and both, in both revisions.

`Empty*`: an empty mask, index -1 of nothing.  `Wraps*`: `end_idx = 0` becomes index -1, which is the last.
vLLM 0.19.1 has both, over a tensor.
"""

from deepstack_harness.ranges.placeholder_range import ListRange, TensorRange


class EmptyTensorRange(TensorRange):
    """Tensor range with a fault: it counts the embeddings of an empty mask by its last entry."""

    def get_num_embeds(self) -> int:
        """Return the last entry of the sum; raise `IndexError` for an empty mask."""
        return self.length if self.embeds_cumsum is None else int(self.embeds_cumsum[-1])


class EmptyListRange(ListRange):
    """List range with a fault: it counts the embeddings of an empty mask by its last entry."""

    def get_num_embeds(self) -> int:
        """Return the last entry of the sum; raise `IndexError` for an empty mask."""
        return self.length if self.embeds_cumsum is None else self.embeds_cumsum[-1]


class WrapsTensorRange(TensorRange):
    """Tensor range with a fault: it looks for what lies before position 0 at the end."""

    def get_embeds_indices_in_range(self, start_idx: int, end_idx: int) -> tuple[int, int]:
        """Return the embeddings of a span; wrong where `end_idx` is 0."""
        if self.embeds_cumsum is None:
            return start_idx, end_idx
        start = int(self.embeds_cumsum[start_idx - 1]) if start_idx > 0 else 0
        return start, int(self.embeds_cumsum[end_idx - 1])


class WrapsListRange(ListRange):
    """List range with a fault: it looks for what lies before position 0 at the end."""

    def get_embeds_indices_in_range(self, start_idx: int, end_idx: int) -> tuple[int, int]:
        """Return the embeddings of a span; wrong where `end_idx` is 0."""
        if self.embeds_cumsum is None:
            return start_idx, end_idx
        start = self.embeds_cumsum[start_idx - 1] if start_idx > 0 else 0
        return start, self.embeds_cumsum[end_idx - 1]


class FaultyTensorRange(EmptyTensorRange, WrapsTensorRange):
    """Both faults, as vLLM 0.16.0 .. 0.19.1 have them."""


class FaultyListRange(EmptyListRange, WrapsListRange):
    """Both faults: the first form of #40143."""
