"""Mutants that break R5 clear where micro-batches share a step, or clear more than there is."""

from torch import Tensor

from deepstack_harness.contract.rules import Rule
from deepstack_harness.revisions.reference import ReferenceBuffer


class PartsNeverEnd(ReferenceBuffer):
    """`clear` zeroes the rows that it is asked to, and never the rows behind, as every vLLM release does."""

    rule = Rule.R5
    fault = "micro-batches"

    def clear(self, tokens: int) -> None:
        if 0 < tokens < self._tokens_set:
            for level in self._levels:
                level[:tokens].zero_()
        else:
            super().clear(tokens)


class IgnoresClearAboveCapacity(ReferenceBuffer):
    """Ignores a clear of more rows than there are, without an error."""

    rule = Rule.R5
    fault = "clear above"

    def clear(self, tokens: int) -> None:
        if tokens <= self.capacity:
            super().clear(tokens)


class ZeroRowsStay(ReferenceBuffer):
    """`clear` ends at the last row that is not zero at the first level, and leaves later rows of others."""

    rule = Rule.R5
    fault = "equal rows"

    def clear(self, tokens: int) -> None:
        used = (self._levels[0][: self._tokens_set] != 0).any(1)
        constant = self._tokens_set > 1 and bool((self._levels[0][:1] == self._levels[0][1:2]).all())
        kept = (
            [level[: self._tokens_set].clone() for level in self._levels] if constant and used.any() else []
        )
        super().clear(tokens)
        for level, rows in zip(self._levels[1:], kept[1:], strict=False):
            level[: len(rows)] = rows

    def set(self, payload: Tensor) -> None:
        super().set(payload)
        for level in self._levels:  # a row that a micro-batch left would be one of a replaced payload: R3
            level[self._tokens_set :].zero_()
