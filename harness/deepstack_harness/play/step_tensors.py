"""Tensors of a case's steps: payloads and inputs drawn from its seed, and the owner of each row."""

from collections.abc import Callable

import torch
from torch import Tensor

from deepstack_harness.contract.case import Case
from deepstack_harness.contract.observation import RowRange, Rows
from deepstack_harness.contract.protocols import Inputs
from deepstack_harness.contract.trace import Step
from deepstack_harness.play.attempt import Attempt
from deepstack_harness.play.model import Model
from deepstack_harness.play.payloads import CallersTensor, laid_out, same_bytes, values_of
from deepstack_harness.probes.rows import RowOwners

_REUSED = -1000.0
"""What a caller writes over its tensor after `set` returned: a buffer must have copied."""


class StepTensors:
    """Payloads and inputs of one case, in the order of its steps.

    Payloads are numbered from 1 in the order of the trace's set steps; `owners` knows the rows of each.
    """

    def __init__(self, case: Case, model: Model) -> None:
        """Draw nothing yet."""
        self.owners = RowOwners()
        self._seed = case.seed
        self._model = model
        self._sizes = model.sizes(case.trace)
        self._sets = 0
        self._given: dict[int, CallersTensor] = {}

    def payload(self, step: Step) -> Tensor:
        """Draw the payload (levels, tokens, hidden) of a set step, and remember whose rows they are."""
        self._sets += 1
        levels = self._sizes.levels if step.levels is None else step.levels
        hidden = self._sizes.hidden if step.hidden is None else step.hidden
        payload = values_of(step, self._random((levels, step.tokens, hidden), salt=self._sets))
        self.owners.remember(self._sets, payload)
        return payload

    def content(self, payload: Tensor) -> Rows | None:
        """Return the origin of each row of the last payload (levels, tokens, hidden).

        None where no two rows are equal, and none was known before.
        """
        content = self.owners.content(payload, self._sizes.dtype)
        plain = all(one == self._all_different(level, payload) for level, one in enumerate(content))
        return None if plain else content

    def give(
        self, lane: int, step: Step, payload: Tensor, set_payload: Callable[[Tensor], Attempt[None]]
    ) -> tuple[Attempt[None], bool]:
        """Set the last payload (levels, tokens, hidden) as its step lays it out, and reuse its memory.

        `lane` is 0 for the buffer under test and 1 for the one beside it, each with memory of its own.
        The second value is True if the call changed the tensor that it was given.
        """
        given = self._given[lane] = laid_out(step, payload, self._given.get(lane))
        done = set_payload(given.payload)
        changed = not same_bytes(given.payload, payload)
        given.reuse(_REUSED - self._sets)
        return done, changed

    def reused(self, payload: Tensor) -> None:
        """Remember the rows that the caller wrote over the last payload (levels, tokens, hidden)."""
        self.owners.remember(-self._sets, torch.full_like(payload, _REUSED - self._sets))

    def inputs(self, tokens: int, index: int) -> Inputs:
        """Draw hidden states (tokens, hidden) and positions of the step with this index."""
        hidden = self._random((tokens, self._model.family.hidden), salt=-1 - index)
        return Inputs(hidden, self._model.family.positions(tokens, self._model.device), None)

    def no_inputs(self, tokens: int) -> Inputs:
        """Return inputs for a step in which no decoder runs: hidden states (tokens, 1), all zero."""
        device = self._model.device
        return Inputs(torch.zeros((tokens, 1), device=device), torch.zeros(3, tokens, device=device), None)

    def _random(self, shape: tuple[int, ...], salt: int) -> Tensor:
        # Drawn on the CPU, so that every device gets the same numbers.
        generator = torch.Generator().manual_seed(self._seed * 1_000_003 + salt)
        drawn = torch.randn(shape, generator=generator)
        return drawn.to(dtype=self._sizes.dtype, device=self._model.device)

    def _all_different(self, level: int, payload: Tensor) -> tuple[RowRange, ...]:
        return (RowRange(self._sets, level, 0, payload.size(1)),) if payload.size(1) else ()
