"""Cases of a run with what the catalogue says of them, and groups of them that share a process."""

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from deepstack_harness.catalogue.matrix import Planned
from deepstack_harness.contract.arm_spec import Backend
from deepstack_harness.contract.case import Case
from deepstack_harness.contract.rules import Rule
from deepstack_harness.results.files import Shard

_SECONDS = {Backend.NONE: 0.05, Backend.EAGER: 0.5, Backend.AOT_EAGER: 1.5, Backend.INDUCTOR: 8.0}
"""About what a case takes on one core: long groups begin first, so that no worker is left alone with one."""


@dataclass(frozen=True)
class Task:
    """A case to play; `must_break` is None where no catalogue says anything."""

    case: Case
    must_break: tuple[Rule, ...] | None
    incident: str | None = None
    note: str = ""

    @property
    def id(self) -> str:
        """Twelve characters that stay the same from run to run."""
        case = self.case
        parts = (case.family, case.subject, case.trace, case.arm.name, case.dtype, case.device, case.seed)
        return hashlib.sha256("|".join(map(str, parts)).encode()).hexdigest()[:12]

    @property
    def group(self) -> str:
        """Family, arm and device, which share a process."""
        return f"{self.case.family} {self.case.arm.name} {self.case.device}"

    @property
    def planned(self) -> Planned:
        """As a runner plays it."""
        broken = None if self.must_break is None else frozenset(self.must_break)
        return Planned(self.case, broken, self.note)


@dataclass(frozen=True)
class Group:
    """Tasks of one family, arm and device: one warm process plays them one after the other."""

    tasks: tuple[Task, ...]

    @property
    def name(self) -> str:
        """As `Task.group` has it."""
        return self.tasks[0].group

    @property
    def device(self) -> str:
        """Where all of it runs."""
        return self.tasks[0].case.device

    @property
    def ranks(self) -> int:
        """How many processes, and on CUDA how many GPUs, a case takes."""
        return self.tasks[0].case.arm.ranks

    @property
    def seconds(self) -> float:
        """A rough guess."""
        case = self.tasks[0].case
        return len(self.tasks) * case.arm.ranks * _SECONDS[case.arm.backend]

    def without(self, done: frozenset[str]) -> "Group | None":
        """What is left after these ids; None where nothing is."""
        left = tuple(task for task in self.tasks if task.id not in done)
        return Group(left) if left else None


def grouped(tasks: Iterable[Task]) -> list[Group]:
    """Each case once, in its group; long groups first."""
    found: dict[str, dict[str, Task]] = {}
    for task in tasks:
        found.setdefault(task.group, {}).setdefault(task.id, task)
    groups = [Group(tuple(members.values())) for members in found.values()]
    return sorted(groups, key=lambda group: (-group.seconds, group.name))


def part_of(groups: Sequence[Group], shard: Shard | None) -> list[Group]:
    """Every N-th group: the parts are disjoint, and together they are all of them."""
    return list(groups if shard is None else groups[shard.index - 1 :: shard.count])


def fingerprint(groups: Iterable[Group]) -> str:
    """Equal for equal sets of cases, whatever their order."""
    ids = sorted(task.id for group in groups for task in group.tasks)
    return hashlib.sha256("".join(ids).encode()).hexdigest()[:12]
