"""Copies the payload once more when it is read first, after its caller reused the tensor."""

from torch import Tensor

from deepstack_harness.revisions.reference import ReferenceBuffer


class DefersCopy(ReferenceBuffer):
    """Breaks R3: set has to copy, for the caller may reuse its tensor at once."""

    _waiting: Tensor | None = None

    def set(self, payload: Tensor) -> None:
        """Keep the caller's tensor, unless it has to grow first."""
        fits = payload.size(1) <= self.capacity
        super().set(payload)
        self._waiting = payload if fits else None

    def get(self, tokens: int) -> tuple[Tensor, ...] | None:
        """What the caller's tensor holds by now."""
        if self._waiting is not None:
            for level, rows in zip(self._levels, self._waiting, strict=True):
                level[: self._tokens_set].copy_(rows)
            self._waiting = None
        return super().get(tokens)

    def clear(self, tokens: int) -> None:
        """Forget the tensor too."""
        super().clear(tokens)
        self._waiting = None
