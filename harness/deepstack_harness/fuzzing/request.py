"""What a user asks to be fuzzed, as text that goes to a child process, and the target that it means."""

from contextlib import closing
from dataclasses import dataclass

import torch

from deepstack_harness.catalogue.registry import FAMILIES
from deepstack_harness.contract.arm_spec import ArmSpec
from deepstack_harness.contract.case import parse_subject
from deepstack_harness.contract.rules import Rule
from deepstack_harness.contract.trace import Trace
from deepstack_harness.errors import UsageError
from deepstack_harness.fuzzing.session import Ground
from deepstack_harness.fuzzing.target import Target
from deepstack_harness.mutants.by_name import buffer_named
from deepstack_harness.play.user_buffer import load_buffer


@dataclass(frozen=True)
class Asked:
    """One of the three: a source, a MODULE:CLASS, a revision or mutant (with its caller behind an @)."""

    source: str | None = None
    buffer: str | None = None
    revision: str | None = None
    arm: str = "eager"
    family: str = "qwen3_vl"

    @property
    def name(self) -> str:
        """As the user wrote it."""
        return self.source or self.buffer or self.revision or "reference"


def target_of(asked: Asked) -> Target:
    """Find the buffer; `UsageError` for what does not exist, `MachineError` for what cannot be fetched."""
    arm = ArmSpec.parse(asked.arm)
    if asked.family.partition(":")[0] not in FAMILIES:
        raise UsageError(f"unknown family '{asked.family}'; known are {', '.join(FAMILIES)}")
    if asked.source:
        return _upstream(asked.source, arm, asked.family)
    if asked.buffer:
        return Target(asked.buffer, load_buffer(asked.buffer), arm, asked.family)
    revision, caller = parse_subject(asked.name)
    return Target(revision, buffer_named(revision), arm, asked.family, caller)


def rules_broken(asked: Asked, trace: str) -> frozenset[Rule]:
    """What one trace breaks, on a session of its own; raises as `target_of` does."""
    target = target_of(asked)
    ground = Ground(target)
    parsed = Trace.parse(trace)
    with torch.no_grad(), closing(ground):
        return frozenset(ground.broken(parsed) if target.alone else ground.broken_alone(parsed))


def _upstream(source: str, arm: ArmSpec, family: str) -> Target:
    from deepstack_harness.engines.classes import methods_of
    from deepstack_harness.engines.known import open_source

    bound = methods_of(open_source(source), family)
    return Target(bound.label, bound, arm, family, source=bound.label, model_class=bound.model_class)
