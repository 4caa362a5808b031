"""Regions that read what a step writes and the warm-up did not, in many spellings."""

from dataclasses import dataclass

import torch
from engine.compilation import support_torch_compile
from torch import nn


@support_torch_compile
class Rebound(nn.Module):
    def __init__(self):
        super().__init__()
        self.rows = None

    def before_step(self, rows):
        self.rows = rows

    def forward(self, positions):
        return positions if self.rows is None else positions + self.rows


@support_torch_compile
class SetByName(nn.Module):
    def __init__(self):
        super().__init__()
        setattr(self, "rows", None)  # noqa: B010

    def before_step(self, rows):
        setattr(self, "rows", rows)  # noqa: B010

    def forward(self, positions):
        rows = getattr(self, "rows", None)
        return positions if rows is None else positions + rows


@support_torch_compile
class ThroughProperty(nn.Module):
    def __init__(self):
        super().__init__()
        self._rows = None

    @property
    def current(self):
        return self._rows

    @current.setter
    def current(self, rows):
        self._rows = rows

    def before_step(self, rows):
        self.current = rows

    def forward(self, positions):
        return positions if self.current is None else positions + self.current


@support_torch_compile
class ThroughHelpers(nn.Module):
    def __init__(self):
        super().__init__()
        self.rows = None

    def _keep(self, rows):
        self.rows = rows

    def _kept(self):
        return self.rows

    def before_step(self, rows):
        self._keep(rows)

    def forward(self, positions):
        rows = self._kept()
        return positions if rows is None else positions + rows


class Adder(nn.Module):
    def __init__(self):
        super().__init__()
        self.rows = None

    def forward(self, positions):
        return positions if self.rows is None else positions + self.rows


@support_torch_compile
class InSubmodule(nn.Module):
    def __init__(self):
        super().__init__()
        self.adder = Adder()

    def before_step(self, rows):
        self.adder.rows = rows

    def forward(self, positions):
        return self.adder(positions)


class Layer(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.width = width
        self.rows = None

    def forward(self, positions):
        return positions if self.rows is None else positions + self.rows


@support_torch_compile
class InEachLayer(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.layers = nn.ModuleList([Layer(config.width) for _ in range(config.depth)])

    def before_step(self, rows):
        for at, layer in enumerate(self.layers):
            layer.rows = rows[at]

    def forward(self, positions):
        for layer in self.layers:
            positions = layer(positions)
        return positions


@support_torch_compile
class ListElement(nn.Module):
    def __init__(self):
        super().__init__()
        self.rows = [None, None]

    def before_step(self, rows):
        self.rows[0] = rows

    def forward(self, positions):
        return positions if self.rows[0] is None else positions + self.rows[0]


@support_torch_compile
class DictEntry(nn.Module):
    def __init__(self):
        super().__init__()
        self.rows = {}

    def before_step(self, rows):
        self.rows.update(first=rows)

    def forward(self, positions):
        rows = self.rows.get("first")
        return positions if rows is None else positions + rows


@dataclass
class StepState:
    rows: torch.Tensor | None = None


@support_torch_compile
class InDataclass(nn.Module):
    def __init__(self):
        super().__init__()
        self.state = StepState()

    def before_step(self, rows):
        self.state.rows = rows

    def forward(self, positions):
        state = self.state
        return positions if state.rows is None else positions + state.rows


@support_torch_compile
class ByRunner(nn.Module):
    def __init__(self):
        super().__init__()
        self.scale_now = 1.0

    def forward(self, positions):
        return positions * self.scale_now


@support_torch_compile
class ByAliasOfRunner(nn.Module):
    def __init__(self):
        super().__init__()
        self.begun = 0

    def forward(self, positions):
        return positions * 2 if self.begun > 3 else positions


@support_torch_compile
class Flag(nn.Module):
    def __init__(self):
        super().__init__()
        self.rows = False

    def before_step(self, rows):
        self.rows = True

    def forward(self, positions):
        return positions * 2 if self.rows else positions


@support_torch_compile
class Replaced(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("rows", torch.zeros(4))

    def before_step(self, rows):
        self.rows = rows.clone()

    def forward(self, positions):
        return positions + self.rows


@support_torch_compile
class MadeLazily(nn.Module):
    def __init__(self):
        super().__init__()
        self.rows = None

    def before_step(self, rows):
        if self.rows is None:
            self.rows = torch.zeros_like(rows)
        self.rows.copy_(rows)

    def forward(self, positions):
        return positions if self.rows is None else positions + self.rows


@support_torch_compile
class InTuple(nn.Module):
    def __init__(self):
        super().__init__()
        self.rows, self.length = None, 0

    def before_step(self, rows):
        self.rows, self.length = rows, len(rows)

    def forward(self, positions):
        return positions if self.rows is None else positions + self.rows


@support_torch_compile
class Dropped(nn.Module):
    def __init__(self):
        super().__init__()
        self.rows = torch.zeros(4)

    def before_step(self, rows):
        if rows is None:
            self.rows = None

    def forward(self, positions):
        return positions if self.rows is None else positions + self.rows


@support_torch_compile
class PastSetattr(nn.Module):
    def __init__(self):
        super().__init__()
        self.rows = None

    def before_step(self, rows):
        object.__setattr__(self, "rows", rows)

    def forward(self, positions):
        return positions if self.rows is None else positions + self.rows


@support_torch_compile
class InItsDict(nn.Module):
    def __init__(self):
        super().__init__()
        self.rows = None

    def before_step(self, rows):
        self.__dict__["rows"] = rows

    def forward(self, positions):
        return positions if self.rows is None else positions + self.rows


class KeepsRows:
    def before_step(self, rows):
        self.rows = rows


@support_torch_compile
class FromMixin(KeepsRows, nn.Module):
    rows = None

    def forward(self, positions):
        return positions if self.rows is None else positions + self.rows


@support_torch_compile
class FreshInEveryCall(nn.Module):
    def __init__(self):
        super().__init__()
        self.rows = torch.zeros(4)

    def prepare(self, tokens):
        self.rows = torch.zeros(tokens)

    def forward(self, positions):
        return positions + self.rows


@support_torch_compile
class CountedInEveryCall(nn.Module):
    def __init__(self):
        super().__init__()
        self.rows = 0

    def prepare(self, tokens):
        self.rows = tokens

    def forward(self, positions):
        return positions * self.rows


@support_torch_compile
class AfterTheCall(nn.Module):
    def __init__(self):
        super().__init__()
        self.rows = None

    def forward(self, positions):
        return positions if self.rows is None else positions + self.rows


class WritesAfterTheCall(nn.Module):
    def __init__(self):
        super().__init__()
        self.model = AfterTheCall()

    def embed(self, rows):
        self.model.rows = rows

    def before_step(self, rows):
        self.embed(rows)

    def forward(self, positions):
        return self.model(positions)
