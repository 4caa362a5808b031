"""The uncompiled runs of a region over its steps: what every arm is compared with.

For each call after the warm-up it is measured which inputs differ from the warm-up, and how each of them
influences the result: the call runs again from an equal state with the warm-up's value of that input.
"""

from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import cast

import torch
from torch import Tensor

from deepstack_harness.compile.members import LEAVES
from deepstack_harness.compile.torch_compat import structures
from deepstack_harness.compile.torch_compat.modes import OtherLastBits, by_turns
from deepstack_harness.compile.watch_facts import InputFacts
from deepstack_harness.contract.steps import ChangedInput
from deepstack_harness.play.call_differences import (
    aspect_of,
    differences_in_place,
    differences_of,
    is_changed,
    largest_distance,
    limits_of,
)
from deepstack_harness.play.region_calls import (
    Call,
    Left,
    Program,
    StepOptions,
    arguments_of,
    call_of,
    call_user_function,
    detached_values,
    facts_of,
    inputs_in,
    refuse_unbound,
    run_call,
    side_inputs,
    snapshot_of,
)
from deepstack_harness.play.region_state import Region, copied, set_input, state_of

_MOST_CHANGED = 16
"""Inputs of one call whose influence is measured: each is a run of the uncompiled code."""


@dataclass
class WantedCall:
    """One call of the uncompiled code.

    `left` is what it left, `limits` are the tolerances by name, `effects` counts the values that it changed.
    `changed` are the inputs that differ from the warm-up. `without` has, by the key of such an input, the
    return values of runs with the warm-up's value of it: two runs where two names shared one tensor and no
    longer do, because either of the two can be replaced.
    """

    step: int
    left: Left
    limits: dict[str, float]
    effects: int
    changed: list[ChangedInput] = field(default_factory=list)
    without: dict[str, list[object]] = field(default_factory=dict)


class UncompiledRun:
    """The uncompiled runs."""

    def __init__(self, program: Program, options: StepOptions) -> None:
        self._options = options
        self._region, self._steps = program()
        self._warm: list[dict[str, InputFacts]] = []
        self._warm_same: list[set[tuple[str, str]]] = []
        self._warm_data: dict[str, object] = {}
        self._known: dict[str, tuple[object, InputFacts]] = {}
        """The side inputs of the last call, and their facts."""
        self._last_warm: tuple[Call, dict[str, object]] | None = None

    def run(self) -> Iterator[WantedCall]:
        """Run the steps; yield one record for each call."""
        number = 0
        for step in self._steps:
            if not isinstance(step, Call):
                call_user_function("a step", step, self._region)
                continue
            number += 1
            yield self._call(number, step)

    def _call(self, number: int, call: Call) -> WantedCall:
        seed = self._options.seed + number
        state, inputs = state_of(self._region), inputs_in(arguments_of(self._region, call))
        held = {**state, **inputs}
        arguments = {f"argument {name}": value for name, value in inputs.items()}  # as in `Left.values`
        before = detached_values({**arguments, **state})
        facts = self._facts_of(held)
        trial = _Trial(self._region, call, seed)
        rounded, coarsest = trial.run_rounded()
        most = 0 if number <= self._options.warm_up else _MOST_CHANGED
        changed = list(islice(self._changed(facts, held), most))
        without = {change.key: self._without(trial, change) for change in changed}
        if number <= self._options.warm_up:
            self._warm.append(facts)
            self._warm_same.append(_same_tensors(held))
            self._warm_data = detached_values(held)
            args, kwargs = copied((call.args, call.kwargs))
            self._last_warm = (Call(*args, **kwargs), detached_values(state))
        left = run_call(self._region, call, seed)
        if left.raised.startswith(TypeError.__name__):
            refuse_unbound(f"step {number}", self._region, call)
        effects = sum(
            before[name] is not value and is_changed(before[name], value)
            for name, value in left.values.items()
            if name in before and not name.startswith("answer")
        )
        effects += sum(name not in before and not name.startswith("answer") for name in left.values)
        measured = [
            replace(
                change,
                influence=max(
                    (largest_distance(left.answer, other, {}) for other in without[change.key]), default=None
                ),
            )
            for change in changed
        ]
        limits = limits_of(left, rounded, coarsest)
        return WantedCall(number, left, limits, effects, measured, without)

    def _facts_of(self, held: Mapping[str, object]) -> dict[str, InputFacts]:
        """Return the facts of side inputs; those of a number or text that is the same were made before."""
        facts = {
            name: self._known[name][1]
            if type(value) in LEAVES and name in self._known and self._known[name][0] is value
            else facts_of(value)
            for name, value in held.items()
        }
        self._known = {name: (held[name], fact) for name, fact in facts.items()}
        return facts

    def _changed(self, facts: Mapping[str, InputFacts], held: Mapping[str, object]) -> Iterator[ChangedInput]:
        """Yield the inputs that differ from those of every call of the warm-up."""
        one, two, now = set.intersection(*self._warm_same), set.union(*self._warm_same), _same_tensors(held)
        for first, name in [*(one - now), *(now - two)]:
            if isinstance(held.get(name), Tensor) and isinstance(held.get(first), Tensor):
                if (first, name) in one:
                    yield ChangedInput(name, "identity", "one tensor", "two", other=first)
                elif {first, name} <= self._warm_data.keys():
                    yield ChangedInput(name, "identity", "two tensors", "one", other=first)
        absent = InputFacts("absent")
        names = dict.fromkeys([*facts, *self._warm[-1]])
        for name in names:
            fact = facts.get(name, absent)
            aspects = [aspect_of(earlier.get(name, absent), fact) for earlier in self._warm]
            if all(aspects) and (aspect := aspects[-1]) is not None:
                then = self._warm[-1].get(name, absent)
                yield ChangedInput(name, aspect, then.text_next_to(fact), fact.text_next_to(then))
        for name, value in held.items():
            before = self._warm_data.get(name)
            if not (isinstance(value, Tensor) and isinstance(before, Tensor)):
                continue
            if (value.shape, value.dtype) == (before.shape, before.dtype) and is_changed(before, value):
                yield ChangedInput(name, "data", str(facts[name]), "other numbers")

    def _without(self, trial: "_Trial", changed: ChangedInput) -> list[object]:
        """Return what uncompiled runs return with one input as in the warm-up; empty where none can run."""
        assert self._last_warm is not None
        answers = []
        for name, value_of in _ways_back(changed):
            with suppress(Exception):  # a value of another call need not fit this one
                answers.append(trial.run_with(name, *self._last_warm, value_of).answer)
        return answers


