"""The same in pieces, which are captured one after the other in a single run."""

from typing import Any

import torch

from vllm.compilation.cuda_graph import MODE, CUDAGraphWrapper  # type: ignore[import-not-found]


class BreakableCUDAGraphWrapper(CUDAGraphWrapper):  # type: ignore[misc]
    """Captures two pieces: the callable, and what follows it."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401
        if MODE["batch"] is None:
            return self.runnable(*args, **kwargs)
        if MODE["batch"] not in self.entries:
            pieces = [torch.cuda.CUDAGraph(), torch.cuda.CUDAGraph()]
            with torch.cuda.graph(pieces[0]):
                out = self.runnable(*args, **kwargs)
            with torch.cuda.graph(pieces[1]):
                out.add_(0)
            self.entries[MODE["batch"]] = pieces, out
            return out
        pieces, out = self.entries[MODE["batch"]]
        for piece in pieces:
            piece.replay()
        return out
