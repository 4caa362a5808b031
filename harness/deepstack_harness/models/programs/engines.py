"""Engines in small around a buffer for the payload of deepstack, and their outputs against the decoder's."""

import tempfile
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from deepstack_harness.models.programs.buffers import ErasingBuffer, MovingBuffer, SmallBuffer
from deepstack_harness.models.programs.graphs import SmallGraph, compile_as_engines_do
from deepstack_harness.models.programs.trace import HIDDEN, LEVELS, drawn, played

weights = drawn(LEVELS + 1, HIDDEN, HIDDEN) / HIDDEN**0.5


def decoder(hidden: Tensor, payload: Sequence[Tensor], first: int = 0, last: int = LEVELS) -> Tensor:
    """Run layers of the family in small: hidden states (n, HIDDEN) and levels (n, WIDTH) -> (n, HIDDEN)."""
    for index in range(first, last + 1):  # level i of the payload is added after layer i
        hidden = hidden @ weights[index]
        hidden = hidden + payload[index] if payload and index < len(payload) else hidden
    return hidden


class SmallEngine:
    """An engine that compiles nothing."""

    made_by = SmallBuffer  # to test a buffer of your own, name it here

    def __init__(self) -> None:
        self.buffer, self.run = self.made_by(), self.compiled(self.model)

    def compiled(self, model: Callable[..., Any]) -> Callable[..., Any]:
        return model

    def set(self, payload: Tensor) -> None:
        self.buffer.set(payload)

    def forward(self, hidden: Tensor) -> Tensor:
        payload = self.buffer.get(len(hidden))
        out = self.step(hidden, payload)
        self.buffer.clear(len(hidden))
        return out

    def step(self, hidden: Tensor, payload: Sequence[Tensor]) -> Tensor:
        for tensor in (hidden, *(payload or ())):  # of any number of tokens, where it is compiled
            torch._dynamo.mark_dynamic(tensor, 0)
        return self.run(hidden, payload)

    def model(self, hidden: Tensor, payload: Sequence[Tensor]) -> Tensor:
        return decoder(hidden, payload)

    def wrong(self, op: str, hidden: Tensor, rows: Tensor) -> str:
        if op == "get":
            return ""
        out = self.forward(hidden)
        off, bare = (float((out - decoder(hidden, given)).abs().max()) for given in (tuple(rows), ()))
        return f"off from eager by {off:.3g}, from no payload by {bare:.3g}" if off > 1e-4 else ""

    def faults(self) -> list[str]:
        return played(self.wrong, self.set)


class SplittingEngine(SmallEngine):
    """An engine that cuts the rows of each level for two ranks."""

    def step(self, hidden: Tensor, payload: Sequence[Tensor]) -> Tensor:
        ranks = zip(*(level.chunk(2) for level in payload), strict=True)
        return super().step(hidden, [torch.cat(parts) for parts in zip(*ranks, strict=True)])


class Bfloat16Engine(SmallEngine):
    """An engine whose model is in bfloat16."""

    def __init__(self) -> None:
        super().__init__()
        self.buffer.levels = self.buffer.levels.bfloat16()

    def wrong(self, op: str, hidden: Tensor, rows: Tensor) -> str:
        hidden = hidden.bfloat16()
        for level, weight in zip(self.buffer.get(len(hidden)), weights.bfloat16(), strict=False):
            hidden = hidden @ weight + level
        return ""


class ShardingEngine(SmallEngine):
    """An engine that cuts the rows of a step for eight ranks."""

    def wrong(self, op: str, hidden: Tensor, rows: Tensor) -> str:
        level, shares = rows[0], [len(share) for share in hidden.chunk(8)]
        parts = level.chunk(8)
        lengths, self.buffer.tokens = [len(part) for part in parts], 0
        return f"ranks have {lengths} rows of the payload, not {shares}" if lengths != shares else ""


def stated(hidden: Tensor, answer: Tensor, level: Tensor) -> Tensor:
    return (hidden + answer) + level  # level i onto the whole of layer i


