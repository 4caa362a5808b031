"""Captures single tokens; a batch is refused through a helper."""

import torch
from hosted.batch_info import Inputs, Kind
from hosted.registry import token_registry


class GraphRunnerBase:
    def __init__(self, engine):
        self.engine = engine
        self.graph = torch.cuda.CUDAGraph()

    def model_forward(self):
        return self.engine.model.forward


class TokenGraphs(GraphRunnerBase):
    kind_of_capture = Kind.TOKEN

    def __init__(self, engine):
        super().__init__(engine)
        self.registry = token_registry(engine.rows)
        self.biases = torch.zeros(engine.rows)
        self.capture()

    def prepare_capture(self, n):
        def slot(name):
            return self.registry.view(name, n)

        inputs = Inputs(
            kind=self.kind_of_capture,
            ids=slot("ids"),
            places=slot("places"),
            windows=slot("windows"),
            limit=self.engine.limit,
            biases=self.biases[:n],
            live=slot("live"),
        )
        inputs.adapters = [None] * n
        return inputs

    def capture(self):
        inputs = self.prepare_capture(self.engine.rows)
        forward = self.engine.model.forward
        with torch.cuda.graph(self.graph):
            self.out = forward(inputs.ids, inputs)

    def accepts(self, *, n, overrides, adapters):
        if overrides is not None or adapters:
            return False
        return n <= self.engine.rows

    def can_run_graph(self, inputs):
        return self.accepts(n=len(inputs.ids), overrides=inputs.overrides, adapters=inputs.adapters)

    def execute(self, inputs):
        self.registry.fill_from(inputs, len(inputs.ids))
        if inputs.biases is None:
            self.biases.zero_()
        else:
            self.biases[: len(inputs.ids)] = inputs.biases
        self.graph.replay()
        return self.out[: len(inputs.ids)]
