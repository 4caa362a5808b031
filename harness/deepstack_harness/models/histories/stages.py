"""Stages of one step that share memory, or send each other what they do not read."""

import torch
from torch import Tensor

from deepstack_harness.models.histories import H, SplitProgram, drawn

LAYERS = 4
"""Layers of the program, two for each stage."""


def run_layers(hidden: Tensor, per_layer_inputs: Tensor | None, layers: range) -> Tensor:
    """Run layers over (n, H), each with its own input, one of (n, LAYERS, H) -> (n, H)."""
    for layer in layers:
        hidden = torch.tanh(hidden)
        if per_layer_inputs is not None:
            hidden = hidden + per_layer_inputs[:, layer]
    return hidden


def first_stage(hidden: Tensor, per_layer_inputs: Tensor) -> dict[str, Tensor]:
    """Run the first half, and return what the later stage is sent."""
    sent = run_layers(hidden, per_layer_inputs, range(LAYERS // 2))
    return {"hidden_states": sent, "per_layer_inputs": per_layer_inputs}


def later_stage(sent: dict[str, Tensor], per_layer_inputs: Tensor | None = None) -> Tensor:
    """Run the second half; its caller has no `per_layer_inputs` to pass."""
    if per_layer_inputs is not None:  # THE FAULT; the fix: if "per_layer_inputs" in sent:
        per_layer_inputs = sent["per_layer_inputs"]
    return run_layers(sent["hidden_states"], per_layer_inputs, range(LAYERS // 2, LAYERS))


def decode(hidden: Tensor, per_layer_inputs: Tensor, stages: int = 1) -> Tensor:
    """Decode (n, H) with (n, LAYERS, H), on one device or in two stages -> (n, H)."""
    if stages == 1:
        return run_layers(hidden, per_layer_inputs, range(LAYERS))
    return later_stage(first_stage(hidden, per_layer_inputs))


def in_two_stages(hidden: Tensor, per_layer_inputs: Tensor) -> list[dict[str, object]]:
    """Return the same call in two stages."""
    return [{"hidden": hidden, "per_layer_inputs": per_layer_inputs, "stages": 2}]


def later_stages_drop_what_was_sent() -> SplitProgram:
    """Prefer an argument of a later stage to what the first stage sent.

    Fault: only the first stage is called with `per_layer_inputs`, and the later one leaves out its own.
    """
    steps: list[object] = [(drawn(3, H, seed=step), drawn(3, LAYERS, H, seed=step)) for step in range(2)]
    return decode, steps, {"split": in_two_stages}


def decode_by_what_was_sent(hidden: Tensor, per_layer_inputs: Tensor, stages: int = 1) -> Tensor:
    """Decode (n, H) with (n, LAYERS, H), on one device or in two stages -> (n, H)."""
    if stages == 1:
        return run_layers(hidden, per_layer_inputs, range(LAYERS))
    sent = first_stage(hidden, per_layer_inputs)
    return run_layers(sent["hidden_states"], sent["per_layer_inputs"], range(LAYERS // 2, LAYERS))


def later_stages_read_what_was_sent() -> SplitProgram:
    """Read in a later stage what the first one sent, whatever its own arguments are."""
    steps: list[object] = [(drawn(3, H, seed=step), drawn(3, LAYERS, H, seed=step)) for step in range(2)]
    return decode_by_what_was_sent, steps, {"split": in_two_stages}


class Speculating:
    """Runner of a model and of the drafter after it, whose graphs write their results into one pool."""

    def __init__(self) -> None:
        self.target, self.draft, self.head = drawn(H, H), drawn(H, H, seed=1), drawn(H, 16, seed=2)
        self.pool = torch.zeros(8, H)

    def __call__(self, hidden: Tensor, drafts: bool = True) -> Tensor:
        """Run rows (n, H), draft where that is wanted, and score the prompt -> (n, 16)."""
        answer = hidden @ self.target
        answer = self.in_pool(answer)  # THE FAULT; the fix: pass
        if drafts:
            self.in_pool(answer @ self.draft)
        return torch.log_softmax(answer @ self.head, dim=-1)

    def in_pool(self, answer: Tensor) -> Tensor:
        """Write a result (n, H) into the pool, as each replay does, and return it from there."""
        return self.pool[: answer.shape[0]].copy_(answer)


def without_drafting(hidden: Tensor) -> list[dict[str, object]]:
    """Return the same call without the drafter, which must not change the scores of the prompt."""
    return [{"hidden": hidden, "drafts": False}]


def drafter_writes_over_the_answer() -> SplitProgram:
    """Score the prompt from memory that the drafter's graph has written since.

    Fault: the drafter's stage writes over the rows of the model's.
    """
    return Speculating(), [(drawn(4, H),), (drawn(4, H, seed=3),)], {"split": without_drafting}


class ScoringFirst(Speculating):
    """Runner that scores the prompt before the drafter runs."""

    def __call__(self, hidden: Tensor, drafts: bool = True) -> Tensor:
        """Run rows (n, H), score the prompt, and draft where that is wanted -> (n, 16)."""
        answer = self.in_pool(hidden @ self.target)
        scores = torch.log_softmax(answer @ self.head, dim=-1)
        if drafts:
            self.in_pool(answer @ self.draft)
        return scores


def prompt_scored_before_the_drafter() -> SplitProgram:
    """Score the prompt before the drafter's graph runs."""
    return ScoringFirst(), [(drawn(4, H),), (drawn(4, H, seed=3),)], {"split": without_drafting}
