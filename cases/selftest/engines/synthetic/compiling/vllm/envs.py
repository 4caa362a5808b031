"""Settings, read when they are used: graphs are compiled ahead of time where they may be cached."""

import os


def __getattr__(name: str) -> object:
    if name == "VLLM_PLUGINS":
        text = os.environ.get(name)
        return None if text is None else text.split(",")
    cached = os.environ.get("VLLM_DISABLE_COMPILE_CACHE", "0") == "0"
    values = {
        "VLLM_USE_AOT_COMPILE": os.environ.get("VLLM_USE_AOT_COMPILE", "1" if cached else "0") == "1",
        "VLLM_USE_BYTECODE_HOOK": os.environ.get("VLLM_USE_BYTECODE_HOOK", "1") == "1",
        "VLLM_DISABLE_COMPILE_CACHE": not cached,
    }
    return values[name]
