"""Families, revisions, callers and more that other installed packages declare as entry points.

A package declares them in its `pyproject.toml`, as torch's `torch_dynamo_backends` are declared:

    [project.entry-points."deepstack_harness.revisions"]
    acme_ring = "acme_buffers.ring:RingBuffer"

Names come from the metadata of installed distributions.  Nothing of another package is imported
before one of its names is used.
"""

from dataclasses import dataclass
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from importlib.util import find_spec

GROUPS = ("families", "revisions", "callers", "incidents", "oracles", "figures")
"""What other packages can declare; the entry point group of `families` is `deepstack_harness.families`."""

OURS = "deepstack-harness"
"""This distribution, as messages call it."""


@dataclass(frozen=True)
class Extension:
    """An entry point of another distribution.

    `target` is MODULE:ATTRIBUTE (of an incident file PACKAGE:FILE), `distribution` a name and a
    version.  `broken` says why the target cannot be imported, as far as metadata tells; it is
    empty where nothing is known to be wrong.
    """

    group: str
    name: str
    target: str
    distribution: str
    broken: str = ""

    @property
    def summary(self) -> str:
        """One line for a list."""
        return f"of {self.distribution} ({self.target})"


@cache
def declared(group: str) -> tuple[Extension, ...]:
    """Return what installed distributions declare in `deepstack_harness.GROUP`, sorted by name."""
    found = entry_points(group=f"deepstack_harness.{group}")
    return tuple(sorted((_extension(group, point) for point in found), key=_order))


def _order(extension: Extension) -> tuple[str, str]:
    return extension.name, extension.distribution


def _extension(group: str, point: EntryPoint) -> Extension:
    owner = "an unnamed distribution" if point.dist is None else f"{point.dist.name} {point.dist.version}"
    return Extension(group, point.name, point.value, owner, _broken(point))


def _broken(point: EntryPoint) -> str:
    if EntryPoint.pattern.fullmatch(point.value) is None or ":" not in point.value:
        return f"'{point.value}' is not MODULE:ATTRIBUTE"
    top = point.module.partition(".")[0]
    # Of a top-level name find_spec imports nothing; of `a.b` it would import `a`.
    return "" if _is_installed(top) else f"module '{top}' is not installed"


def _is_installed(top: str) -> bool:
    try:
        return find_spec(top) is not None
    except ValueError:  # a module that stands in sys.modules without a spec
        return True
