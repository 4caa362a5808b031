"""The inputs of a step: what is captured, copied, refused or forgotten is listed in `graph_runner`."""

from dataclasses import dataclass
from enum import IntEnum, auto
from typing import Optional

import torch


class Mode(IntEnum):
    EXTEND = auto()
    DECODE = auto()
    IDLE = auto()
    VERIFY = auto()

    def is_extend(self, with_verify: bool = False):
        return self == Mode.EXTEND or (with_verify and self == Mode.VERIFY)

    def is_decode(self):
        return self == Mode.DECODE

    def is_decode_or_idle(self):
        return self in (Mode.DECODE, Mode.IDLE)

    def is_replayed(self):
        return self.is_decode() or self == Mode.VERIFY


@dataclass
class StepBatch:
    mode: Mode
    size: int
    tokens: torch.Tensor
    slots: torch.Tensor
    positions: torch.Tensor = None
    scales: torch.Tensor | None = None
    stale: torch.Tensor | None = None
    swapped: torch.Tensor | None = None
    kinds: torch.Tensor | None = None
    refused: torch.Tensor | None = None
    needed: torch.Tensor | None = None
    unset: torch.Tensor | None = None
    extend_lens: torch.Tensor | None = None
    late: torch.Tensor | None = None
    looped: torch.Tensor | None = None
    embeds: torch.Tensor | None = None
    scratch: torch.Tensor | None = None
    top: int = 1
    wide: bool = False
    hidden: bool = False
    log_probs: bool = False

    @classmethod
    def from_requests(cls, requests, runner):
        batch = cls(
            mode=requests.mode,
            size=len(requests.lens),
            tokens=requests.tokens,
            slots=requests.slots,
            scales=requests.scales,
            stale=requests.stale,
            swapped=requests.swapped,
            kinds=requests.kinds,
            refused=requests.refused,
            needed=requests.needed,
            looped=requests.looped,
            top=max(request.top for request in requests.members),
            wide=runner.config.wide,
            hidden=False,
            log_probs=requests.log_probs,
        )
        if not batch.mode.is_extend():
            batch.positions = requests.lens - 1
        else:
            batch.positions = requests.positions
            batch.extend_lens = requests.extend_lens
            batch.embeds = requests.embeds
        return batch

    def has_kinds(self):
        return self.kinds is not None
