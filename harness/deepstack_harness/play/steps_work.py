"""Run a user's region over steps in a worker, and write a program that shows a finding."""

import inspect
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, cast

import torch
from torch import Tensor, nn
from typing_extensions import TypeIs

from deepstack_harness.catalogue.registry import HISTORIES
from deepstack_harness.compile.torch_compat import dynamo
from deepstack_harness.contract.rules import Promise
from deepstack_harness.contract.steps import SteppedHistory, SteppedRegion, SteppedTarget
from deepstack_harness.errors import UsageError
from deepstack_harness.models.regions.program import RegionProgram
from deepstack_harness.play.drawn_steps import (
    example_call,
    history,
    measure_history,
    measure_pairs,
    settings_of,
    undrawn,
)
from deepstack_harness.play.loading import load_named
from deepstack_harness.play.region_calls import (
    Call,
    Program,
    Step,
    StepOptions,
    call_user_function,
    check_steps,
    described,
    in_place,
)
from deepstack_harness.play.region_state import Region
from deepstack_harness.play.steps import measure_steps
from deepstack_harness.play.written_steps import write_steps
from deepstack_harness.workers.child import Channel

dynamo.load()  # here, so that a server that forks workers imports it once


@dataclass(frozen=True)
class _Target:
    """What a name leads to: a program with steps of its own, or a region whose steps are drawn.

    `keywords` are those that the program gives for `compile_steps`: `neutral`, `live` and `split`.
    """

    region: Region
    steps: Sequence[Step] = ()
    program: Program | None = None
    keywords: Mapping[str, Any] = field(default_factory=dict)

    def call(self) -> Call:
        """Return the call whose inputs are varied: its first, or one by the annotations."""
        first = next((step for step in self.steps if isinstance(step, Call)), None)
        return first or example_call(self.region)


def measure_target(
    channel: Channel, target: str, arms: list[str], warm_up: int, *, drawn: bool
) -> SteppedTarget:
    """Run `MODULE:NAME` or `FILE.py:NAME` over its steps.

    Where it has none, or with `drawn`, it runs over a history for each setting of its first call. Raises
    `UsageError` for a name that leads to nothing that can be called.
    """
    channel.phase(f"the import of {target}")
    made, name = _target(target, warm_up), target.partition(":")[2]
    options = StepOptions(tuple(arms), warm_up, **made.keywords)
    if made.program and not drawn:
        channel.phase("its steps")
        return SteppedTarget((SteppedHistory("its steps", measure_steps(made.program, options, name)),))
    channel.phase("drawn steps")
    call = made.call()
    pairs = tuple(measure_pairs(made.region, call, options, name))
    unvaried = () if made.program else tuple(undrawn(made.region, call))
    if not pairs:
        why = f", because no annotation gives other values of {', '.join(unvaried)}" if unvaried else ""
        raise UsageError(
            f"no other call was drawn for '{target}'{why}: name a function that returns (callable, steps)"
        )
    inputs = tuple(setting.input for setting in settings_of(made.region, call))
    return SteppedTarget(pairs, inputs, unvaried)


def measure_drawn(
    channel: Channel, target: str, arms: list[str], warm_up: int, chosen: list[list[int]]
) -> SteppedHistory:
    """Run the history of calls that have these settings each, by the order of `SteppedTarget.inputs`."""
    channel.phase("a drawn history")
    made = _target(target, warm_up)
    options = StepOptions(tuple(arms), warm_up, **made.keywords)
    return measure_history(made.region, made.call(), options, target.partition(":")[2], chosen)


def write_shown(  # what the program shows, and its steps
    channel: Channel, target: str, warm_up: int, chosen: list[list[int]], *, promise: Promise,
    arm: str, limit: float,
) -> str:  # fmt: skip
    """Return a program of nothing but torch that shows a broken promise, over steps that were measured here.

    Raises `UsageError` for a step that cannot be written as text.
    """
    channel.phase("writing a program")
    made, make = _target(target, warm_up), target.partition(":")[2]
    if made.program is not None or isinstance(load_named(target), type):
        make = f"{make}()"
    steps: Sequence[Step] = ()
    if chosen:
        call = made.call()
        every = settings_of(made.region, call)
        steps = history(made.region, call, [[every[number] for number in settings] for settings in chosen])
        make = f"{make}[0]" if made.program is not None else make
    return write_steps(target, make, steps, warm_up, promise=promise, arm=arm, limit=limit)


