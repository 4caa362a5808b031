"""The sandbox of a worker that reads a source by itself."""

import os
from dataclasses import replace

from deepstack_harness.catalogue.data_files import cache
from deepstack_harness.sources.release import Release
from deepstack_harness.sources.source import Source
from deepstack_harness.workers.profiles import Profile


def source_profile(source: Source, profile: Profile) -> Profile:
    """Return `profile`, with the network where files of a release cannot be kept and are fetched again."""
    if isinstance(source, Release) and not os.access(cache(), os.W_OK):
        return replace(profile, network="any")
    return profile
