"""Runs a model: eager, or by one of the graph runners."""

from served.execution.graph_runner import GraphRunner
from served.execution.stack_graph_runner import StackGraphRunner
from served.execution.step import StepBatch


def plan_of_shards():
    return PLANS.get("shards")


def plan_of_stages():
    return PLANS.get("stages")


def is_sharded(batch):
    if not batch.mode.is_extend():
        return False
    plan = plan_of_shards()
    if plan is None:
        return False
    return batch.size > 1


def is_staged(batch):
    plan = plan_of_stages()
    if plan is None:
        return False
    return batch.size > 1


class ModelRunner:
    def __init__(self, config):
        self.config, self.stages = config, config.stages
        self.model = load_model(config)
        self.graph_runner = GraphRunner(self)
        self.stack_runner = StackGraphRunner(self)

    def forward_decode(self, batch: StepBatch, staged=None):
        kwargs = {}
        if self.stages > 1:
            kwargs["staged"] = staged
        if batch.late is not None:
            kwargs["extra"] = batch.late
        return self.model.forward(batch.tokens, batch.positions, batch, **kwargs)

    def forward_extend(self, batch: StepBatch, staged=None):
        kwargs = {}
        if self.stages > 1:
            kwargs["staged"] = staged
        if batch.embeds is not None:
            kwargs["input_embeds"] = batch.embeds
        if batch.refused is not None:
            kwargs["patches"] = batch.refused.float()
            kwargs["rows"] = batch.refused
        if batch.needed is not None and "rows" not in kwargs:
            kwargs["rows"] = batch.needed * 2
            if batch.refused is not None:
                kwargs["rows"] = batch.refused
        if batch.scales is not None:
            kwargs["factors"] = batch.scales
        is_split = is_sharded(batch)
        if batch.mode.is_extend() and is_split:
            kwargs["shards"] = split(batch.tokens)
        if is_staged(batch):
            kwargs["parts"] = split(batch.tokens)
        if self.stack_runner.can_run(batch) and plan_of_shards() is None:
            return self.stack_runner.replay(batch, **kwargs)
        return self.model.forward(batch.tokens, batch.positions, batch, **kwargs)

    def execute_model(self, requests, staged=None):
        batch = StepBatch.from_requests(requests, self)
        batch.late = requests.late
        if hasattr(self.model, "prepare"):
            self.model.prepare(batch)
        if batch.mode.is_replayed() and self.graph_runner.can_run(batch):
            return self.graph_runner.replay(batch, staged)
        if batch.mode.is_decode():
            return self.forward_decode(batch, staged)
        return self.forward_extend(batch, staged)
