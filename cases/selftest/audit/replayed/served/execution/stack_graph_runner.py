"""Captures the layers of a model for prefills; the model's own forward runs around them in each step."""

import torch
from served.execution.step import Mode, StepBatch


def arguments_of(stack, batch, staged):
    arguments = {"embeds": batch.embeds}
    if staged is not None:
        arguments["staged"] = staged
    return arguments


class StackGraphRunner:
    def __init__(self, model_runner):
        self.model_runner = model_runner
        self.rows = model_runner.config.rows
        self.tokens = torch.zeros(self.rows, dtype=torch.int64)
        self.slots = torch.zeros(self.rows, dtype=torch.int64)
        self.positions = torch.zeros(self.rows, dtype=torch.int64)
        self.embeds = torch.zeros(self.rows, model_runner.config.width)
        language_model = getattr(model_runner.model, "language_model", model_runner.model)
        self.stack = language_model.model
        self.capture()

    def can_run(self, batch: StepBatch):
        if not self.accepts(rows=len(batch.tokens), patches=batch.refused):
            return False
        return batch.size > 0

    def accepts(self, *, rows, patches):
        if patches is not None or rows > self.rows:
            return False
        return self.is_plain is not None

    def pads(self, batch: StepBatch):
        if batch.scales is not None:
            return False
        return len(batch.tokens) < self.rows

    def dummy(self, n):
        return StepBatch(
            mode=Mode.EXTEND,
            size=1,
            tokens=self.tokens[:n],
            slots=self.slots[:n],
            positions=self.positions[:n],
            embeds=self.embeds[:n],
        )

    def capture(self):
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph):
            self.out = self.run_stack(self.dummy(self.rows))

    def run_stack(self, batch):
        kwargs = arguments_of(self.stack, batch, None)
        if self.model_runner.stages > 1:
            for name in ("embeds",):
                kwargs[name] = None
        return self.stack.forward(batch.tokens, batch.positions, batch, **kwargs)

    def load_batch(self, batch: StepBatch):
        n = len(batch.tokens)
        self.tokens[:n].copy_(batch.tokens)
        self.slots[:n].copy_(batch.slots)
        self.positions[:n].copy_(batch.positions)

    def replay(self, batch: StepBatch, **kwargs):
        self.load_batch(batch)

        def replay_stack(*args, **layer_kwargs):
            embeds = layer_kwargs.get("embeds")
            if embeds is None and len(args) > 3:
                embeds = args[3]
            self.embeds[: len(embeds)].copy_(embeds)
            self.graph.replay()
            return self.out

        before = self.stack.forward
        self.stack.forward = replay_stack
        try:
            return self.model_runner.model.forward(batch.tokens, batch.positions, batch, **kwargs)
        finally:
            self.stack.forward = before
