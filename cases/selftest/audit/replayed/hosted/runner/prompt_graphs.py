"""Captures the body of a model for prompts: the inputs of a replay are a changed copy of the live ones."""

import dataclasses

import torch
from hosted.batch_info import Inputs, Kind
from hosted.runner.token_graphs import GraphRunnerBase


def body_of(model):
    body = model
    while not hasattr(body, "layers"):
        body = body.body
    return body


class PromptGraphs(GraphRunnerBase):
    def __init__(self, engine):
        super().__init__(engine)
        self.body = body_of(engine.model)
        self.static = {
            "ids": torch.zeros(engine.rows, dtype=torch.int64),
            "places": torch.zeros(engine.rows, dtype=torch.int64),
        }
        self.embeds = torch.zeros(engine.rows, 8)
        self.capture()

    def capture(self):
        inputs = Inputs(kind=Kind.PROMPT, ids=self.static["ids"], places=self.static["places"])
        with torch.cuda.graph(self.graph):
            self.out = self.body.forward(inputs.ids, inputs, embeds=self.embeds)

    def can_run_graph(self, inputs):
        if inputs.overrides is not None:
            return False
        return len(inputs.ids) <= self.engine.rows

    def execute(self, inputs, **kwargs):
        n = len(inputs.ids)
        self.static["ids"][:n].copy_(inputs.ids)
        self.static["places"][:n].copy_(inputs.places)
        static = dataclasses.replace(inputs, ids=self.static["ids"], places=self.static["places"])

        def replay_body(ids, inputs, embeds=None, **rest):
            self.embeds[:n].copy_(embeds)
            self.graph.replay()
            return self.out[:n]

        eager = self.body.forward
        self.body.forward = replay_body
        try:
            return self.engine.model.forward(static.ids, static, **kwargs)
        finally:
            self.body.forward = eager
