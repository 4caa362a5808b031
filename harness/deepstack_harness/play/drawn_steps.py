"""Steps that are drawn: from one call of a region, calls that differ in one input or in several.

The settings of an input come from its value, its annotation and its default: absent, other members, another
number, other strides or integers, more or fewer rows; attributes of the region that are numbers change
between two calls. `measure_pairs` runs each setting after the original call, and before it;
`fuzz.steps.search` lets hypothesis draw longer histories for `measure_history`. A call that the uncompiled
code refuses is no step.
"""

import dataclasses
import enum
import inspect
import types
import typing
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from types import UnionType
from typing import Any, NamedTuple, Union, get_args, get_origin

import torch
from torch import Tensor, nn

from deepstack_harness.compile.torch_compat import structures
from deepstack_harness.contract.steps import SteppedHistory
from deepstack_harness.errors import UsageError
from deepstack_harness.play.region_calls import (
    Call,
    Step,
    StepOptions,
    arguments_of,
    call_of,
    in_place,
    run_call,
    signature_of,
    snapshot_of,
)
from deepstack_harness.play.region_state import Region, copied, set_value, state_of
from deepstack_harness.play.steps import measure_steps

WIDTH, ROWS = 8, 4
"""Sizes of a tensor of which only the type is known: (4, 8)."""


class DrawnSetting(NamedTuple):
    """One input with another value: the words for it, and what makes the value from the one of the call."""

    input: str
    words: str
    change: Callable[[Any], object]


def example_call(region: Region) -> Call:
    """Return a call by the annotations: tensors are (4, 8) float32, optional ones are given too.

    Raises `UsageError` for a parameter without default whose annotation is missing or not supported, and
    where the region does not take the call.
    """
    generator = torch.Generator().manual_seed(0)
    arguments: dict[str, object] = {}
    parameters = signature_of(region).parameters
    for name, parameter in parameters.items():
        if parameter.kind in (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD):
            continue
        annotation = _annotation(region, name, parameter)
        if parameter.default is inspect.Parameter.empty:
            arguments[name] = _drawn(annotation, generator)
        elif isinstance(parameter.default, Tensor) or parameter.default is None:
            arguments[name] = _drawn(annotation, generator, parameter.default)
        else:
            arguments[name] = parameter.default
        if arguments[name] is _NOTHING:
            raise UsageError(
                f"nothing says what '{_in_words(name, parameter)}' takes: annotate it as a Tensor, a number "
                f"or a dataclass of such, or {_OWN_CALLS}"
            )
    by_place = any(parameter.kind is parameter.POSITIONAL_ONLY for parameter in parameters.values())
    call = call_of(region, arguments) if by_place else Call(**arguments)
    with snapshot_of(region, [call]).preserved(), torch.compiler.set_stance("force_eager"):
        raised = run_call(region, call, 0).raised
    if raised:
        raise UsageError(f"{call}, as drawn by the annotations, ends with {raised}: {_OWN_CALLS}")
    return call


_NOTHING = object()
_OWN_CALLS = "name a function that returns (callable, steps)"


def _drawn(annotation: object, generator: torch.Generator, otherwise: object = _NOTHING) -> object:
    """Return a value of an annotation; `otherwise` for an annotation that no value can be drawn for."""
    kinds = _kinds(annotation)
    if Tensor in kinds:
        return torch.randn(ROWS, WIDTH, generator=generator)
    for kind in kinds:
        if dataclasses.is_dataclass(kind) and isinstance(kind, type):
            hints = typing.get_type_hints(kind)
            drawn = {
                field.name: _drawn(hints[field.name], generator)
                for field in dataclasses.fields(kind)
                if field.init and field.default is field.default_factory  # both are missing
            }
            if _NOTHING not in drawn.values():
                return kind(**drawn)
    if otherwise is _NOTHING and kinds & {int, float, bool}:
        return next(kind for kind in (int, float, bool) if kind in kinds)(2)
    return otherwise


