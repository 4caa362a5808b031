"""The files of vLLM with systems other than the buffer: placeholder ranges and dual-stream helpers."""

RANGES_MEMBER, RANGES_CLASS, RANGES_SINCE = "vllm/multimodal/inputs.py", "PlaceholderRange", "0.16.0"
HELPERS_MEMBER, HELPERS_SINCE = "vllm/utils/multi_stream_utils.py", "0.19.0"
HELPERS = ("maybe_execute_in_parallel", "execute_in_parallel")
"""For one other stream, and, from 0.20.2 on, for any number of them."""
