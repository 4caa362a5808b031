"""Groups: cases of a run that share a process."""

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from deepstack_harness.contract.arm_spec import Backend
from deepstack_harness.contract.case import PlannedCase
from deepstack_harness.results.files import Shard

_SECONDS = {
    Backend.NONE: 0.05,
    Backend.EAGER: 0.5,
    Backend.AOT_EAGER: 1.5,
    Backend.INDUCTOR: 8.0,
    Backend.H200: 20.0,
}
"""Rough seconds of a case on one core: long groups begin first, so that no worker is left alone with one."""


@dataclass(frozen=True)
class Group:
    """Cases of one family, arm and device: one warm process plays them one after the other."""

    cases: tuple[PlannedCase, ...]

    @property
    def name(self) -> str:
        """Family, arm and device, as `Case.group` has them."""
        return self.cases[0].group

    @property
    def device(self) -> str:
        """The device of all cases."""
        return self.cases[0].case.device

    @property
    def ranks(self) -> int:
        """The number of processes, and on CUDA of GPUs, that a case takes."""
        return self.cases[0].case.arm.ranks

    @property
    def seconds(self) -> float:
        """A rough estimate of its duration."""
        case = self.cases[0].case
        return len(self.cases) * case.arm.ranks * _SECONDS[case.arm.backend]

    def without(self, done: frozenset[str]) -> "Group | None":
        """Return the cases with other ids; None where no case is left."""
        left = tuple(planned for planned in self.cases if planned.id not in done)
        return Group(left) if left else None


def grouped(cases: Iterable[PlannedCase]) -> list[Group]:
    """Put each case once into its group; return long groups first."""
    found: dict[str, dict[str, PlannedCase]] = {}
    for planned in cases:
        found.setdefault(planned.group, {}).setdefault(planned.id, planned)
    groups = [Group(tuple(members.values())) for members in found.values()]
    return sorted(groups, key=lambda group: (-group.seconds, group.name))


def part_of(groups: Sequence[Group], shard: Shard | None) -> list[Group]:
    """Return every N-th group: the parts are disjoint, and together they are all groups."""
    return list(groups if shard is None else groups[shard.index - 1 :: shard.count])


def fingerprint(groups: Iterable[Group]) -> str:
    """Return a text that is equal for equal sets of cases, whatever their order."""
    ids = sorted(planned.id for group in groups for planned in group.cases)
    return hashlib.sha256("".join(ids).encode()).hexdigest()[:12]
