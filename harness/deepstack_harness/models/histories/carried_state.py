"""State that is carried from step to step, plans that are made once, and lengths that a graph fixes."""

import torch
from torch import Tensor

from deepstack_harness.models.histories import H, Program, drawn, filled


class CachedLayer:
    """Layer whose cache has a write index in Python, as a static cache of fixed length once had."""

    def __init__(self) -> None:
        self.cache, self.seen = torch.zeros(8, H), 0

    def __call__(self, hidden: Tensor) -> Tensor:
        """Write rows (n, H) after those that were seen, and add the mean of the cache -> (n, H)."""
        self.cache[self.seen : self.seen + hidden.shape[0]] = hidden
        self.seen += hidden.shape[0]
        return hidden + self.cache.mean(0)


def write_index_in_python() -> Program:
    """Count the rows of a cache in a Python number.

    Fault: `seen` has another value in each step, and the graph has that of the warm-up.
    """
    steps: list[object] = [(drawn(2, H, seed=step),) for step in range(3)]
    return CachedLayer(), steps


class IndexedLayer:
    """Layer whose caller passes the places of the cache to write."""

    def __init__(self) -> None:
        self.cache = torch.zeros(8, H)

    def __call__(self, hidden: Tensor, places: Tensor) -> Tensor:
        """Write rows (n, H) to places (n,) int64, and add the mean of the cache -> (n, H)."""
        self.cache.index_copy_(0, places, hidden)
        return hidden + self.cache.mean(0)


def write_index_is_an_input() -> Program:
    """Pass the places of the cache as a tensor (`cache_position`)."""
    steps: list[object] = [
        (drawn(2, H, seed=step), torch.arange(2 * step, 2 * step + 2)) for step in range(3)
    ]
    return IndexedLayer(), steps


def new_cache_per_prompt() -> Program:
    """Replace the cache before the next prompt, as a graph was captured on the first one.

    Fault: `cache` has another address than when the graph was captured.
    """
    hidden, places = drawn(2, H), torch.arange(2)

    def begin(layer: IndexedLayer) -> None:
        layer.cache = torch.zeros(8, H)  # THE FAULT; the fix: layer.cache.zero_()

    return IndexedLayer(), [
        (hidden, places), filled(places, torch.tensor([4, 5])), begin, (hidden, places),
    ]  # fmt: skip


def cache_reset_in_place() -> Program:
    """Zero the cache before the next prompt, and keep its storage."""
    hidden, places = drawn(2, H), torch.arange(2)
    return IndexedLayer(), [
        (hidden, places), filled(places, torch.tensor([4, 5])), lambda layer: layer.cache.zero_(),
        (hidden, places),
    ]  # fmt: skip


class StatefulLayer:
    """Layer with a recurrent state, which a prompt begins anew."""

    def __init__(self) -> None:
        self.state = torch.zeros(H)

    def __call__(self, hidden: Tensor, is_prompt: bool = False) -> Tensor:
        """Run rows (n, H) of one request over its state -> (n, H)."""
        if is_prompt:
            self.state.zero_()
        self.state.mul_(0.5).add_(hidden.sum(0))
        return hidden + self.state


def prompt_shaped_like_a_decode() -> Program:
    """Run a prompt of one token by the graph of a decode, which has as many rows.

    Fault: `is_prompt` is False in the warm-up, and the sizes are the same.
    """
    hidden = drawn(1, H)
    prompt = {"hidden": hidden, "is_prompt": True}
    step = prompt  # THE FAULT; the fix: step = lambda layer: layer(**prompt)
    return StatefulLayer(), [(hidden,), filled(hidden, drawn(1, H, seed=1)), step, (hidden,)]


def prompts_run_uncompiled() -> Program:
    """Run each prompt uncompiled, however many rows it has, and decodes by the graph."""
    hidden = drawn(1, H)

    def prompt(layer: StatefulLayer) -> None:
        layer(hidden, is_prompt=True)

    return StatefulLayer(), [(hidden,), filled(hidden, drawn(1, H, seed=1)), prompt, (hidden,)]


