"""The file of a vLLM source that has `PlaceholderRange`; no torch is imported here."""

from deepstack_harness.sources.source import Source, SourceFile, read_since

RANGES_MEMBER, RANGES_CLASS, RANGES_SINCE = "vllm/multimodal/inputs.py", "PlaceholderRange", "0.16.0"


def range_file(source: Source) -> SourceFile:
    """Read the file of the class; raise `UsageError` where a source has none."""
    return read_since(source, RANGES_MEMBER, RANGES_SINCE)
