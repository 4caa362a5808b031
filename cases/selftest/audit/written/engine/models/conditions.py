"""Regions whose optional arguments come from the runner, under a condition each."""

import torch
from engine.compilation import support_torch_compile
from torch import nn


@support_torch_compile
class FixedForARun(nn.Module):
    def forward(
        self,
        input_ids,
        positions,
        by_method: torch.Tensor | None = None,
        by_property: torch.Tensor | None = None,
        by_local: torch.Tensor | None = None,
        by_helper: torch.Tensor | None = None,
        by_environment: torch.Tensor | None = None,
        by_type: torch.Tensor | None = None,
        by_loading: torch.Tensor | None = None,
        by_function: torch.Tensor | None = None,
    ):
        return positions


@support_torch_compile
class ByRequests(nn.Module):
    def forward(
        self,
        input_ids,
        positions,
        by_argument: torch.Tensor | None = None,
        by_request: torch.Tensor | None = None,
        by_state: torch.Tensor | None = None,
        by_comprehension: torch.Tensor | None = None,
        by_length: torch.Tensor | None = None,
        by_both: torch.Tensor | None = None,
    ):
        return positions


@support_torch_compile
class InnerOfOuter(nn.Module):
    """Its caller decides, from attributes that are made in `__init__` or changed by a step."""

    def forward(
        self,
        positions,
        when_wide: torch.Tensor | None = None,
        when_named: torch.Tensor | None = None,
        when_switched: torch.Tensor | None = None,
        when_listed: torch.Tensor | None = None,
    ):
        return positions


class Outer(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.config = config
        self.inner = InnerOfOuter()
        self.width = config.width
        self.listed = []
        self.rows = torch.zeros(4, 8)
        self._switched = False

    @property
    def is_named(self):
        return self.config.architecture == "named"

    @property
    def is_switched(self):
        return self._switched

    def before_step(self, rows):
        setattr(self, "_switched", rows is not None)  # noqa: B010
        self.listed.append(rows)

    def forward(self, input_ids, positions):
        wide = self.rows if self.width > 4 else None
        named = None
        if self.is_named:
            named = self.rows
        switched = self.rows if self.is_switched else None
        listed = self.rows if len(self.listed) else None
        return self.inner(
            positions, when_wide=wide, when_named=named, when_switched=switched, when_listed=listed
        )
