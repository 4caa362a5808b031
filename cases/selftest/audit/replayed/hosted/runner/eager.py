"""Runs what no graph runs."""

from hosted.batch_info import Inputs
from hosted.runner.prompt_graphs import PromptGraphs
from hosted.runner.token_graphs import TokenGraphs


class Engine:
    def __init__(self, model, rows, limit):
        self.model, self.rows, self.limit = model, rows, limit
        self.tokens, self.prompts = TokenGraphs(self), None
        self.init_prompts()

    def init_prompts(self):
        if not hasattr(self.model, "body"):
            return
        self.prompts = PromptGraphs(self)

    def _stage_arguments(self, staged):
        return {"staged": staged} if self.stages else {}

    def _prompt_arguments(self, inputs, staged):
        arguments = self._stage_arguments(staged)
        if inputs.picture is not None:
            arguments["picture"] = inputs.picture
        return arguments

    def execute_model(self, requests, staged=None):
        inputs = Inputs.gather(requests, self)
        if inputs.kind.runs_graph() and self.tokens.can_run_graph(inputs):
            return self.tokens.execute(inputs)
        if inputs.kind.fills and self.prompts and self.prompts.can_run_graph(inputs):
            return self.prompts.execute(inputs, **self._prompt_arguments(inputs, staged))
        return self._execute_eager(inputs, staged)

    def _execute_eager(self, inputs, staged):
        if inputs.kind.fills:
            arguments = self._prompt_arguments(inputs, staged)
            return self.model.forward(inputs.ids, inputs, **arguments)
        return self.model.forward(inputs.ids, inputs, **self._stage_arguments(staged))
