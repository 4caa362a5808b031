"""Run a decoder as it is, compiled, captured, reloaded or interpreted; count its graphs and its kernels.

Private: what is public is imported from `deepstack_harness` itself.
"""
