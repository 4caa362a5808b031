"""Releases of vLLM whose package tests import into their own process, once for all tests of a release."""

import functools

from deepstack_harness.engines.known import open_source
from deepstack_harness.sources.source import Source


@functools.lru_cache(maxsize=1)
def released(release: str) -> Source:
    """Open a release.

    Its package is imported once for as long as tests use the same release: the `conftest.py` of the checkout
    has the tests of a `release` run one after the other.
    """
    return open_source(f"vllm=={release}")
