"""Padding of a step in engines: to the sizes of captured graphs, or to a multiple of the ranks."""

from deepstack_harness.errors import UsageError

CAPTURE_SIZES = (1, 2, 4, *range(8, 256, 8), *range(256, 513, 16))
"""vLLM's default sizes in tokens (`max_cudagraph_capture_size` in its compilation settings)."""


def unpadded(tokens: int) -> int:
    """Return `tokens` unchanged, as an engine without captured graphs does."""
    return _counted(tokens)


def pad_to_capture(tokens: int, largest: int = CAPTURE_SIZES[-1]) -> int:
    """Return the next capture size up to `largest`, or `tokens` itself above `largest` and for 0.

    An engine with few slots captures only the sizes of its decode steps, so that `largest` is twice the
    slots and prefill runs unpadded.  Raises `UsageError` for a negative count.
    """
    fitting = (size for size in CAPTURE_SIZES if _counted(tokens) <= size <= largest)
    return next(fitting, tokens) if tokens else 0


def pad_to_multiple(tokens: int, ranks: int) -> int:
    """Return the next multiple of `ranks`, which share a step equally under sequence parallelism.

    Raises `UsageError` for a negative count and for less than one rank.
    """
    if ranks < 1:
        raise UsageError(f"{ranks} ranks cannot share a step: sequence parallelism has 1 rank or more")
    return -(-_counted(tokens) // ranks) * ranks


def _counted(tokens: int) -> int:
    if tokens < 0:
        raise UsageError(f"a step of {tokens} tokens cannot be padded: counts are 0 or more")
    return tokens
