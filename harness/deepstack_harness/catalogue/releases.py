"""The one rule by which a version belongs to a range of releases."""

from packaging.specifiers import SpecifierSet
from packaging.version import Version


def covers(releases: str, version: Version | None) -> bool:
    """Tell whether a range such as `>=0.20.0,<0.23.0` speaks of a version.

    What is known was measured on releases, and holds for other builds by packaging's order
    (PEP 440), pre-releases included:

    - a local build, `0.22.1+cu129`, counts as its release;
    - a build between two releases lies between them: `0.22.2.dev5+g1a2b3c4` is later than 0.22.1
      and earlier than 0.22.2, so a range that has both has it, and `<=0.22.1` has it not;
    - a build towards the release that changed something counts as changed: `<0.23.0` has neither
      0.23.0rc1 nor 0.23.0.dev7;
    - of an unknown version nothing is known: no range has None.
    """
    return version is not None and SpecifierSet(releases).contains(version, prereleases=True)
