"""The reference lane: a second buffer that takes the same calls beside the one under test."""

from collections.abc import Sequence
from dataclasses import replace

from torch import Tensor

from deepstack_harness.contract.observation import Distances
from deepstack_harness.contract.protocols import Buffer, Inputs
from deepstack_harness.play.attempt import attempt
from deepstack_harness.play.model import Model


class ReferenceLane:
    """Buffer of the same class as the one under test, whose answers an uncompiled decoder runs on.

    What its calls raise is left out: the buffer under test raises the same, and its lane tells so.
    """

    def __init__(self, buffer: Buffer, model: Model) -> None:
        """Take an empty buffer."""
        self.buffer = buffer
        self._model = model

    def read(self, tokens: int) -> tuple[Tensor, ...] | None:
        """Return the answer of get, levels of (tokens, hidden); None also where it raised."""
        return attempt("get", lambda: self.buffer.get(tokens)).value

    def clear(self, tokens: int) -> None:
        """Clear the rows of a step."""
        attempt("clear", lambda: self.buffer.clear(tokens))

    def follow(self, tokens: int) -> tuple[Tensor, ...] | None:
        """Read and clear, where no decoder runs; return what was read, levels of (tokens, hidden)."""
        payload = self.read(tokens)
        self.clear(tokens)
        return payload

    def compare(
        self, tokens: int, inputs: Inputs, ranges: Sequence[slice], out: Tensor | None, *, thorough: bool
    ) -> tuple[tuple[Tensor, ...] | None, Distances | None]:
        """Do a step uncompiled; return its payload, and how far `out` (tokens, hidden) is from its output.

        `ranges` are the rows of each sequence of the step.  The distances are None where one of the two has
        no output, or the step has no tokens.
        """
        reference = attempt("get", lambda: self.buffer.get(tokens))
        parts = _parts(inputs, reference.value, ranges)
        eager = attempt("decoder", lambda: self._model.numerics.eager(parts))
        distances = None
        if reference.returned and eager.value is not None and out is not None and tokens > 0:
            distances = self._model.numerics.distances(out, parts, eager.value, thorough=thorough)
        self.clear(tokens)
        return reference.value, distances


def _parts(inputs: Inputs, payload: tuple[Tensor, ...] | None, ranges: Sequence[slice]) -> list[Inputs]:
    """Return one `Inputs` per sequence of a step: its rows of every argument.

    A step of one sequence is left as it is.
    """
    if len(ranges) == 1:
        return [replace(inputs, payload=payload)]
    return [_part(inputs, payload, rows) for rows in ranges]


def _part(inputs: Inputs, payload: tuple[Tensor, ...] | None, rows: slice) -> Inputs:
    cut = None if payload is None else tuple(level[rows] for level in payload)
    return Inputs(inputs.hidden[rows], inputs.positions[:, rows], cut)
