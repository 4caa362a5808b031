"""hypothesis profiles: `ci` plays the same examples every time, `dev` looks for new ones, `nightly` long."""

import pytest
from hypothesis import HealthCheck, settings

# `too_slow` and deadlines are clocks: a busy machine is no fault of the code.
_NO_CLOCK = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])


def load_profile(name: str) -> None:
    """Register all three and take one; raises `pytest.UsageError` for another name."""
    settings.register_profile("ci", _NO_CLOCK, derandomize=True, database=None)
    settings.register_profile("dev", _NO_CLOCK)
    settings.register_profile("nightly", _NO_CLOCK, max_examples=5000, print_blob=True)
    if name not in {"ci", "dev", "nightly"}:
        raise pytest.UsageError(f"unknown hypothesis profile '{name}'; known are ci, dev, nightly")
    settings.load_profile(name)
