"""What holds for every case: one thread, no hub, a cold compile cache, named hypothesis profiles.

Nothing here imports torch; a case that does not need it pays nothing for it.
"""

import os
import tempfile

import pytest
from hypothesis import HealthCheck, settings

# Read when torch and datasets are imported, so set before any case is. An eager
# step takes 0.7 ms with one thread, and up to 41 ms unpinned on a busy machine.
os.environ["OMP_NUM_THREADS"] = "1"
os.environ["HF_HUB_OFFLINE"] = "1"

# `too_slow` and deadlines are clocks: a busy machine is no fault of the code.
_NO_CLOCK = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("ci", _NO_CLOCK, derandomize=True, database=None)
settings.register_profile("dev", _NO_CLOCK)
settings.register_profile("nightly", _NO_CLOCK, max_examples=5000, print_blob=True)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci"))


def pytest_configure(config: pytest.Config) -> None:
    """Give the run a compile cache of its own: counts taken on a warm one are wrong or zero."""
    if hasattr(config, "workerinput"):  # workers of pytest-xdist inherit it
        return
    cache = tempfile.TemporaryDirectory(prefix="inductor-", ignore_cleanup_errors=True)
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = cache.name
    config.add_cleanup(cache.cleanup)


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip `gpu` cases where there is no GPU; only they pay for the question."""
    if item.get_closest_marker("gpu"):
        import torch

        if not torch.cuda.is_available():
            pytest.skip("no CUDA device")
