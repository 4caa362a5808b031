"""Inputs of a step, with slots in a registry; some are members of a mixin, some are set by its methods."""

from __future__ import annotations

import dataclasses
import enum
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from hosted.runner.eager import Engine


class Kind(enum.Enum):
    PROMPT = "prompt"
    TOKEN = "token"
    NOTHING = "nothing"

    @property
    def fills(self):
        return self is Kind.PROMPT

    def runs_graph(self):
        return self in {Kind.TOKEN, Kind.NOTHING}


@dataclasses.dataclass
class Located:
    places: torch.Tensor | None = None
    windows: torch.Tensor | None = None

    def place(self, requests):
        self.windows = requests.windows


@dataclasses.dataclass(kw_only=True)
class Inputs(Located):
    kind: Kind
    ids: torch.Tensor
    adapters: list | None = None
    overrides: torch.Tensor | None = None
    marks: torch.Tensor | None = None
    biases: torch.Tensor | None = None
    picture: torch.Tensor | None = None
    hidden: torch.Tensor | None = None
    limit: int = 0
    live: torch.Tensor | None = None

    @staticmethod
    def gather(requests, engine: Engine):
        inputs = Inputs(
            kind=requests.kind,
            ids=requests.ids,
            places=requests.places,
            biases=requests.biases,
            overrides=requests.overrides,
            limit=engine.limit,
            live=requests.live,
        )
        inputs.place(requests)
        setattr(inputs, "marks", requests.marks)  # noqa: B010
        if requests.kind.fills:
            inputs.picture = requests.picture
        return inputs
