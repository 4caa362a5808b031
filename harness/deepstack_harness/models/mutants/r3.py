"""Mutants that break R3 freshness: rows of a payload that a later set replaced, or of the caller's tensor."""

from torch import Tensor

from deepstack_harness.models.mutants.hooks import FaultyBuffer, Levels


class StaleAfterShorterSet(FaultyBuffer):
    """`set` leaves the tail of a longer payload after a shorter one."""

    def stored(self, payload: Tensor) -> Tensor:
        self._make_room(payload.size(1))
        self._tokens_set = 0  # so that no row after the new payload is zeroed
        return payload


class StaleRowAfterShorterSet(FaultyBuffer):
    """`set` leaves one row of a longer payload after a shorter one."""

    def set(self, payload: Tensor) -> None:
        tokens = payload.size(1)
        kept = [level[tokens].clone() for level in self._levels] if tokens < self._tokens_set else []
        super().set(payload)
        for level, row in zip(self._levels, kept, strict=False):
            level[tokens] = row


class StaleLevelAfterShorterSet(FaultyBuffer):
    """`set` leaves the tail of a longer payload in the last level."""

    def set(self, payload: Tensor) -> None:
        tokens = payload.size(1)
        tail = self._levels[-1][tokens : self._tokens_set].clone()
        super().set(payload)
        self._levels[-1][tokens : tokens + len(tail)] = tail


class EmptySetIgnored(FaultyBuffer):
    """`set` ignores a payload of zero tokens, so that the previous payload stays."""

    def set(self, payload: Tensor) -> None:
        if self._check(payload):
            super().set(payload)


class KeepsCallersTensor(FaultyBuffer):
    """`get` returns the caller's tensor instead of a copy, when exactly its rows are requested."""

    _payload: Tensor | None = None

    def after_set(self, payload: Tensor) -> None:
        # Any other payload has another layout, dtype or gradient: returning it would break R7 or R11.
        plain = payload.is_contiguous() and not payload.requires_grad
        self._payload = payload if plain and payload.dtype == self._levels[0].dtype else None

    def returned(self, levels: Levels, tokens: int) -> object:
        self.generation += 1  # announces that the storage moves, so that R6 passes
        whole = tokens and tokens == self._tokens_set
        return levels if self._payload is None or not whole else tuple(self._payload)


class DefersCopy(FaultyBuffer):
    """The first `get` copies the payload again, after the caller may have reused the tensor."""

    _waiting: Tensor | None = None

    def set(self, payload: Tensor) -> None:
        fits = payload.size(1) <= self.capacity
        super().set(payload)
        self._waiting = payload if fits else None

    def get(self, tokens: int) -> Levels | None:
        if self._waiting is not None:
            for level, rows in zip(self._levels, self._waiting, strict=True):
                level[: self._tokens_set].copy_(rows)
            self._waiting = None
        return super().get(tokens)

    def clear(self, tokens: int) -> None:
        super().clear(tokens)
        self._waiting = None


class ZeroesCallersTensor(FaultyBuffer):
    """`set` zeroes the tensor that it was given once it has copied it."""

    on_inputs = "caller's tensor"

    def after_set(self, payload: Tensor) -> None:
        payload.detach().zero_()


class StoresNanInCallersTensor(FaultyBuffer):
    """`set` writes over the NaN of the tensor that it was given, and leaves all other values."""

    on_inputs = "caller's tensor"

    def after_set(self, payload: Tensor) -> None:
        if 0 not in payload.stride():
            payload.detach().nan_to_num_(nan=0.5, posinf=float("inf"), neginf=float("-inf"))


class BumpsTheVersion(FaultyBuffer):
    """`set` multiplies the tensor that it was given by one: its version changes, no byte does."""

    on_inputs = "caller's tensor"

    def after_set(self, payload: Tensor) -> None:
        if 0 not in payload.stride():
            payload.detach().mul_(1)


class TakesTheGradient(FaultyBuffer):
    """`set` turns off `requires_grad` of the tensor that it was given."""

    on_inputs = "caller's tensor"

    def after_set(self, payload: Tensor) -> None:
        if payload.is_leaf:
            payload.requires_grad_(False)


class SkipsEqualSums(FaultyBuffer):
    """`set` skips the copy of a payload whose sum is that of the last one, if no row is zero."""

    on_inputs = "equal sums"
    _sum: tuple[object, ...] = ()

    def set(self, payload: Tensor) -> None:
        self._check(payload)
        last, self._sum = self._sum, (payload.shape, payload.dtype, float(payload.double().sum()))
        if self._sum != last or not self._tokens_set or not payload.any(2).all():
            super().set(payload)
