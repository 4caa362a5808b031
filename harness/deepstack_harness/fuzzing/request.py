"""Requests for a hunt, as a user words them, and the targets that they mean."""

from dataclasses import dataclass

from deepstack_harness.catalogue.mutants import BUFFERS
from deepstack_harness.catalogue.registry import REVISIONS
from deepstack_harness.contract.arm_spec import ArmSpec
from deepstack_harness.contract.buffer_ref import BufferKind, BufferRef, registered, user_buffer
from deepstack_harness.contract.case import parse_subject
from deepstack_harness.contract.rules import Rule
from deepstack_harness.contract.trace import Trace
from deepstack_harness.errors import unknown_name
from deepstack_harness.families.variants import check_family
from deepstack_harness.fuzzing.hunt import Hunt
from deepstack_harness.fuzzing.player import InProcessPlayer, Player
from deepstack_harness.fuzzing.target import Target


@dataclass(frozen=True)
class FuzzRequest:
    """Request of a user: a source, a MODULE:CLASS, or a revision or mutant (with its caller behind an @)."""

    source: str | None = None
    buffer: str | None = None
    revision: str | None = None
    arm: str = "eager"
    family: str = "qwen3_vl"

    @property
    def name(self) -> str:
        """The name that the user wrote."""
        return self.source or self.buffer or self.revision or "reference"

    def target(self, buffer: BufferRef | None = None) -> Target:
        """Return the target, where that of a source is `buffer`.

        Raises `UsageError` for an unknown family, arm or revision, and for one that nothing can be
        hunted under.
        """
        check_family(self.family)
        arm = ArmSpec.parse(self.arm)
        if self.source:
            # The class is known only when a worker has bound it.
            return Target(buffer or BufferRef(BufferKind.SOURCE, self.source), arm, self.family)
        if self.buffer:
            return Target(user_buffer(self.buffer), arm, self.family)
        revision, caller = parse_subject(self.name)
        if revision not in BUFFERS:
            raise unknown_name("revision", revision, BUFFERS, f"{', '.join(REVISIONS)}, and mutants")
        return Target(registered(revision), arm, self.family, caller)


def target_of(asked: FuzzRequest, player: Player) -> Target:
    """Find the buffer; `UsageError` for what does not exist, `MachineError` for what cannot be fetched."""
    target = asked.target()
    found = player.bind(None if asked.source else target.buffer, asked.source, asked.family)
    return asked.target(found) if asked.source else target


def broken_rules(
    trace: str,
    *,
    source: str | None = None,
    buffer: str | None = None,
    revision: str | None = None,
    arm: str = "eager",
    family: str = "qwen3_vl",
) -> frozenset[Rule]:
    """Return the rules that one trace breaks first, on a session of its own.

    The buffer is the class of a `source` (`vllm==0.33.0`, a path), MODULE:CLASS (`buffer`), or a revision or
    mutant of ours; its code runs in this process.  Raises `UsageError` for what does not exist,
    `MachineError` for what cannot be fetched.
    """
    asked, player = FuzzRequest(source, buffer, revision, arm, family), InProcessPlayer()
    faults, _ = Hunt(target_of(asked, player), player).replay(Trace.parse(trace), new_session=True)
    return frozenset(fault.rule for fault in faults if fault.rule)
