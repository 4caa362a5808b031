"""Cost of fuzzing: steps a second, and time against a bare loop over the same token counts."""

import time
from collections.abc import Sequence
from contextlib import closing

import torch
from typing_extensions import override

from deepstack_harness.arms.open import open_arm
from deepstack_harness.contract.arm_spec import EAGER, ArmSpec
from deepstack_harness.contract.buffer_ref import registered
from deepstack_harness.contract.protocols import Inputs
from deepstack_harness.contract.trace import RUNS_DECODER, Trace
from deepstack_harness.fuzzing.hunt import CAPACITY, hunt
from deepstack_harness.fuzzing.player import WorkerPlayer
from deepstack_harness.fuzzing.target import Target
from deepstack_harness.fuzzing.watch import Progress, Watch
from deepstack_harness.play.model import Model

_STEP_S = 300.0


class _Counts(Watch):
    """Watch that notes how many tokens each run of the decoder had."""

    def __init__(self) -> None:
        self.tokens: list[int] = []

    @override
    def example(self, progress: Progress, trace: Trace) -> None:
        self.tokens += [step.tokens for step in trace if step.op in RUNS_DECODER]


def alone_steps_per_second(examples: int = 300) -> float:
    """Return the steps a second of a buffer alone, reads of all rows included; `reference`, one thread."""
    return _hunted(EAGER, examples)[0].steps_per_second


def beside_bare_loop(arm: ArmSpec, examples: int = 200) -> tuple[float, float]:
    """Return (steps a second, time against that of a bare loop) of a compiled arm; both compile once.

    The loop runs eager, compiled and the zeroed control on the same counts, and compares them.
    """
    progress, tokens = _hunted(arm, examples)
    _bare_seconds(arm, tokens[:2])  # as the hunt: what is imported once for all, 2 s, is not counted
    return progress.steps_per_second, progress.seconds / _bare_seconds(arm, tokens)


def _hunted(arm: ArmSpec, examples: int) -> tuple[Progress, list[int]]:
    target, watch = Target(registered("reference"), arm, Target.family), _Counts()
    with closing(WorkerPlayer(step_s=_STEP_S)) as player:
        hunt(target, player, examples=2)  # what is imported or kept on the disk once for all is not counted
        return hunt(target, player, examples=examples, watch=watch).progress, watch.tokens


def _bare_seconds(arm: ArmSpec, tokens: Sequence[int]) -> float:
    torch.set_num_threads(1)
    model = Model.build(Target.family)
    start = time.perf_counter()
    with torch.no_grad(), closing(open_arm(arm, model.decoder, model.profile(CAPACITY))) as session:
        for count in tokens:
            inputs = _inputs(model, count)
            zeros = tuple(torch.zeros_like(inputs.hidden) for _ in range(model.family.levels))
            eager = model.decoder(inputs.hidden, inputs.positions, inputs.payload)
            control = model.decoder(inputs.hidden, inputs.positions, zeros)
            out = session.forward(inputs)
            if count:
                _ = (out - eager).abs().max().item(), (control - eager).abs().max().item()
    return time.perf_counter() - start


def _inputs(model: Model, tokens: int) -> Inputs:
    """Return random inputs: hidden and each level (tokens, hidden), positions (3, tokens)."""
    hidden, *levels = (torch.randn(tokens, model.family.hidden) for _ in range(1 + model.family.levels))
    return Inputs(hidden, model.family.positions(tokens, model.device), tuple(levels))
