"""Models whose replayed region reads what every replay brings, or what no replay can meet."""

from typing import Optional

import torch
from served.execution.step import Mode, StepBatch
from served.layers.blocks import PlainLayer
from torch import nn


class Copied(nn.Module):
    def forward(self, tokens, positions, batch: StepBatch):
        return tokens + batch.scales + batch.slots


class CopiedByName(nn.Module):
    def forward(self, tokens, positions, batch: StepBatch):
        return tokens + getattr(batch, "looped")  # noqa: B009


class Refused(nn.Module):
    def forward(self, tokens, positions, batch: StepBatch):
        return tokens if batch.refused is None else tokens + batch.refused


class OnlyPrefill(nn.Module):
    def forward(self, tokens, positions, batch: StepBatch):
        if batch.mode.is_extend():
            tokens = tokens + batch.kinds
        return tokens


class PrefillByALocal(nn.Module):
    def forward(self, tokens, positions, batch: StepBatch):
        mode = batch.mode
        if mode.is_extend() and batch.kinds is not None:
            return tokens * 2
        return tokens


class LeavesEarly(nn.Module):
    def forward(self, tokens, positions, batch: StepBatch):
        if batch.mode.is_replayed():
            return tokens
        return tokens + batch.kinds


class PrefillByComparison(nn.Module):
    def forward(self, tokens, positions, batch: StepBatch):
        return tokens if batch.mode != Mode.EXTEND else tokens + batch.kinds


class NobodySets(nn.Module):
    def forward(self, tokens, positions, batch: StepBatch):
        return tokens if batch.unset is None else tokens + batch.unset


class SetInPrefillAlone(nn.Module):
    def forward(self, tokens, positions, batch: StepBatch):
        return tokens if batch.extend_lens is None else tokens[batch.extend_lens]


class OwnScratch(nn.Module):
    def forward(self, tokens, positions, batch: StepBatch):
        batch.scratch = tokens * 2
        return self.read(batch)

    def read(self, batch):
        return batch.scratch


class SizeOfTheGraph(nn.Module):
    def forward(self, tokens, positions, batch: StepBatch):
        return tokens.view(batch.size, -1)


class AsConfigured(nn.Module):
    def forward(self, tokens, positions, batch: StepBatch):
        if batch.wide and not batch.hidden:
            return tokens * 2
        return tokens


class StageTensors(nn.Module):
    def forward(self, tokens, positions, batch: StepBatch, staged: dict | None = None):
        return tokens if staged is None else staged["hidden"]


class EmbedsInPrefill(nn.Module):
    def forward(self, tokens, positions, batch: StepBatch, input_embeds: torch.Tensor | None = None):
        return tokens if input_embeds is None else input_embeds


class Stack(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = [PlainLayer()]

    def forward(self, tokens, positions, batch: StepBatch, embeds=None, cache=None, mask=None):
        hidden = embeds
        for layer in self.layers:
            hidden = layer(hidden, batch)
        return hidden if mask is None else hidden * mask


class FilledEmbeds(nn.Module):
    def __init__(self):
        super().__init__()
        self.model = Stack()

    def forward(self, tokens, positions, batch: StepBatch):
        return self.model(tokens, positions, batch, tokens * 2, None)


class MaskInDecodeAlone(nn.Module):
    def __init__(self):
        super().__init__()
        self.model = Stack()

    def forward(self, tokens, positions, batch: StepBatch):
        mask = tokens if batch.mode.is_decode() else None
        return self.model(tokens, positions, batch, embeds=tokens, mask=mask)


class PatchedStack(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = [PlainLayer()]

    def forward(self, tokens, positions, batch: StepBatch, embeds=None, *, patches=None):
        return embeds if patches is None else embeds + patches


class PatchesOfARefusedStep(nn.Module):
    def __init__(self):
        super().__init__()
        self.model = PatchedStack()

    def forward(self, tokens, positions, batch: StepBatch, patches=None):
        return self.model(tokens, positions, batch, tokens * 2, patches=patches)


class ShardsStack(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = [PlainLayer()]

    def forward(self, tokens, positions, batch: StepBatch, embeds=None, shards=None):
        return embeds if shards is None else shards


class ShardsWhereNoGraphIsReplayed(nn.Module):
    def __init__(self):
        super().__init__()
        self.model = ShardsStack()

    def forward(self, tokens, positions, batch: StepBatch, shards=None):
        return self.model(tokens, positions, batch, tokens * 2, shards)


class InnerTower(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = [PlainLayer()]

    def forward(self, tokens, positions, batch: StepBatch, embeds=None, mask=None):
        return embeds if mask is None else embeds * mask


class Shell(nn.Module):
    def __init__(self):
        super().__init__()
        self.tower = InnerTower()

    def forward(self, tokens, positions, batch: StepBatch, embeds=None):
        return self.tower(tokens, positions, batch, embeds=embeds, mask=tokens)


class LayersBehindAnotherName(nn.Module):
    def __init__(self):
        super().__init__()
        self.model = Shell()

    def forward(self, tokens, positions, batch: StepBatch):
        return self.model(tokens, positions, batch, tokens * 2)


class DirectStack(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = [PlainLayer()]

    def forward(self, tokens, positions, batch: StepBatch, embeds=None, mask=None):
        return embeds if mask is None else embeds * mask


class LayersOneLevelTooHigh(nn.Module):
    def __init__(self):
        super().__init__()
        self.language_model = DirectStack()

    @property
    def model(self):
        return self.language_model

    def forward(self, tokens, positions, batch: StepBatch):
        return self.language_model(tokens, positions, batch, tokens * 2, mask=tokens)


class ChosenFunction:
    @staticmethod
    def choose(width):
        if width > 1:
            return ChosenFunction._twice
        return ChosenFunction._same

    @staticmethod
    def _twice(hidden, batch):
        return hidden * batch.slots

    @staticmethod
    def _same(hidden, batch):
        return hidden + batch.slots


class CallsAChosenFunction(nn.Module):
    def __init__(self):
        super().__init__()
        self.combine = ChosenFunction.choose(2)

    def forward(self, tokens, positions, batch: StepBatch):
        return self.combine(tokens, batch)


class InPlace(nn.Module):
    def __init__(self):
        super().__init__()
        self.rows = torch.zeros(4)

    def prepare(self, batch):
        self.rows.copy_(batch.tokens)

    def forward(self, tokens, positions, batch: StepBatch):
        return tokens + self.rows


class WritesWhatItReads(nn.Module):
    def __init__(self):
        super().__init__()
        self.last = None

    def forward(self, tokens, positions, batch: StepBatch):
        self.last = tokens * 2
        return self.last


EntryClass = [
    Copied,
    CopiedByName,
    Refused,
    OnlyPrefill,
    PrefillByALocal,
    LeavesEarly,
    PrefillByComparison,
    NobodySets,
    SetInPrefillAlone,
    OwnScratch,
    SizeOfTheGraph,
    AsConfigured,
    StageTensors,
    EmbedsInPrefill,
    FilledEmbeds,
    MaskInDecodeAlone,
    PatchesOfARefusedStep,
    ShardsWhereNoGraphIsReplayed,
    LayersBehindAnotherName,
    LayersOneLevelTooHigh,
    CallsAChosenFunction,
    InPlace,
    WritesWhatItReads,
]
