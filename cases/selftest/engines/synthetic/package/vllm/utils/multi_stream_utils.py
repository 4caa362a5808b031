"""A file of helpers."""

import torch

from vllm.streams import unneeded


def maybe_execute_in_parallel(fn0, fn1, event0, event1, aux_stream=None):
    from vllm.compilation.breakable_cudagraph import BreakableCUDAGraphCapture

    if aux_stream is None or BreakableCUDAGraphCapture.is_active():
        return fn0(), fn1()
    event0.record()
    with torch.cuda.stream(aux_stream):
        event0.wait()
        second = fn1()
        event1.record()
    first = fn0()
    event1.wait()
    return first, second
