"""Models whose replayed region reads what a replay does not bring."""

from typing import Optional

import torch
from served.execution.step import StepBatch
from served.layers.blocks import PlainLayer, TypedLayer, route, run_body
from torch import nn


class NotCopied(nn.Module):
    def forward(self, tokens, positions, batch: StepBatch):
        return tokens + batch.stale


class Swapped(nn.Module):
    def forward(self, tokens, positions, batch: StepBatch):
        rows = batch.swapped
        return tokens + rows


class AbsentAtCapture(nn.Module):
    def forward(self, tokens, positions, batch: StepBatch):
        if batch.kinds is not None:
            tokens = tokens + batch.kinds
        return tokens


class UnderAnotherName(nn.Module):
    @torch.no_grad()
    def forward(self, tokens, positions, step: StepBatch):
        info = step
        return self.body(tokens, info)

    def body(self, tokens, info):
        return tokens if info.kinds is None else tokens * 2


class InALayer(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList([TypedLayer() for _ in range(2)])

    def forward(self, tokens, positions, batch: StepBatch):
        for layer in self.layers:
            tokens = layer(tokens, batch)
        return tokens


class InAFunction(nn.Module):
    def forward(self, tokens, positions, batch: StepBatch):
        return route(tokens, info=batch)


class SetLater(nn.Module):
    def forward(self, tokens, positions, batch: StepBatch):
        return tokens if batch.late is None else tokens + batch.late


class PythonValue(nn.Module):
    def forward(self, tokens, positions, batch: StepBatch):
        return tokens[:, : batch.top]


class InTheOtherBranch(nn.Module):
    def forward(self, tokens, positions, batch: StepBatch):
        if batch.mode.is_extend():
            return tokens
        return tokens if batch.kinds is None else tokens * 2


class NotRefusedHere(nn.Module):
    def forward(self, tokens, positions, batch: StepBatch):
        if batch.refused is None and batch.kinds is not None:
            tokens = tokens + batch.kinds
        return tokens


class RefusedWhenAbsent(nn.Module):
    def forward(self, tokens, positions, batch: StepBatch):
        return tokens if batch.needed is None else tokens + batch.needed


class KeywordOfTheRunner(nn.Module):
    def forward(self, tokens, positions, batch: StepBatch, extra: torch.Tensor | None = None):
        return tokens if extra is None else tokens + extra


class Stack(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = [PlainLayer()]
        self.rows = None

    def forward(self, tokens, positions, batch: StepBatch, embeds=None, deep=None):
        hidden = tokens if embeds is None else embeds
        for layer in self.layers:
            hidden = layer(hidden, batch)
        return hidden if deep is None else hidden + deep


class GivesDeep(nn.Module):
    def __init__(self):
        super().__init__()
        self.model = Stack()

    def forward(self, tokens, positions, batch: StepBatch):
        embeds, deep = tokens, None
        if not batch.mode.is_decode() and batch.embeds is not None:
            embeds, deep = batch.embeds, batch.embeds * 2
        return self.model(tokens, positions, batch, embeds, deep)


class InnerStack(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = [PlainLayer()]

    def forward(self, tokens, positions, batch: StepBatch, embeds=None, *, weights=None):
        return embeds if weights is None else embeds * weights


class Wrapped(nn.Module):
    def __init__(self):
        super().__init__()
        self.model = InnerStack()

    def forward(self, tokens, positions, batch: StepBatch, embeds=None, weights=None):
        return self.model(tokens, positions, batch, embeds=embeds, weights=weights)


class GivesWeights(nn.Module):
    def __init__(self):
        super().__init__()
        self.language_model = Wrapped()

    def forward(self, tokens, positions, batch: StepBatch):
        weights = self.encode(batch) if batch.mode.is_extend() and batch.extend_lens is not None else None
        return self.language_model(tokens, positions, batch, tokens, weights)

    def encode(self, batch):
        return torch.ones(1)


class HeldStack(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = [PlainLayer()]
        self.rows = None

    def forward(self, tokens, positions, batch: StepBatch, embeds=None):
        return embeds if self.rows is None else embeds + self.rows


class WritesIntoTheStack(nn.Module):
    def __init__(self):
        super().__init__()
        self.model = HeldStack()

    def forward(self, tokens, positions, batch: StepBatch):
        self.model.rows = batch.embeds
        return self.model(tokens, positions, batch, embeds=tokens)


class MadeByAMethod(nn.Module):
    def __init__(self):
        super().__init__()
        self.model = self._make_stack(4)

    def _make_stack(self, width):
        return MaskedStack(width)

    def forward(self, tokens, positions, batch: StepBatch):
        mask = tokens if batch.extend_lens is not None else None
        return self.model(tokens, positions, batch, embeds=tokens, mask=mask)


class MaskedStack(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.layers, self.first = [PlainLayer()], 0

    def forward(self, tokens, positions, batch: StepBatch, embeds=None, mask=None):
        return embeds if mask is None else embeds * mask


class FactoredStack(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = [PlainLayer()]

    def forward(self, tokens, positions, batch: StepBatch, embeds=None, factors=None, patches=None):
        hidden = embeds if factors is None else embeds * factors
        return hidden if patches is None else hidden + patches


class FactorsThatNoGateRefuses(nn.Module):
    def __init__(self):
        super().__init__()
        self.model = FactoredStack()

    def forward(self, tokens, positions, batch: StepBatch, factors=None, patches=None):
        patches = tokens if patches is None else patches
        return self.model(tokens, positions, batch, tokens * 2, factors, patches)


class RowsOfTwoKindsOfSteps(nn.Module):
    def forward(self, tokens, positions, batch: StepBatch, rows=None):
        return tokens if rows is None else tokens + rows


class PartsStack(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = [PlainLayer()]

    def forward(self, tokens, positions, batch: StepBatch, embeds=None, parts=None):
        return embeds if parts is None else parts


class PartsUnderAnotherPlan(nn.Module):
    def __init__(self):
        super().__init__()
        self.model = PartsStack()

    def forward(self, tokens, positions, batch: StepBatch, parts=None):
        return self.model(tokens, positions, batch, tokens * 2, parts)


class TintedStack(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = [PlainLayer()]

    def forward(self, tokens, positions, batch: StepBatch, embeds=None, tint=None):
        return embeds if tint is None else embeds + tint


class GivesThroughARoutine(nn.Module):
    def __init__(self):
        super().__init__()
        self.model = TintedStack()

    def forward(self, tokens, positions, batch: StepBatch):
        return run_body(self.model, tokens, batch, tint=tokens)


class Prepared(nn.Module):
    def __init__(self):
        super().__init__()
        self.rows = None

    def prepare(self, batch):
        self.rows = batch.tokens * 2

    def forward(self, tokens, positions, batch: StepBatch):
        return tokens if self.rows is None else tokens + self.rows


EntryClass = [
    NotCopied,
    Swapped,
    AbsentAtCapture,
    UnderAnotherName,
    InALayer,
    InAFunction,
    SetLater,
    PythonValue,
    InTheOtherBranch,
    NotRefusedHere,
    RefusedWhenAbsent,
    KeywordOfTheRunner,
    GivesDeep,
    GivesWeights,
    WritesIntoTheStack,
    MadeByAMethod,
    FactorsThatNoGateRefuses,
    RowsOfTwoKindsOfSteps,
    PartsUnderAnotherPlan,
    GivesThroughARoutine,
    Prepared,
]
