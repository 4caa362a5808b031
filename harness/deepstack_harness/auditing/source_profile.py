"""The sandbox of a worker that reads a source by itself."""

import os
from contextlib import suppress
from dataclasses import replace

from deepstack_harness.catalogue.data_files import cache
from deepstack_harness.sources.release import Release
from deepstack_harness.sources.source import Source
from deepstack_harness.workers.profiles import SandboxProfile


def source_profile(source: Source, profile: SandboxProfile) -> SandboxProfile:
    """Return `profile`, with the network where files of a release cannot be cached and are fetched again."""
    if not isinstance(source, Release):
        return profile
    with suppress(OSError):
        cache().mkdir(parents=True, exist_ok=True)
    return profile if os.access(cache(), os.W_OK) else replace(profile, network="any")
