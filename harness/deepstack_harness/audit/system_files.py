"""The files of vLLM with systems other than the buffer: placeholder ranges and dual-stream helpers."""

from deepstack_harness.sources.source import Source, SourceFile, read_since

RANGES_MEMBER, RANGES_CLASS, RANGES_SINCE = "vllm/multimodal/inputs.py", "PlaceholderRange", "0.16.0"
HELPERS_MEMBER, HELPERS_SINCE = "vllm/utils/multi_stream_utils.py", "0.19.0"
HELPERS = ("maybe_execute_in_parallel", "execute_in_parallel")
"""For one other stream, and, from 0.20.2 on, for any number of them."""


def range_file(source: Source) -> SourceFile:
    """Read the file of the class; raise `UsageError` where a source has none."""
    return read_since(source, RANGES_MEMBER, RANGES_SINCE)


def helper_file(source: Source) -> SourceFile:
    """Read the file of the helpers; raise `UsageError` where a source has none."""
    return read_since(source, HELPERS_MEMBER, HELPERS_SINCE)
