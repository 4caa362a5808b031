"""Calls of a region: the arguments as the caller makes them, their side inputs, and what a call leaves.

A *side input* is what a region reads and a later call may change: an argument or a member of one, and the
state of the region (`region_state`).
"""

import inspect
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar, cast

import torch
from torch import Tensor

from deepstack_harness.compile.torch_compat import dynamo, structures
from deepstack_harness.compile.watch_facts import InputFacts, input_facts
from deepstack_harness.contract.steps import STEP_ARMS
from deepstack_harness.errors import NotMeasured, UsageError, passes_through, unknown_name
from deepstack_harness.play.region_state import Region, Routine, copied, state_of, values_in
from deepstack_harness.play.state import NOT_PUT_BACK, Snapshot, take_snapshot

T = TypeVar("T")


class Call:
    """The arguments of one call, as the caller makes it: `Call(x, mask=m)`.

    >>> Call(torch.ones(2, 3), scale=2).kwargs
    {'scale': 2}
    """

    def __init__(self, /, *args: object, **kwargs: object) -> None:
        """Take the arguments."""
        self.args, self.kwargs = args, kwargs

    def __repr__(self) -> str:
        """Return the call in short."""
        named = [f"{name}={described(value)}" for name, value in self.kwargs.items()]
        return f"Call({', '.join([*map(described, self.args), *named])})"


Change = Callable[[Any], object]
Step = Call | Change
Program = Callable[[], tuple[Region, Sequence[Step]]]
"""Makes a region and its steps, in an equal state each time."""


def described(value: object) -> str:
    """Return the facts of what a value holds, in its structure: `float32 tensor [4, 8] on cpu`."""
    return str(structures.map_leaves(lambda leaf: _Text(str(input_facts(leaf))), value))


class _Text(str):
    """Text that shows itself without quotes."""

    __slots__ = ()
    __repr__ = str.__str__


@dataclass(frozen=True)
class StepOptions:
    """How a region is run.

    `warm_up` calls come before serving. `neutral(*args, **kwargs)` returns views of a call's arguments, or
    of the region's buffers, that must have no influence; `live(answer, *args, **kwargs)` the part of a
    return value that is compared. `split(*args, **kwargs)` returns calls that together do what one call
    does, written as steps are: those of micro-batches, whose results are concatenated along dimension 0, or
    a single one, such as the same call in two stages. `neutral` and `split` are also given the region where
    they have a parameter `region`.
    """

    arms: Sequence[str] = STEP_ARMS
    warm_up: int = 1
    neutral: Callable[..., Sequence[Tensor]] | None = None
    live: Callable[..., object] | None = None
    split: Callable[..., Sequence[object]] | None = None
    seed: int = 0
    answering: bool = False
    """Whether no arm runs where the uncompiled code raises."""


def check_steps(steps: Sequence[object], warm_up: int = 1) -> list[Step]:
    """Return steps as `Call`s and changes. Raises `UsageError` for what is none, and for too few calls."""
    checked: list[Step] = []
    for number, step in enumerate(steps, 1):
        if callable(step) and not isinstance(step, Tensor | torch.nn.Module):
            checked.append(cast(Change, step))
            continue
        try:
            checked.append(as_call(step))
        except UsageError as error:
            raise UsageError(f"step {number} is {error}, or a function that changes the region") from None
    calls = sum(isinstance(step, Call) for step in checked)
    if warm_up < 1 or calls <= warm_up:
        raise UsageError(
            f"{calls} calls with warm_up={warm_up} leave none to judge: give at least one call behind a "
            f"warm-up of "
            "one or more"
        )
    return checked


def as_call(written: object) -> Call:
    """Return a call as it is written: a `Call`, a tuple of positional arguments or a dict of keyword ones.

    Raises `UsageError` for anything else.
    """
    match written:
        case Call():
            return written
        case tuple():
            return Call(*written)
        case dict() if all(isinstance(name, str) for name in written):
            return Call(**written)
    raise UsageError(
        f"{described(written)}: write Call(..) with the arguments, a tuple of positional ones, a dict of "
        "keyword ones"
    )


