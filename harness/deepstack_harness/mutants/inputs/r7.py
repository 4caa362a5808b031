"""Mutants that break R7 placement on a payload of another dtype, or while nothing is set."""

import torch
from torch import Tensor

from deepstack_harness.contract.rules import Rule
from deepstack_harness.revisions.reference import ReferenceBuffer


class DtypeFollowsPayload(ReferenceBuffer):
    """`set` converts the storage to the dtype of a payload, as vLLM #44384 proposes."""

    rule = Rule.R7
    fault = "dtype"

    def set(self, payload: Tensor) -> None:
        self._check(payload)
        dtype = torch.promote_types(payload.dtype, self._levels[0].dtype)
        if dtype is not self._levels[0].dtype:
            self.generation += 1
            self._retired.append(self._levels)
            self._levels = [level.to(dtype) for level in self._levels]
        super().set(payload)


class EmptyInFloat32(ReferenceBuffer):
    """Answers with float32 zeros while nothing is set."""

    rule = Rule.R7
    fault = "dtype"

    def get(self, tokens: int) -> tuple[Tensor, ...] | None:
        answer = super().get(tokens)
        if self._tokens_set or answer is None:
            return answer
        return tuple(torch.zeros(level.shape, dtype=torch.float32, device=level.device) for level in answer)