_ValueOf = Callable[[Mapping[str, object]], object]


def _ways_back(changed: ChangedInput) -> Iterator[tuple[str, _ValueOf | None]]:
    """Yield the input to replace, and what makes its value from those of this call; None: the warm-up's."""
    name, other = changed.name, changed.other
    if changed.aspect == "requires_grad":
        yield (
            name,
            lambda held: (
                (tensor := cast(Tensor, held[name])).detach().requires_grad_(not tensor.requires_grad)
            ),
        )
    elif not other:
        yield name, None
    elif changed.now == "one":
        yield name, lambda held: cast(Tensor, held[name]).clone()
    else:
        yield name, lambda held: held[other]
        yield other, lambda held: held[name]


def _same_tensors(held: Mapping[str, object]) -> set[tuple[str, str]]:
    """Return the pairs of names of one tensor, with the first name of each tensor."""
    first: dict[int, str] = {}
    tensors = ((name, value) for name, value in held.items() if isinstance(value, Tensor))
    return {(one, name) for name, value in tensors if (one := first.setdefault(id(value), name)) != name}


class _Trial:
    """The region and a call as they are before it, to be run several times without a trace."""

    def __init__(self, region: Region, call: Call, seed: int) -> None:
        self._region, self._call, self._seed = region, call, seed
        self._before = snapshot_of(region, [call])

    def run_rounded(self) -> tuple[list[Left], float]:
        """Run with other last bits of every result, up and down by turns and all up: one may cancel out.

        Return the runs that did not raise, and the eps of the narrowest dtype of them.
        """
        runs, coarsest = [], 0.0
        for moves in (by_turns, torch.ones):
            mode = OtherLastBits(moves)

            def run(*args: object, mode: OtherLastBits = mode, **kwargs: object) -> object:
                with mode:
                    return self._region(*args, **kwargs)

            with self._before.preserved():
                runs.append(run_call(self._region, self._call, self._seed, run))
            coarsest = max(coarsest, mode.coarsest)
        return [run for run in runs if not run.raised], coarsest

    def run_with(
        self, name: str, warm: Call, state: Mapping[str, object], value_of: _ValueOf | None = None
    ) -> Left:
        """Run with one input as in the warm-up, or as `value_of` makes it from the values of the call.

        Raises what the call raises.
        """
        region = self._region
        arguments, then = arguments_of(region, self._call), copied(arguments_of(region, warm))
        held, before = side_inputs(region, self._call), {**detached_values(state), **inputs_in(then)}
        parameter = next(
            (
                parameter
                for parameter in arguments
                if name == parameter or name.startswith((f"{parameter}[", f"{parameter}.", f"{parameter} ("))
            ),
            None,
        )
        with self._before.preserved():
            if value_of is not None:
                set_input(region, arguments, name, value_of(held))
            elif parameter is None or parameter not in then:
                set_input(region, arguments, name, before[name])
            else:
                try:  # a member, where what holds it has others
                    assert name in held
                    set_input(region, arguments, name, before[name])
                except (AssertionError, AttributeError, LookupError, TypeError):
                    arguments[parameter] = then[parameter]
            left = run_call(region, call_of(region, arguments), self._seed)
        if left.raised:
            raise RuntimeError(left.raised)
        return left


def find_instability(program: Program, options: StepOptions, wanted: Sequence[WantedCall]) -> str:
    """Run uncompiled once more; return where the two runs differ, or which result is no value yet.

    Empty where both runs are equal: only then can compiled runs be judged by them.
    """
    for want in wanted:
        for place, leaf in structures.leaves(want.left.answer):
            if isinstance(leaf, Iterator | Awaitable):
                words = f"answer{place} of step {want.step} is a {type(leaf).__name__}"
                return f"{words}: what it would give is not compared"
    region, steps = program()
    expected = iter(wanted)
    for step in steps:
        if not isinstance(step, Call):
            call_user_function("a step", step, region)
            continue
        want = next(expected)
        left = run_call(region, step, options.seed + want.step)
        limits = limits_of(want.left)
        differences = differences_of("answer", want.left.answer, left.answer, limits)
        differences += differences_in_place(want.left, left, limits)
        if want.left.raised != left.raised:
            return f"step {want.step} ended with '{want.left.raised}', and then with '{left.raised}'"
        if differences:
            first = differences[0]
            by = f" by {first.distance:g}" if first.distance is not None else f": {first.what}"
            return f"{first.place} of step {want.step} differs{by} between two uncompiled runs"
    return ""
