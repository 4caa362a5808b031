"""Mutants that break R4 capacity where memory runs out, and after several moves."""

from deepstack_harness.contract.rules import Rule
from deepstack_harness.revisions.reference import ReferenceBuffer


class GrowsLevelByLevel(ReferenceBuffer):
    """`resize` replaces one level after the other: a failing allocation leaves levels of two sizes."""

    rule = Rule.R4
    fault = "lack of memory"

    def resize(self, tokens: int) -> None:
        if tokens < self._tokens_set:
            raise ValueError(f"resize to {tokens}")
        self.generation += 1
        for index, level in enumerate(self._levels):
            moved = level.new_zeros(tokens, level.size(1))
            moved[: self._tokens_set] = level[: self._tokens_set]
            self._levels[index] = moved


class ForgetsBeforeItGrows(ReferenceBuffer):
    """`resize` drops the payload before it allocates, so that a failing allocation loses it."""

    rule = Rule.R4
    fault = "lack of memory"

    def _make_room(self, tokens: int) -> None:
        if tokens > self.capacity:
            kept = [level[: self._tokens_set].clone() for level in self._levels]
            for level in self._levels:
                level[: self._tokens_set].zero_()
            self.resize(tokens)
            for level, rows in zip(self._levels, kept, strict=True):
                level[: self._tokens_set] = rows


class ResizeMakesNoRoom(ReferenceBuffer):
    """`resize` returns without making room, and calls above the old capacity are refused."""

    rule = Rule.R4
    fault = "stated capacity"

    def resize(self, tokens: int) -> None:
        if tokens < 0:
            raise ValueError(f"resize to {tokens}")

    def _make_room(self, tokens: int) -> None:
        if tokens > self.capacity:
            raise ValueError(f"{tokens} rows of {self.capacity}")


class CutsAtResizeBelowN(ReferenceBuffer):
    """`resize` below N is accepted, and rows behind it are answered as zeros."""

    rule = Rule.R4
    fault = "resize below N"

    def resize(self, tokens: int) -> None:
        if 0 <= tokens < self._tokens_set:
            for level in self._levels:
                level[tokens:].zero_()
            return
        super().resize(tokens)
