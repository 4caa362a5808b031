"""Wrappers that capture a callable for each batch, and replay it; graphs are recorded on a CPU."""

from collections.abc import Callable
from typing import Any

import torch

MODE: dict[str, object] = {"batch": None}
"""The batch that a step is for, in place of a forward context; None for no graph."""


class CUDAGraphWrapper:
    """Captures a callable for each batch, and replays it."""

    def __init__(self, runnable: Callable[..., Any]) -> None:
        self.runnable = runnable
        self.entries: dict[object, Any] = {}

    def unwrap(self) -> Callable[..., Any]:
        return self.runnable

    def __call__(self, *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401
        if MODE["batch"] is None:
            return self.runnable(*args, **kwargs)
        if MODE["batch"] not in self.entries:
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                out = self.runnable(*args, **kwargs)
            self.entries[MODE["batch"]] = graph, out
            return out
        graph, out = self.entries[MODE["batch"]]
        graph.replay()
        return out
