"""What the regions of this folder have in common: the calls, and the options that their caller gives."""

from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from types import MappingProxyType
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

H = 8
"""Width of all hidden states."""

Steps = list[Any]
"""Steps of `compile_steps`: dicts of keyword arguments, and functions that change the region."""

Plan = Callable[..., Steps]
"""Makes steps of those of the right region, which are its arguments."""


class RegionProgram(nn.Module):
    """A region with its steps.

    `promise` is the one that a mutant breaks under each of its `arms`, "" for a right region, which states
    `right`. `neutral`, `live` and `split` are those of `compile_steps`; `unfit_options` names those of its
    base that do not fit it, such as parts of a call that a region may not be given. `starts` are attributes
    with their first values, a tensor for a buffer; `steps_from` makes the steps out of those of `steps`.
    """

    promise: ClassVar[str] = ""
    counts: ClassVar[Sequence[int]] = ()
    """Rows of the hidden states of each call, where a call has no other arguments."""
    arms: ClassVar[str] = "eager/drop_all"
    warm_up: ClassVar[int] = 1
    neutral: ClassVar[Callable[..., Sequence[Tensor]] | None] = None
    live: ClassVar[Callable[..., object] | None] = None
    split: ClassVar[Callable[..., Sequence[dict[str, Any]]] | None] = None
    unfit_options: ClassVar[str] = ""
    starts: ClassVar[Mapping[str, Any]] = MappingProxyType({})
    steps_from: ClassVar[Plan | None] = None

    @classmethod
    def make(cls) -> tuple[Callable[..., object], Steps]:
        """Return the region and its steps, equal each time."""
        torch.manual_seed(0)
        region = cls()
        for name, value in deepcopy(dict(cls.starts)).items():
            if isinstance(value, Tensor):
                region.register_buffer(name, value)
            else:
                setattr(region, name, value)
        return region, cls.steps_from(*cls.steps()) if cls.steps_from else cls.steps()

    @classmethod
    def steps(cls) -> Steps:
        """Return the calls, the first of which are the warm-up, and changes of the region between them."""
        return [{"hidden": rows(count, seed)} for seed, count in enumerate(cls.counts)]


def changed(
    base: type[RegionProgram], name: str, promise: str, summary: str, plan: Plan | None = None, **members: Any
) -> type[RegionProgram]:
    """Return the subclass `name` of a right region, which other steps or other `members` make wrong.

    >>> NextRowToo = changed(
    ...     CachedAttention,
    ...     "NextRowToo",
    ...     "I3",
    ...     "The mask ends one row late.",
    ...     unfit_options="split",
    ...     mask=lambda _, slots: torch.arange(SLOTS) <= slots.unsqueeze(1) + 1,
    ... )
    """
    stated = {"__module__": base.__module__, "__doc__": summary, "promise": promise}
    return type(name, (base,), {**stated, **({"steps_from": plan} if plan else {}), **members})


def again(times: int) -> Plan:
    """Return a plan that repeats the first call."""
    return lambda first, *_: [first] * times


def between(change: Callable[[Any], object]) -> Plan:
    """Return a plan with a change of the region between two equal calls."""
    return lambda first, *_: [first, change, first]


def between_all(change: Callable[[Any], object]) -> Plan:
    """Return a plan with a change of the region between any two calls."""
    return lambda first, *rest: [first, *(part for call in rest for part in (change, call))]


def then(**attributes: Any) -> Plan:
    """Return a plan that sets attributes of the region after the warm-up."""

    def set_all(region: RegionProgram) -> None:
        for name, value in attributes.items():
            setattr(region, name, value)

    return lambda first, *rest: [first, set_all, *rest]


def before(note: Callable[..., object], method: Callable[..., Any]) -> Callable[..., Any]:
    """Return a method that calls `note` with its arguments, and then `method`."""

    def noted(self: RegionProgram, *arguments: Any) -> Any:  # noqa: ANN401  # as the method
        note(self, *arguments)
        return method(self, *arguments)

    return noted


def after(method: Callable[..., Any], effect: Callable[..., object]) -> Callable[..., Any]:
    """Return a method that calls `method`, and then `effect` with the same arguments."""

    def affected(self: RegionProgram, *arguments: Any) -> Any:  # noqa: ANN401  # as the method
        answer = method(self, *arguments)
        effect(self, *arguments)
        return answer

    return affected


def count(attribute: str) -> Callable[..., None]:
    """Return a function that adds 1 to a Python number of the region."""
    return lambda self, *_: setattr(self, attribute, getattr(self, attribute) + 1)


def rows(count: int, seed: int = 0, width: int = H) -> Tensor:
    """Return hidden states (count, width) float32."""
    return torch.randn(count, width, generator=torch.Generator().manual_seed(1000 * seed + count))


def indices(*numbers: int) -> Tensor:
    """Return indices (n,) int64."""
    return torch.tensor(numbers)


def halves(hidden: Tensor, **others: Any) -> list[dict[str, Any]]:
    """Return two micro-batches of hidden states (n, H) and what has n rows too; all else goes to both."""
    rows, middle = len(hidden), len(hidden) // 2
    return [
        {
            name: value[part] if isinstance(value, Tensor) and value.shape[:1] == (rows,) else value
            for name, value in {"hidden": hidden, **others}.items()
        }
        for part in (slice(0, middle), slice(middle, rows))
    ]