def added(hidden: Tensor, answer: Tensor, level: Tensor) -> Tensor:
    return stated(hidden, answer, level)


class RoundingEngine(SmallEngine):
    """An engine whose sums are compared to the bit, in two dtypes."""

    def wrong(self, op: str, hidden: Tensor, rows: Tensor) -> str:
        outs = [
            self.sums(add, hidden.to(dtype), rows)
            for dtype in (torch.bfloat16, torch.float64)
            for add in (added, stated)
        ]
        half, full = (outs[0] - outs[1]).abs(), (outs[2] - outs[3]).abs()
        count = f"{int(half.count_nonzero())} of {half.numel()} values are other ones in bfloat16"
        return f"{count}, off by {half.max():.3g}; in float64 by {full.max():.1g}" if half.any() else ""

    def sums(self, add: Callable[..., Tensor], hidden: Tensor, rows: Tensor) -> Tensor:
        for level, weight in zip(rows, weights.to(hidden), strict=False):
            hidden = add(hidden, torch.tanh(hidden @ weight), level.to(hidden))
        return hidden


class ReplayingEngine(SmallEngine):
    """An engine that captures its first step, and replays it in later ones."""

    graph: SmallGraph | None = None

    def forward(self, hidden: Tensor) -> Tensor:
        if self.graph is None:
            self.slot = hidden.clone()
            self.graph = SmallGraph(super().forward, self.slot)
        self.slot.copy_(hidden)
        return self.graph.replay()


class ErasingReplays(ReplayingEngine):
    """Replays of a get that makes the padding zero."""

    made_by = ErasingBuffer


class DecodeReplays(ReplayingEngine):
    """Replays of decodes, of which the last is a prefill chunk of one token."""

    def set(self, payload: Tensor) -> None:
        payload[:, :-1] = 0
        super().set(payload)


class MovingReplays(ReplayingEngine):
    """Replays that are captured again where the buffer has moved its storage."""

    made_by = MovingBuffer
    buffer: MovingBuffer

    def forward(self, hidden: Tensor) -> Tensor:
        if self.buffer.moved:
            rows, self.graph, self.buffer.moved = self.buffer.levels.clone(), None, False
            super().forward(hidden)
            self.buffer.levels.copy_(rows)
        return super().forward(hidden)


class CompiledEngine(SmallEngine):
    """An engine that compiles its decoder."""

    def compiled(self, model: Callable[..., Any]) -> Callable[..., Any]:
        return compile_as_engines_do(model)


class TextOnlyEngine(CompiledEngine):
    """An engine whose buffer is made while a vision tower is left out."""

    def __init__(self) -> None:
        super().__init__()
        place = "cpu"
        self.buffer.levels = self.buffer.levels.to(place)


class SpansEngine(CompiledEngine):
    """An engine that copies rows of images only."""

    def set(self, payload: Tensor) -> None:
        payload[:, 3:6] = 0  # text between the images of two requests
        visual, mixed = payload.abs().sum((0, 2)).nonzero().flatten().tolist(), torch.zeros_like(payload)
        picked = visual
        mixed[:, visual] = payload[:, picked]
        super().set(mixed)


class MicroBatchesEngine(CompiledEngine):
    """An engine that computes two halves of a step on their own."""

    def forward(self, hidden: Tensor) -> Tensor:
        whole, outs, first = self.buffer.get(len(hidden)), [], 0
        for half in hidden.clone().chunk(2):
            end = first + len(half)
            part = slice(first, end)
            outs.append(self.step(half, [level[part] for level in whole]))
            first = end
        self.buffer.clear(len(hidden))
        return torch.cat(outs)


class StagesEngine(CompiledEngine):
    """An engine whose later layers are on another machine."""

    def model(self, hidden: Tensor, payload: Sequence[Tensor]) -> Tensor:
        between = decoder(hidden, payload, last=0)
        sent = payload
        return decoder(between, sent, first=1)