def in_place(region: Region, steps: Sequence[Step]) -> Program:
    """Return a program that runs these objects themselves; of a compiled region, what it is made of."""
    region = dynamo.uncompiled(region)
    return lambda: (region, steps)


def restoring(program: Program) -> tuple[Program, Snapshot]:
    """Return a program whose region and steps are in an equal state each time, and that state.

    Raises `NotMeasured`, with its place, for what cannot be put back.
    """
    region, steps = program()
    called = getattr(region, "forward", region)
    if inspect.iscoroutinefunction(called) or inspect.isasyncgenfunction(called):
        raise UsageError(f"'{called.__qualname__}' is a coroutine, which torch.compile does not trace")
    snapshot = snapshot_of(region, steps)

    def fresh() -> tuple[Region, Sequence[Step]]:
        snapshot.restore()
        return program()

    return fresh, snapshot


def snapshot_of(region: Region, steps: Sequence[Step]) -> Snapshot:
    """Return the state of a region and of its steps; raises `NotMeasured` for what cannot be put back."""
    roots: dict[str, object] = {_SELF: region}
    for number, step in enumerate(steps, 1):
        of_step = f"step {number}"
        roots |= (
            {of_step: step.args, f"{of_step} ": step.kwargs} if isinstance(step, Call) else {of_step: step}
        )
    snapshot = take_snapshot(roots, marks=True)
    for place, value in snapshot.passed_over.items():
        if place.startswith((_SELF, "step ")):  # all else is not only the region's
            raise NotMeasured(f"{place} is a {type(value).__name__}, {NOT_PUT_BACK}")
    return snapshot


_SELF = "self"


class Left(NamedTuple):
    """What a call left: its return value, or its exception; `values` has all that it returned and changed.

    `values` are the leaves of the return value, the arguments and the state, by name.
    """

    answer: object
    raised: str
    values: dict[str, object]
    refused: bool = False


def run_call(region: Region, call: Call, seed: int, run: Region | None = None) -> Left:
    """Call a region; `run`, its compiled form, is called in its place where it is given."""
    torch.manual_seed(seed)
    answer, raised, refused = None, "", False
    try:
        answer = (region if run is None else run)(*call.args, **call.kwargs)
    except BaseException as error:
        if passes_through(error):
            raise
        raised, refused = error_text(error), dynamo.is_refusal(error)
    return Left(_retained(answer), raised, values_left(region, call, answer), refused)


def call_user_function(words: str, function: Callable[..., T], *args: object, **kwargs: object) -> T:
    """Call a function of the user that is no region; raises `UsageError` for whatever it raises.

    `words` name the function in the message.
    """
    try:
        return function(*args, **kwargs)
    except UsageError:
        raise
    except BaseException as error:
        if passes_through(error):
            raise
        raise UsageError(f"{words} ends with {error_text(error)}") from error


def detached(answer: T) -> T:
    """Return a value with a detached copy of each of its tensors, which later calls do not change."""
    return structures.map_leaves(
        lambda leaf: leaf.detach().clone() if isinstance(leaf, Tensor) else leaf, answer
    )


def _retained(answer: T) -> T:
    """Return a detached copy, also of an object that the region fills again in its next call."""
    leaves = (leaf for _, leaf in structures.leaves(answer))
    if any(
        hasattr(leaf, "__dict__") and not isinstance(leaf, Tensor) and not callable(leaf) for leaf in leaves
    ):
        return copied(answer)
    return detached(answer)


def live_part(options: StepOptions, answer: object, call: Call) -> object:
    """Return a copy of the part of a return value that is compared: all of it, where `live` is not given."""
    chosen = answer
    if options.live is not None:
        chosen = call_user_function("`live`", options.live, answer, *call.args, **call.kwargs)
    return detached(chosen)


