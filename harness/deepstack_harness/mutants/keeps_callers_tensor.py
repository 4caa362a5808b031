"""Keeps the caller's tensor instead of a copy of it."""

from torch import Tensor

from deepstack_harness.revisions.reference import ReferenceBuffer


class KeepsCallersTensor(ReferenceBuffer):
    """Breaks R3: what the caller writes after set is read by the decoder."""

    def set(self, payload: Tensor) -> None:
        """Remember the payload itself, for a get of exactly its size."""
        super().set(payload)
        self._payload = payload

    def get(self, tokens: int) -> tuple[Tensor, ...] | None:
        """The caller's rows where the count fits."""
        self.generation += 1  # it says that its storage moves: the missing copy is its only fault
        answer = super().get(tokens)
        return tuple(self._payload) if tokens and tokens == self._tokens_set else answer
