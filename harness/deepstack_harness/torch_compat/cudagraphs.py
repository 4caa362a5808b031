"""Tell if torch's own CUDA graphs (`mode="reduce-overhead"`) were really used."""


def graphs_skipped() -> int:
    """Count the graphs that Inductor runs without a CUDA graph, since `dynamo.start_counting`."""
    from torch._dynamo.utils import counters

    return int(counters["inductor"]["cudagraph_skips"])
