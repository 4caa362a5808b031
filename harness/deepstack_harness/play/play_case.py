"""Play a case in this process, among ranks where its arm has more than one, or where code is interpreted."""

from deepstack_harness.arms.interpreter_environment import interprets_here
from deepstack_harness.contract.case import Case
from deepstack_harness.contract.observation import Observation
from deepstack_harness.play.in_process import NOTHING_BOUND, Bound, factory_of, shared_model
from deepstack_harness.play.interpreted_cases import play_interpreted
from deepstack_harness.play.observe import OnProgress, play
from deepstack_harness.play.ranks.play import play_among_ranks


def play_case(case: Case, bound: Bound = NOTHING_BOUND, on_progress: OnProgress | None = None) -> Observation:
    """Play a case; raises `UsageError` for an unknown name, `MachineError` for a device that is not here.

    `on_progress` is as `deepstack_harness.play.observe.play` has it; ranks report none, and neither does
    a case whose code is interpreted in another process.
    """
    if case.arm.interpreted and not interprets_here():
        return play_interpreted(case, bound)
    if case.arm.ranks > 1:
        return play_among_ranks(case, bound)
    model = shared_model(case.family, case.dtype, case.device, case.seed)
    return play(case, model, factory_of(case.buffer, bound), on_progress=on_progress)