class StoringEngine(CompiledEngine):
    """An engine that stores the payload on its model, too."""

    stored: Sequence[Tensor] = ()

    def model(self, hidden: Tensor, payload: Sequence[Tensor]) -> Tensor:
        given = payload
        return decoder(hidden, given)

    def step(self, hidden: Tensor, payload: Sequence[Tensor]) -> Tensor:
        self.stored = payload if self.buffer.tokens else ()
        return super().step(hidden, payload)


class ReloadingEngine(CompiledEngine):
    """An engine that compiles ahead of time in its first step; a step of no token loads the artifact."""

    artifact: Any = None

    def compiled(self, model: Callable[..., Any]) -> Callable[..., Any]:
        torch._dynamo.config.enable_aot_compile = True  # a switch before torch 2.12
        return self.ahead_of_time

    def ahead_of_time(self, *given: Any) -> Any:
        self.artifact = self.artifact or compile_as_engines_do(decoder).aot_compile((given, {}))  # type: ignore[attr-defined]
        return self.artifact(*given)

    def wrong(self, op: str, hidden: Tensor, rows: Tensor) -> str:
        if op != "reload":
            return super().wrong(op, hidden, rows)
        with tempfile.TemporaryDirectory() as folder:  # as a later process does, which has nothing else
            self.artifact.save_compiled_function(f"{folder}/artifact")
            torch.compiler.reset()
            with open(f"{folder}/artifact", "rb") as file:
                self.artifact = torch.compiler.load_compiled_function(file)
        return ""


class CountingEngine(CompiledEngine):
    """An engine with all guards; its graphs are counted by a backend that compiles nothing."""

    fullgraph, graphs = True, 0

    def compiled(self, model: Callable[..., Any]) -> Callable[..., Any]:
        return torch.compile(model, fullgraph=self.fullgraph, dynamic=False, backend=self.backend)

    def backend(self, graph: Any, inputs: object) -> Any:
        self.graphs += 1
        return graph.forward

    def wrong(self, op: str, hidden: Tensor, rows: Tensor) -> str:
        built = self.graphs
        self.forward(hidden)
        again = 0 < built < self.graphs
        return f"compiled again, graph {self.graphs}; one serves every step" if again else ""


class PackingEngine(CountingEngine):
    """An engine whose levels are next to the embeddings."""

    def step(self, hidden: Tensor, payload: Sequence[Tensor]) -> Tensor:
        return super().step(torch.cat([hidden, *(payload or ())], dim=1), ())

    def model(self, hidden: Tensor, payload: Sequence[Tensor]) -> Tensor:
        hidden, *levels = hidden.split(HIDDEN, dim=1)  # type: ignore[no-untyped-call]
        return decoder(hidden, levels)


class MaskingEngine(CountingEngine):
    """An engine that adds the rows that were set only."""

    def model(self, hidden: Tensor, payload: Sequence[Tensor]) -> Tensor:
        count = self.count
        real = (torch.arange(len(hidden)) < count).unsqueeze(1)
        return decoder(hidden, [level * real for level in payload])

    def step(self, hidden: Tensor, payload: Sequence[Tensor]) -> Tensor:
        self.count = torch.tensor(self.buffer.tokens)
        return super().step(hidden, payload)


class ScatteringEngine(CountingEngine):
    """An engine that writes the features of some tokens where a mask has them."""

    fullgraph = False

    def model(self, hidden: Tensor, payload: Sequence[Tensor]) -> Tensor:
        mask, *features = payload
        return decoder(hidden, [self.level(mask, rows, torch.zeros_like(hidden)) for rows in features])

    def level(self, mask: Tensor, rows: Tensor, level: Tensor) -> Tensor:
        level.masked_scatter_(mask[:, None], rows)
        return level

    def wrong(self, op: str, hidden: Tensor, rows: Tensor) -> str:
        torch.compiler.reset()
        mask, self.graphs = torch.arange(len(hidden)) < self.buffer.tokens, 0
        self.run(hidden, [mask, *(level[mask] for level in rows)])
        return f"{self.graphs} graphs, one is enough" if self.graphs > 1 else ""
