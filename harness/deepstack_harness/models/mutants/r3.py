"""Mutants that break R3 freshness: rows of a payload that a later set replaced, or of the caller's tensor."""

from torch import Tensor

from deepstack_harness.contract.rules import Rule
from deepstack_harness.models.reference import ReferenceBuffer


class StaleAfterShorterSet(ReferenceBuffer):
    """`set` leaves the tail of a longer payload behind a shorter one."""

    rule = Rule.R3

    def set(self, payload: Tensor) -> None:
        tokens = self._check(payload)
        self._make_room(tokens)
        self._tokens_set = 0  # so that no row behind the new payload is zeroed
        super().set(payload)


class StaleRowAfterShorterSet(ReferenceBuffer):
    """`set` leaves one row of a longer payload behind a shorter one."""

    rule = Rule.R3

    def set(self, payload: Tensor) -> None:
        tokens = payload.size(1)
        kept = [level[tokens].clone() for level in self._levels] if tokens < self._tokens_set else []
        super().set(payload)
        for level, row in zip(self._levels, kept, strict=False):
            level[tokens] = row


class StaleLevelAfterShorterSet(ReferenceBuffer):
    """`set` leaves the tail of a longer payload in the last level."""

    rule = Rule.R3

    def set(self, payload: Tensor) -> None:
        tokens = payload.size(1)
        tail = self._levels[-1][tokens : self._tokens_set].clone()
        super().set(payload)
        self._levels[-1][tokens : tokens + len(tail)] = tail


class EmptySetIgnored(ReferenceBuffer):
    """`set` ignores a payload of zero tokens, so that the previous payload stays."""

    rule = Rule.R3

    def set(self, payload: Tensor) -> None:
        if self._check(payload):
            super().set(payload)


class KeepsCallersTensor(ReferenceBuffer):
    """`get` returns the caller's tensor instead of a copy, when it is asked for exactly its rows."""

    rule = Rule.R3
    _payload: Tensor | None = None

    def set(self, payload: Tensor) -> None:
        super().set(payload)
        # Of any other payload the answer would have another layout, dtype or gradient: that is R7 or R11.
        plain = payload.is_contiguous() and not payload.requires_grad
        self._payload = payload if plain and payload.dtype == self._levels[0].dtype else None

    def get(self, tokens: int) -> tuple[Tensor, ...] | None:
        self.generation += 1  # announces that the storage moves, so that R6 is kept
        answer = super().get(tokens)
        kept = self._payload
        return answer if kept is None or not tokens or tokens != self._tokens_set else tuple(kept)


class DefersCopy(ReferenceBuffer):
    """The first `get` copies the payload again, after the caller may have reused the tensor."""

    rule = Rule.R3
    _waiting: Tensor | None = None

    def set(self, payload: Tensor) -> None:
        fits = payload.size(1) <= self.capacity
        super().set(payload)
        self._waiting = payload if fits else None

    def get(self, tokens: int) -> tuple[Tensor, ...] | None:
        if self._waiting is not None:
            for level, rows in zip(self._levels, self._waiting, strict=True):
                level[: self._tokens_set].copy_(rows)
            self._waiting = None
        return super().get(tokens)

    def clear(self, tokens: int) -> None:
        super().clear(tokens)
        self._waiting = None


class ZeroesCallersTensor(ReferenceBuffer):
    """`set` zeroes the tensor that it was given once it has copied it."""

    rule = Rule.R3
    shown_by = "inputs"
    fault = "caller's tensor"

    def set(self, payload: Tensor) -> None:
        super().set(payload)
        payload.detach().zero_()


class StoresNanInCallersTensor(ReferenceBuffer):
    """`set` writes over the NaN of the tensor that it was given, and leaves all other values."""

    rule = Rule.R3
    shown_by = "inputs"
    fault = "caller's tensor"

    def set(self, payload: Tensor) -> None:
        super().set(payload)
        if 0 not in payload.stride():
            payload.detach().nan_to_num_(nan=0.5, posinf=float("inf"), neginf=float("-inf"))


class BumpsTheVersion(ReferenceBuffer):
    """`set` multiplies the tensor that it was given by one: its version changes, no byte does."""

    rule = Rule.R3
    shown_by = "inputs"
    fault = "caller's tensor"

    def set(self, payload: Tensor) -> None:
        super().set(payload)
        if 0 not in payload.stride():
            payload.detach().mul_(1)


class TakesTheGradient(ReferenceBuffer):
    """`set` turns off `requires_grad` of the tensor that it was given."""

    rule = Rule.R3
    shown_by = "inputs"
    fault = "caller's tensor"

    def set(self, payload: Tensor) -> None:
        super().set(payload)
        if payload.is_leaf:
            payload.requires_grad_(False)


class SkipsEqualSums(ReferenceBuffer):
    """`set` skips the copy of a payload whose sum is that of the last one, if no row is zero."""

    rule = Rule.R3
    shown_by = "inputs"
    fault = "equal sums"
    _sum: tuple[object, ...] = ()

    def set(self, payload: Tensor) -> None:
        self._check(payload)
        last, self._sum = self._sum, (payload.shape, payload.dtype, float(payload.double().sum()))
        if self._sum != last or not self._tokens_set or not payload.any(2).all():
            super().set(payload)
