"""Clear resets the count, and then zeroes by it: vLLM 0.33.0 zeroes too little as well."""

from deepstack_harness.revisions.reference import ReferenceBuffer


class CounterResetTooEarly(ReferenceBuffer):
    """Breaks R5: n < N rows are zeroed."""

    def clear(self, tokens: int) -> None:
        """Only what was asked for."""
        if tokens >= 0:
            self._tokens_set = 0
        super().clear(tokens)
