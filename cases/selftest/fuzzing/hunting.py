"""How tests hunt: on a buffer by its name, played in this process or in a worker."""

from pathlib import Path

from typing_extensions import override

from deepstack_harness.contract.arm_spec import ArmSpec
from deepstack_harness.contract.buffer_ref import registered
from deepstack_harness.fuzzing.campaign import Campaign, HuntLimits
from deepstack_harness.fuzzing.finding import Finding
from deepstack_harness.fuzzing.hunt import Hunt, hunt
from deepstack_harness.fuzzing.player import InProcessPlayer
from deepstack_harness.fuzzing.request import FuzzRequest
from deepstack_harness.fuzzing.target import Target
from deepstack_harness.fuzzing.watch import Watch


def target(name: str, arm: str = "eager") -> Target:
    return Target(registered(name), ArmSpec.parse(arm))


def hunted(name: str, examples: int, arm: str = "eager", seed: int = 0, watch: Watch | None = None) -> Hunt:
    return hunt(target(name, arm), InProcessPlayer(), examples=examples, seed=seed, watch=watch)


class Until(Watch):
    """Ends a hunt when all these were found: how many examples that takes changes with every change here."""

    def __init__(self, *names: str) -> None:
        self._left = set(names)

    @override
    def found(self, finding: Finding) -> None:
        self._left.discard(finding.name)

    @override
    def enough(self) -> bool:
        return not self._left


def campaign(buffer: str, folder: Path, examples: int, limits: HuntLimits | None = None) -> Campaign:
    asked = FuzzRequest(buffer=f"cases.selftest.fuzzing.misbehaving_buffers:{buffer}")
    return Campaign(asked, folder, examples, limits=limits or HuntLimits(step_s=5))
