"""Captures the whole model for decodes, and replays it."""

import bisect
from dataclasses import dataclass

import torch
from served.execution.step import Mode, StepBatch


@dataclass
class Buffers:
    tokens: torch.Tensor
    slots: torch.Tensor
    positions: torch.Tensor
    scales: torch.Tensor
    stale: torch.Tensor
    swapped: torch.Tensor
    looped: torch.Tensor
    staged: dict

    def fill(self, batch: StepBatch, n: int, padded: int, staged=None):
        if n != padded:
            self.slots.zero_()
        self.tokens[:n].copy_(batch.tokens)
        self.slots[:n].copy_(batch.slots)
        self.positions[:n].copy_(batch.positions)
        if batch.scales is not None:
            self.scales[:n].copy_(batch.scales)
        self.swapped = batch.swapped
        for name in ("looped",):
            getattr(self, name)[:n].copy_(getattr(batch, name))
        if staged is not None:
            for key, rows in self.staged.items():
                rows[:n].copy_(staged[key])


class GraphRunner:
    def __init__(self, model_runner):
        self.model_runner = model_runner
        self.sizes = model_runner.config.sizes
        self.buffers = Buffers(*make_buffers(max(self.sizes)))
        self.graphs, self.outputs = {}, {}
        self.mode_of_capture = Mode.DECODE
        if model_runner.config.verifies:
            self.mode_of_capture = Mode.VERIFY
        self.capture()

    def can_run(self, batch: StepBatch):
        if batch.refused is not None:
            return False
        has_what_it_needs = batch.needed is not None
        fits = batch.size <= max(self.sizes)
        fits = fits and has_what_it_needs
        return fits  # noqa: RET504

    def capture(self):
        for size in reversed(self.sizes):
            with compiled(self.model_runner.model) as forward:
                self.graphs[size], self.outputs[size] = self.capture_size(size, forward)

    def capture_size(self, size, forward):
        buffers = self.buffers
        tokens = buffers.tokens[:size]
        scales = buffers.scales[:size]
        batch = StepBatch(
            mode=self.mode_of_capture,
            size=size,
            tokens=tokens,
            slots=buffers.slots[:size],
            positions=buffers.positions[:size],
            scales=scales,
            stale=buffers.stale[:size],
            swapped=buffers.swapped[:size],
            looped=buffers.looped[:size],
            top=1,
            wide=self.model_runner.config.wide,
            hidden=False,
            log_probs=False,
        )

        def run_once():
            kwargs = {}
            if self.model_runner.stages > 1:
                kwargs["staged"] = {key: rows[:size] for key, rows in buffers.staged.items()}
            return forward(tokens, batch.positions, batch, **kwargs)

        run_once()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            out = run_once()
        return graph, out

    def replay(self, batch: StepBatch, staged=None):
        size = self.sizes[bisect.bisect_left(self.sizes, batch.size)]
        self.buffers.fill(batch, batch.size, size, staged)
        self.graphs[size].replay()
        return self.outputs[size][: batch.size]