class MaskedLayer:
    """Layer whose state is multiplied by 0 where a request begins, and by 1 elsewhere."""

    def __init__(self) -> None:
        self.state = torch.zeros(H)

    def __call__(self, hidden: Tensor, has_state: Tensor) -> Tensor:
        """Run rows (n, H) of one request, `has_state` (1,) float32 -> (n, H)."""
        self.state.mul_(0.5 * has_state).add_(hidden.sum(0))
        return hidden + self.state


def begin_as_a_tensor() -> Program:
    """Pass in a tensor whether a request begins, so that one graph serves both."""
    hidden, has_state = drawn(1, H), torch.ones(1)
    return MaskedLayer(), [
        (hidden, has_state), filled(has_state, torch.zeros(1)), (hidden, has_state),
        filled(has_state, torch.ones(1)), (hidden, has_state),
    ]  # fmt: skip


class Plan:
    """Plan of a kernel's work, made by the first call that sees it."""

    def __init__(self) -> None:
        self.shares: Tensor | None = None


class PlannedAttention:
    """Runner that gives each step a new plan, and its warm-up and capture one together."""

    def __init__(self) -> None:
        self.plan: Plan | None = None

    def __call__(self, hidden: Tensor, lengths: Tensor) -> Tensor:
        """Weigh rows (n, H) by the share of work that lengths (n,) float32 give them -> (n, H)."""
        plan = Plan() if self.plan is None else self.plan
        if plan.shares is None:
            plan.shares = lengths / lengths.sum()
        return hidden * plan.shares[:, None]


def plan_shared_with_the_warm_up() -> Program:
    """Capture with the plan that the warm-up has made.

    Fault: `plan` exists when the graph is captured, so that a replay never plans.
    """
    hidden, lengths = torch.ones(3, H), torch.ones(3)

    def warm_up(attention: PlannedAttention) -> None:
        attention.plan = Plan()
        attention(hidden, lengths)
        left = attention.plan  # THE FAULT; the fix: left = Plan()
        attention.plan = left

    def serve(attention: PlannedAttention) -> None:
        attention.plan = None
        lengths.copy_(torch.tensor([1.0, 2.0, 5.0]))

    return PlannedAttention(), [warm_up, (hidden, lengths), serve, (hidden, lengths)]


def plan_made_in_the_capture() -> Program:
    """Give the capture a plan of its own, so that planning is captured too."""
    hidden, lengths = torch.ones(3, H), torch.ones(3)

    def warm_up(attention: PlannedAttention) -> None:
        attention(hidden, lengths)

    return PlannedAttention(), [
        warm_up, (hidden, lengths), filled(lengths, torch.tensor([1.0, 2.0, 5.0])), (hidden, lengths),
    ]  # fmt: skip


def attend(hidden: Tensor, longest: int) -> Tensor:
    """Add to rows (n, H) the mean of the first `longest` of them -> (n, H)."""
    return hidden + hidden[:longest].mean(0)


def longest_prompt_in_python() -> Program:
    """Read the length of the longest prompt as a Python number in a region that is captured.

    Fault: `longest` has another value than when the graph was captured.
    """
    hidden, longest = drawn(6, H), 4
    later = 2  # THE FAULT; the fix: later = longest
    return attend, [(hidden, longest), filled(hidden, drawn(6, H, seed=1)), (hidden, later)]


def attend_by_mask(hidden: Tensor, longest: Tensor) -> Tensor:
    """Add to rows (n, H) the mean of the first `longest` () int64 of them -> (n, H)."""
    mask = (torch.arange(hidden.shape[0]) < longest)[:, None]
    return hidden + (hidden * mask).sum(0) / longest


def longest_prompt_in_a_tensor() -> Program:
    """Read the length of the longest prompt from a tensor."""
    hidden, longest = drawn(6, H), torch.tensor(4)
    return attend_by_mask, [(hidden, longest), filled(longest, torch.tensor(2)), (hidden, longest)]