def error_text(error: BaseException) -> str:
    """Return the first line of an exception, and the explanation that an error of the compiler has."""
    try:
        lines = [line.strip() for line in str(error).strip().splitlines()]
    except Exception:  # noqa: BLE001  # the code under test writes its own
        lines = ["(its text cannot be had)"]
    why = [line.partition(":")[2] for line in lines if line.startswith("Explanation:")]
    return f"{type(error).__name__}: {''.join(lines[:1])}{':'.join(['', *why[:1]])}"


def values_left(region: Region, call: Call, answer: object) -> dict[str, object]:
    """Return the leaves of the return value, the arguments and the state by name, with copies of tensors."""
    inputs = inputs_in(arguments_of(region, call))
    arguments = {f"argument {name}": value for name, value in inputs.items()}
    held = {f"answer{name[6:]}": value for name, value in values_in("answer", answer).items()}
    return detached_values(held | arguments | state_of(region))


def detached_values(values: Mapping[str, object]) -> dict[str, object]:
    """Return values by name, with detached copies of tensors."""
    return {
        name: value.detach().clone() if isinstance(value, Tensor) else value for name, value in values.items()
    }


def refuse_unbound(words: str, region: Region, call: Call) -> None:
    """Raise `UsageError` for a call that does not fit the signature of a region; `words` name the call.

    It is meant for a call that ended with a `TypeError`: a wrapper may take more than its signature has.
    """
    try:
        signature = signature_of(region)
    except (TypeError, ValueError):
        return
    kinds = {parameter.kind for parameter in signature.parameters.values()}
    unknown = [name for name in call.kwargs if name not in signature.parameters]
    if unknown and inspect.Parameter.VAR_KEYWORD not in kinds:
        raise UsageError(f"{words}: {unknown_name('argument', unknown[0], list(signature.parameters))}")
    try:
        signature.bind(*call.args, **call.kwargs)
    except TypeError as error:
        raise UsageError(f"{words}: {call} does not fit {signature}: {error}") from None


def signature_of(region: Region) -> inspect.Signature:
    """Return the parameters of a region, without the annotation of what it returns.

    Raises `TypeError` or `ValueError` for a callable without a signature.
    """
    called = region.forward if isinstance(region, torch.nn.Module) else region
    return inspect.signature(called).replace(return_annotation=inspect.Signature.empty)


def arguments_of(region: Region, call: Call) -> dict[str, object]:
    """Return the arguments by the names of the parameters.

    Those of a function without a signature by number.
    """
    try:
        bound = signature_of(region).bind(*call.args, **call.kwargs)
    except (TypeError, ValueError):
        return {**{f"argument_{number}": value for number, value in enumerate(call.args)}, **call.kwargs}
    bound.apply_defaults()
    return dict(bound.arguments)


def call_of(region: Region, arguments: Mapping[str, object]) -> Call:
    """Return the call that has the arguments of `arguments_of`."""
    try:
        signature = signature_of(region)
    except (TypeError, ValueError):
        given = [value for name, value in arguments.items() if name.startswith("argument_")]
        return Call(*given, **dict(list(arguments.items())[len(given) :]))
    bound = inspect.BoundArguments(signature, OrderedDict(arguments))
    return Call(*bound.args, **bound.kwargs)


def side_inputs(region: Region, call: Call) -> dict[str, object]:
    """Return all side inputs of a call by name: what the arguments hold, and the state of the region."""
    return {**state_of(region), **inputs_in(arguments_of(region, call))}


def inputs_in(arguments: Mapping[str, object]) -> dict[str, object]:
    """Return what arguments hold, by name."""
    held: dict[str, object] = {}
    for name, value in arguments.items():
        held |= values_in(name, value)
    return held


def facts_of(value: object) -> InputFacts:
    """Return the facts of a value of `values_in`, where a list is that of keys or names."""
    if isinstance(value, Routine):
        return InputFacts("code", f"{value.name} (line {value.line})" if value.line else value.name)
    return InputFacts("keys", ", ".join(map(repr, value))) if isinstance(value, list) else input_facts(value)
