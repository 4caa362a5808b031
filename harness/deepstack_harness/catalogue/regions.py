"""Small compiled regions by name, right and wrong, and the promise that each wrong one breaks.

They are read from `models/regions/*.py` without importing them, which would cost torch: every class there
that states a `promise`, or that it is `right`. `arms` are those under which the promise breaks or holds.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType

from deepstack_harness.catalogue.registry import MODELS, read_classes
from deepstack_harness.contract.names import Entry
from deepstack_harness.contract.rules import Promise

_ARMS = "eager/drop_all"
"""The arm of a region that states none."""


@dataclass(frozen=True)
class SmallRegion(Entry):
    """A region and its steps; `promise` is None for a right one, and `kind` the file that it is in."""

    kind: str = field(kw_only=True)
    promise: Promise | None = field(kw_only=True)
    arms: tuple[str, ...] = field(kw_only=True)


def read_regions(folder: Path) -> Iterator[tuple[str, SmallRegion]]:
    """Yield the regions of `folder/*.py` by name, file by file; bases and helpers of theirs are left out."""
    for file in sorted(folder.glob("*.py")):
        for cls in read_classes(file, "deepstack_harness.models.regions"):
            promise = cls.stated.get("promise")
            if promise or cls.stated.get("right"):
                yield (
                    cls.name,
                    SmallRegion(
                        cls.target, cls.summary, kind=file.stem,
                        promise=Promise(str(promise)) if promise else None,
                        arms=tuple(str(cls.stated.get("arms", _ARMS)).split()),
                    ),
                )  # fmt: skip


REGIONS: Mapping[str, SmallRegion] = MappingProxyType(dict(read_regions(MODELS / "regions")))
"""Every region of ours; `selftest` plays them all."""
