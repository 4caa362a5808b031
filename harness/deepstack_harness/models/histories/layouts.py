"""Inputs whose dtype or address differs from the warm-up."""

from collections.abc import Callable

import torch
from torch import Tensor

from deepstack_harness.models.histories import H, Program, drawn, filled


class IdsDrafter:
    """Drafter that embeds the ids which were sampled last."""

    def __init__(self) -> None:
        self.words = drawn(32, H)

    def __call__(self, input_ids: Tensor) -> Tensor:
        """Draft from ids (n,) -> (n, H)."""
        return torch.tanh(self.words[input_ids] * 0.5)


def draft_ids_int64() -> Program:
    """Feed a drafter the result of argmax, after a warm-up with the engine's own buffer.

    Fault: `input_ids` are int32 in the warm-up and int64 later.
    """
    ids = torch.arange(8, dtype=torch.int32)
    sampled = drawn(8, 32, seed=1).argmax(-1)
    drafted = sampled  # THE FAULT; the fix: drafted = sampled.int()
    return IdsDrafter(), [(ids,), (drafted,)]


def draft_ids_cast() -> Program:
    """Copy the result of argmax into the int32 buffer of the warm-up."""
    ids = torch.arange(8, dtype=torch.int32)
    return IdsDrafter(), [(ids,), filled(ids, drawn(8, 32, seed=1).argmax(-1)), (ids,)]


def last_tokens(token_ids: Tensor, num_tokens: Tensor) -> Tensor:
    """Pick the last token of each row: (r, n) int32 and (r,) -> (r,) int32."""
    places = torch.arange(token_ids.shape[1])
    return torch.where(places == num_tokens[:, None] - 1, token_ids, 0).sum(-1)


def token_counts_int64() -> Program:
    """Count tokens in int32 while warming up, and in int64 later.

    Fault: `num_tokens` is int32 in the warm-up and int64 later.
    """
    ids, counts = torch.arange(32, dtype=torch.int32).reshape(4, 8), [3, 5, 8, 2]
    later = torch.tensor(counts)  # THE FAULT; the fix: later = torch.tensor(counts, dtype=torch.int32)
    return last_tokens, [(ids, torch.tensor([8, 8, 8, 8], dtype=torch.int32)), (ids, later)]


def token_counts_int32() -> Program:
    """Count tokens in int32 in every step."""
    ids, counts = torch.arange(32, dtype=torch.int32).reshape(4, 8), [3, 5, 8, 2]
    warm_up, later = (torch.tensor(ids, dtype=torch.int32) for ids in ([8, 8, 8, 8], counts))
    return last_tokens, [(ids, warm_up), (ids, later)]


def piece(hidden: Tensor, routed: Tensor) -> Tensor:
    """Run the captured piece after an op that no graph holds: (n, H), (n, H) -> (n, H)."""
    return torch.tanh(hidden + routed)


def op_answers_with_fresh_tensors() -> Program:
    """Feed a captured piece from an op that allocates its result in every step.

    Fault: `routed` has another address than when the graph was captured.
    """
    hidden, first = drawn(4, H), torch.zeros(4, H)
    second = torch.zeros(4, H)  # THE FAULT; the fix: second = first
    return piece, [
        filled(first, drawn(4, H, seed=1)), (hidden, first),
        filled(second, drawn(4, H, seed=2)), (hidden, second),
    ]  # fmt: skip


def op_writes_into_a_buffer() -> Program:
    """Feed a captured piece from an op that writes its result into one buffer."""
    hidden, routed = drawn(4, H), torch.zeros(4, H)
    return piece, [
        filled(routed, drawn(4, H, seed=1)), (hidden, routed),
        filled(routed, drawn(4, H, seed=2)), (hidden, routed),
    ]  # fmt: skip


class AdapterLayer:
    """Layer with a low-rank adapter per row; an op outside of the graph chooses the adapter of a row."""

    def __init__(self) -> None:
        self.adapters, self.chosen = drawn(3, H), torch.zeros(4, dtype=torch.int64)

    def __call__(self, hidden: Tensor) -> Tensor:
        """Add to each row (n, H) that of its adapter -> (n, H)."""
        return hidden + self.adapters[self.chosen]


def choose_anew(*adapters: int) -> Callable[[AdapterLayer], None]:
    """Return a step that allocates the choice of a batch."""

    def choose(layer: AdapterLayer) -> None:
        chosen = torch.tensor(adapters)
        layer.chosen = chosen  # THE FAULT; the fix: layer.chosen.copy_(chosen)

    return choose


def adapters_aligned_anew() -> Program:
    """Allocate the adapters' alignment for each batch, as a graph was captured on an earlier one.

    Fault: `chosen` has another address than when the graph was captured.
    """
    hidden = drawn(4, H, seed=1)
    return AdapterLayer(), [choose_anew(0, 0, 0, 0), (hidden,), choose_anew(2, 0, 1, 1), (hidden,)]


def adapters_aligned_in_place() -> Program:
    """Write the adapters' alignment into buffers that live as long as the layer."""
    hidden, layer = drawn(4, H, seed=1), AdapterLayer()
    return layer, [(hidden,), lambda layer: layer.chosen.copy_(torch.tensor([2, 0, 1, 1])), (hidden,)]
