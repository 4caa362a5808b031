"""How tests hunt: on a buffer by its name, in this process or in one of its own."""

from pathlib import Path

from cases.selftest.playing import buffer_named
from harness.arm import ArmSpec
from harness.fuzz.hunt import Result, Watch, hunt
from harness.fuzz.target import Target
from harness.runner.campaign import Campaign, Limits
from harness.runner.fuzz_target import Asked


def target(name: str, arm: str = "eager") -> Target:
    return Target(name, buffer_named(name), ArmSpec.parse(arm))


def hunted(name: str, examples: int, arm: str = "eager", seed: int = 0, watch: Watch | None = None) -> Result:
    return hunt(target(name, arm), examples=examples, seed=seed, watch=watch)


def campaign(buffer: str, folder: Path, examples: int, limits: Limits | None = None) -> Campaign:
    asked = Asked(buffer=f"cases.selftest.misbehaving_buffers:{buffer}")
    return Campaign(asked, folder, examples, limits=limits or Limits(step_s=5))