def play_region(channel: Channel, target: str) -> tuple[SteppedRegion, float]:
    """Play `MODULE:CLASS`, a `models.regions.program.RegionProgram`, under its arms.

    The second value are the seconds of the processor.
    """
    channel.phase(f"playing {target}")
    begun = time.process_time()
    program = cast("type[RegionProgram]", load_named(target))
    return measure_program(program, program.arms.split()), time.process_time() - begun


def measure_program(program: type[RegionProgram], arms: Sequence[str]) -> SteppedRegion:
    """Run a region of ours over its steps, with its `neutral`, `live` and `split`."""
    region, steps = program.make()
    keywords: dict[str, Any] = {
        name: None if name in program.unfit_options.split() else getattr(program, name)
        for name in ("neutral", "live", "split")
    }
    options = StepOptions(arms, program.warm_up, **keywords)
    return measure_steps(in_place(region, check_steps(steps, program.warm_up)), options, program.__name__)


def _target(target: str, warm_up: int) -> _Target:
    thing = load_named(target)
    if isinstance(thing, type):
        try:
            thing = thing()
        except TypeError as error:
            raise UsageError(f"'{target}' cannot be made without arguments ({error})") from None
    if not callable(thing):
        raise UsageError(f"'{target}' is {type(thing).__name__}: name a function, a module or a class of one")
    made = None if isinstance(thing, nn.Module) else _made(thing, warm_up)
    return made or _Target(thing)


def _made(thing: Callable[..., object], warm_up: int) -> _Target | None:
    """Call `thing`, which returns a region, its steps, and keywords; return None where it is the region.

    Raises `UsageError` for what `compile_steps` refuses of it, and for what it raises.
    """
    torch.manual_seed(0)
    try:
        made = call_user_function(f"'{getattr(thing, '__qualname__', thing)}'", thing)
    except UsageError:
        with suppress(TypeError, ValueError):  # of what has no signature
            if not inspect.signature(thing).parameters:
                raise
        return None  # it has parameters: it is the region
    match made:
        case (region, steps, *rest) if callable(region) and len(rest) <= 1:
            keywords = rest[0] if rest else {}
        case _:
            return None
    if not isinstance(steps, Iterable) or isinstance(steps, Mapping | Tensor | str):
        raise UsageError(f"the calls are {described(steps)}: return (callable, calls), with a list of calls")
    if not isinstance(keywords, Mapping) or (unknown := sorted(map(str, keywords.keys() - _KEYWORDS))):
        wrong = described(keywords) if not isinstance(keywords, Mapping) else f"'{unknown[0]}'"
        raise UsageError(
            f"{wrong} is no keyword of compile_steps: give {', '.join(_KEYWORDS)}, or some of them"
        )
    return _Target(region, check_steps(list(steps), warm_up), fresh_program(thing, warm_up), keywords)


_KEYWORDS = ("neutral", "live", "split")
"""Keywords of `compile_steps` that the third member of a program may have."""


def fresh_program(thing: Callable[..., object], warm_up: int = 1) -> Program:
    """Return what makes the region and the steps anew, from one seed, each time that they are run."""

    def fresh() -> tuple[Region, Sequence[Step]]:
        made = _made(thing, warm_up)
        assert made is not None  # it was, a moment ago
        return dynamo.uncompiled(made.region), made.steps

    return fresh


def measure_incident(name: str, arms: Sequence[str]) -> SteppedRegion:
    """Run a program of `catalogue.registry.HISTORIES` in this process.

    Raises `UsageError` for an unknown name, and for an arm that cannot run steps.
    """
    program = HISTORIES.load(name, _is_program, "a function that returns a region and its calls")
    made = _made(program, 1)
    assert made is not None, name
    return measure_steps(fresh_program(program), StepOptions(tuple(arms), **made.keywords), name)


def _is_program(loaded: object) -> TypeIs[Callable[[], object]]:
    return callable(loaded)
