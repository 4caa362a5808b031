"""Environment of a worker that interprets Triton source; no torch: it is needed before a worker starts."""

import os

ENVIRONMENT = {"TRITON_INTERPRET": "1", "CUDA_VISIBLE_DEVICES": ""}
"""Environment of a worker with interpreted sessions: triton reads the first when it is imported."""


def environment_in(folder: str) -> dict[str, str]:
    """Return the environment of a worker that interprets, with compile caches of its own in `folder`."""
    caches = {"TORCHINDUCTOR_CACHE_DIR": f"{folder}/inductor", "TRITON_CACHE_DIR": f"{folder}/triton"}
    return {**ENVIRONMENT, **caches}


def interprets_here() -> bool:
    """Return True in a process that was started with `ENVIRONMENT`."""
    return os.environ.get("TRITON_INTERPRET") == "1"
