"""Regions whose attributes a warm-up sees as every step does: `rows`, however it is written."""

from dataclasses import dataclass, field

import torch
from engine.compilation import support_torch_compile
from torch import nn


@support_torch_compile
class CopiedInto(nn.Module):
    def __init__(self):
        super().__init__()
        self.rows = torch.zeros(4)

    def before_step(self, rows):
        self.rows.copy_(rows)

    def forward(self, positions):
        return positions + self.rows


@support_torch_compile
class PersistentBuffer(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("rows", torch.zeros(4), persistent=False)

    def before_step(self, rows):
        self.rows[: len(rows)] = rows
        self.rows[len(rows) :].zero_()

    def forward(self, positions):
        return positions + self.rows


@support_torch_compile
class WrittenByOut(nn.Module):
    def __init__(self):
        super().__init__()
        self.rows = nn.Parameter(torch.zeros(4), requires_grad=False)

    def before_step(self, rows):
        torch.add(rows, 1, out=self.rows)

    def forward(self, positions):
        return positions + self.rows


@support_torch_compile
class WrittenThroughData(nn.Module):
    def __init__(self):
        super().__init__()
        self.rows = torch.empty(4)

    def before_step(self, rows):
        kept = self.rows
        kept[:2].copy_(rows)
        self.rows += 1

    def forward(self, positions):
        return positions + self.rows


@support_torch_compile
class ReadByLoading(nn.Module):
    def __init__(self):
        super().__init__()
        self.rows = None

    def load_weights(self, weights):
        self.rows = weights["rows"]

    def forward(self, positions):
        return positions if self.rows is None else positions + self.rows


@support_torch_compile
class SetBeforeTheFirstCall(nn.Module):
    def __init__(self):
        super().__init__()
        self.rows = ()

    def set_layers(self, layers):
        self.rows = tuple(layers)

    def forward(self, positions):
        return positions * 2 if self.rows else positions


@support_torch_compile
class PreparedInEveryCall(nn.Module):
    def __init__(self):
        super().__init__()
        self.rows = None
        self._kept = torch.zeros(16)

    def prepare(self, tokens):
        self.rows = self._kept[:tokens]

    def forward(self, positions):
        return positions if self.rows is None else positions + self.rows


@support_torch_compile
class HelperOfInit(nn.Module):
    def __init__(self, config):
        super().__init__()
        self._make_rows(config)

    def _make_rows(self, config):
        self.rows = torch.zeros(config.width) if config.width else None

    def forward(self, positions):
        return positions if self.rows is None else positions + self.rows


@support_torch_compile
class PropertyOfConfig(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.config = config

    @property
    def rows(self):
        return self.config.rows

    def forward(self, positions):
        return positions + self.rows


class Other:
    def __init__(self):
        self.rows = None


@support_torch_compile
class NamesakeElsewhere(nn.Module):
    def __init__(self):
        super().__init__()
        self.rows = torch.zeros(4)
        self.other = Other()

    def before_step(self, rows):
        self.other.rows = rows

    def forward(self, positions):
        return positions + self.rows


@support_torch_compile
class ReadOutsideAlone(nn.Module):
    def __init__(self):
        super().__init__()
        self.rows = None
        self.weight = torch.ones(4)

    def before_step(self, rows):
        self.rows = rows

    def compute_logits(self, positions):
        return positions if self.rows is None else positions + self.rows

    def forward(self, positions):
        rows = positions * self.weight
        return rows + 1


@dataclass
class Buffers:
    rows: torch.Tensor = field(default_factory=lambda: torch.zeros(4))


@support_torch_compile
class DataclassInPlace(nn.Module):
    def __init__(self):
        super().__init__()
        self.state = Buffers()

    def before_step(self, rows):
        self.state.rows.copy_(rows)

    def forward(self, positions):
        return positions + self.state.rows


@support_torch_compile
class ElementInPlace(nn.Module):
    def __init__(self):
        super().__init__()
        self.rows = [torch.zeros(4), torch.zeros(4)]

    def before_step(self, rows):
        for mine, theirs in zip(self.rows, rows, strict=True):
            mine.copy_(theirs)
        self.rows[0][:2] = 0

    def forward(self, positions):
        return positions + self.rows[0] + self.rows[1]


@support_torch_compile
class TheSameAgain(nn.Module):
    def __init__(self):
        super().__init__()
        self.rows = True

    def before_step(self, rows):
        self.rows = True

    def forward(self, positions):
        return positions * 2 if self.rows else positions


class Scaled(nn.Module):
    def __init__(self):
        super().__init__()
        self.rows = None

    def forward(self, positions):
        return positions if self.rows is None else positions * self.rows


class AfterLoading:
    def after_loading(self, layer):
        layer.rows = nn.Parameter(layer.weight.t())


@support_torch_compile
class ByQuantisation(nn.Module):
    def __init__(self):
        super().__init__()
        self.scaled = Scaled()

    def forward(self, positions):
        return self.scaled(positions)