def undrawn(region: Region, call: Call) -> list[str]:
    """Return the parameters that have one value in all calls, because no other one can be drawn."""
    varied = {setting.input for setting in settings_of(region, call)}
    given = arguments_of(region, call)
    return [
        _in_words(name, parameter)
        for name, parameter in signature_of(region).parameters.items()
        if name not in varied
        and not isinstance(given.get(name), Tensor)
        and parameter.kind not in (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    ]


def _in_words(name: str, parameter: inspect.Parameter) -> str:
    written = parameter.annotation
    if written is inspect.Parameter.empty:
        return name
    return f"{name}: {written if isinstance(written, str) else inspect.formatannotation(written)}"


def settings_of(region: Region, call: Call) -> list[DrawnSetting]:
    """Return the settings of all inputs of a call, each of them another value than the call's."""
    drawn: list[DrawnSetting] = []
    signature = signature_of(region)
    arguments = signature.bind(*call.args, **call.kwargs)
    arguments.apply_defaults()
    for name, value in arguments.arguments.items():
        parameter = signature.parameters[name]
        annotation = _annotation(region, name, parameter)
        optional = type(None) in _kinds(annotation) or parameter.default is None
        drawn += [
            DrawnSetting(name, words, change) for words, change in _changes(value, annotation, optional)
        ]
    tensors = (leaf for _, leaf in structures.leaves((call.args, call.kwargs)) if isinstance(leaf, Tensor))
    rows = next((tensor.shape[0] for tensor in tensors if tensor.dim()), 0)  # those of the first one
    drawn += [
        DrawnSetting("rows", f"{count} rows", partial(_with_rows, rows, count))
        for count in (1, rows + 3)
        if count != rows > 1
    ]
    owner = getattr(region, "__self__", region)
    built_in = tuple(
        f"self.{name}."
        for name, module in (owner.named_modules() if isinstance(owner, nn.Module) else ())
        if name and type(module).__module__.startswith("torch.")
    )
    of_function = isinstance(region, types.FunctionType)
    for name, value in state_of(region).items():
        if name.startswith(built_in) or "training" in name or "(" in name:
            continue
        if not (of_function or name.startswith("self.")):  # a constant that methods read
            continue
        if isinstance(value, bool | int | float):
            other = not value if isinstance(value, bool) else value + 1
            drawn.append(DrawnSetting(name, f"{name} = {other!r}", _constant(other)))
    return drawn


def _annotation(region: Region, name: str, parameter: inspect.Parameter) -> object:
    called = region.forward if isinstance(region, nn.Module) else region
    try:
        return typing.get_type_hints(getattr(called, "__func__", called)).get(name, parameter.annotation)
    except Exception:  # noqa: BLE001  # a name that cannot be resolved
        return parameter.annotation


def _kinds(annotation: object) -> set[object]:
    """Return the alternatives of an annotation: those of a union, or itself."""
    if get_origin(annotation) in (Union, UnionType):
        return {inner for member in get_args(annotation) for inner in _kinds(member)}
    return {annotation}


def _constant(value: object) -> Callable[[object], object]:
    """Return a change to one value, whatever was there."""
    return lambda _before: value


def _with_rows(before: int, after: int, value: object) -> object:
    """Return a tensor with another number of rows: every dimension that has as many follows."""
    if not isinstance(value, Tensor):
        return value
    for dim in range(value.dim()):
        if value.shape[dim] == before:
            value = value.index_select(dim, torch.arange(after, device=value.device) % before)
    return value


def _changes(
    value: object, annotation: object, optional: bool
) -> Iterator[tuple[str, Callable[[Any], object]]]:
    if value is not None and optional:
        yield "None", _constant(None)
    match value:
        case Tensor():
            if value.dim() > 1 and min(value.shape) > 1:
                yield "other strides", lambda tensor: tensor.transpose(0, 1).contiguous().transpose(0, 1)
            if value.dtype in (torch.int32, torch.int64):
                other = torch.int64 if value.dtype == torch.int32 else torch.int32
                yield str(other).removeprefix("torch."), lambda tensor: tensor.to(other)
        case None if Tensor in _kinds(annotation):
            yield "a tensor", _constant(torch.full((ROWS, WIDTH), 0.5))
        case bool():
            yield repr(not value), _constant(not value)
        case enum.Enum():
            others = [member for member in type(value) if member is not value]
            yield from ((str(member), _constant(member)) for member in others)
        case int() | float():
            yield repr(value + 1), _constant(value + 1)
        case _:
            yield from _changes_of_members(value)


def _changes_of_members(value: object) -> Iterator[tuple[str, Callable[[Any], object]]]:
    match value:
        case list() | tuple() if value:
            yield "empty", _constant(type(value)())
            yield "a member more", lambda members: type(members)([*members, members[-1]])
        case dict():
            for key in value:
                yield f"without {key!r}", partial(_without, key)
        case _ if dataclasses.is_dataclass(value) and not isinstance(value, type):
            hints = typing.get_type_hints(type(value))
            for field in dataclasses.fields(value):
                before, hint = getattr(value, field.name), hints[field.name]
                for words, change in _changes(before, hint, type(None) in _kinds(hint)):
                    yield f"{field.name}: {words}", partial(_with_field, field.name, change)


def _with_field(name: str, change: Callable[[Any], object], value: Any) -> object:  # noqa: ANN401  # a dataclass
    return dataclasses.replace(value, **{name: change(getattr(value, name))})


def _without(left_out: object, members: dict[object, object]) -> object:
    return {key: value for key, value in members.items() if key != left_out}


def _with(region: Region, call: Call, chosen: Sequence[DrawnSetting]) -> Call:
    """Return a copy of a call with some inputs changed; attributes of the region are left."""
    arguments = copied(arguments_of(region, call))
    for setting in chosen:
        if setting.input == "rows":
            arguments = structures.map_leaves(setting.change, arguments)
        elif setting.input in arguments:
            arguments[setting.input] = setting.change(arguments[setting.input])
    return Call(**arguments)


class _Assignment:
    """A step that gives an attribute of the region another value."""

    def __init__(self, name: str, value: object) -> None:
        self.name, self.value = name, value

    def __call__(self, region: Region) -> None:
        set_value(region, self.name, self.value)


def history(region: Region, call: Call, chosen: Sequence[Sequence[DrawnSetting]]) -> tuple[Step, ...]:
    """Return the steps of a history: for each set of settings its changes of attributes, then a call."""
    names, state = {*signature_of(region).parameters, "rows"}, state_of(region)
    steps: list[Step] = []
    current: dict[str, object] = {}
    for settings_of_step in chosen:
        wanted = {
            setting.input: setting.change(None) for setting in settings_of_step if setting.input not in names
        }
        for name in dict.fromkeys([*current, *wanted]):
            value = wanted.get(name, state[name])
            if current.get(name, state[name]) != value:
                steps.append(_Assignment(name, value))
        current = wanted
        steps.append(_with(region, call, settings_of_step))
    return tuple(steps)


def measure_pairs(region: Region, call: Call, options: StepOptions, name: str) -> Iterator[SteppedHistory]:
    """Measure each setting after the original call, and before it; skip what the uncompiled code refuses."""
    for number, setting in enumerate(settings_of(region, call)):
        for chosen in (((), (number,)), ((number,), ())):
            measured = measure_history(region, call, options, name, chosen)
            if measured.region.arms or measured.region.restless:
                yield replace(measured, words=f"{setting.input}: {measured.words}")


def measure_history(
    region: Region, call: Call, options: StepOptions, name: str, chosen: Sequence[Sequence[int]]
) -> SteppedHistory:
    """Run a history of calls with these settings each.

    No arm runs where the uncompiled code raises, which is found before anything is compiled.
    """
    every = settings_of(region, call)
    picked = [[every[number] for number in settings] for settings in chosen]
    words = (" and ".join(setting.words for setting in settings) or "as it was" for settings in picked)
    steps = history(region, call, picked)
    measured = measure_steps(in_place(region, steps), replace(options, answering=True), name)
    return SteppedHistory(", then ".join(words), measured, tuple(map(tuple, chosen)))
