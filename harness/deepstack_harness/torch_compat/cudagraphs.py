"""Whether torch's own CUDA graphs (`mode="reduce-overhead"`) were really used."""

from torch._dynamo.utils import counters


def graphs_skipped() -> int:
    """Count the graphs that Inductor runs without a CUDA graph, since `dynamo.start_counting`."""
    return int(counters["inductor"]["cudagraph_skips"])
