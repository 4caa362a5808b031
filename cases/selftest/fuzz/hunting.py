"""How tests hunt: on a buffer by its name, played in this process or in a worker."""

from pathlib import Path

from typing_extensions import override

from cases.selftest.play.misbehaving_buffers import misbehaving
from deepstack_harness.contract.arm import ArmSpec
from deepstack_harness.contract.case import registered
from deepstack_harness.fuzz.campaign import Campaign, HuntLimits
from deepstack_harness.fuzz.faults import Finding, FuzzRequest, Target, Watch
from deepstack_harness.fuzz.hunt import Hunt, hunt
from deepstack_harness.fuzz.player import InProcessPlayer


def target(name: str, arm: str = "eager") -> Target:
    return Target(registered(name), ArmSpec.parse(arm))


def hunted(name: str, examples: int, arm: str = "eager", seed: int = 0, watch: Watch | None = None) -> Hunt:
    return hunt(target(name, arm), InProcessPlayer(), examples=examples, seed=seed, watch=watch)


class Until(Watch):
    """Ends a hunt when all these were found: how many examples that takes changes with every change here."""

    def __init__(self, *names: str) -> None:
        self._left = set(names)

    @override
    def on_finding(self, finding: Finding) -> None:
        self._left.discard(finding.name)

    @override
    def is_done(self) -> bool:
        return not self._left


def campaign(behaviour: str, folder: Path, examples: int, limits: HuntLimits | None = None) -> Campaign:
    request = FuzzRequest(buffer=misbehaving(behaviour, "resize"))
    return Campaign(request, folder, examples, limits=limits or HuntLimits(step_s=5))
