"""The work of a worker that plays cases: models, classes of sources and compiled code stay warm."""

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from functools import cache
from typing import Any

import msgspec
import torch

from deepstack_harness.binding.argument_class import ArgumentClass
from deepstack_harness.binding.discover import FoundCut
from deepstack_harness.binding.forward_class import ForwardModels
from deepstack_harness.binding.found_classes import Found
from deepstack_harness.binding.methods_class import MethodsClass
from deepstack_harness.binding.replayed import OwnGraphs, ReplayedClass
from deepstack_harness.contract.buffer_ref import BufferKind
from deepstack_harness.contract.case import Case
from deepstack_harness.contract.observation import Observation, StepFacts
from deepstack_harness.contract.protocols import BufferFactory
from deepstack_harness.devices import parse_device, parse_dtype
from deepstack_harness.engines.classes import define_class, methods_of
from deepstack_harness.engines.cuts import cuts_of
from deepstack_harness.engines.known import open_source
from deepstack_harness.errors import HarnessError
from deepstack_harness.play.attempt import announcing
from deepstack_harness.play.in_process import NOTHING_BOUND, Bound
from deepstack_harness.play.observe_split import observe_split
from deepstack_harness.play.play_case import play_case
from deepstack_harness.play.source_class import SourceClass
from deepstack_harness.play.user_buffer import load_buffer
from deepstack_harness.sources.source import Source
from deepstack_harness.workers.child import Channel


def play(
    channel: Channel, case: Mapping[str, Any], source: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """Play a `Case`; all that is sent and returned is JSON.

    `source` is the `SourceClass` of a buffer from a source.  Facts are the observation without steps, and
    then the `StepFacts` of each step; the phase is the name of the call that is under way.  Returns
    `observation`, without the steps that were sent, and `device_works`: False for a GPU that does not answer.
    After some errors every later call of a process fails there, so that the worker must not be used again.
    """
    torch.set_num_threads(1)
    parsed = msgspec.convert(case, Case)
    channel.phase("set-up")
    bound = bind(parsed, msgspec.convert(source, SourceClass)) if source else NOTHING_BOUND
    sent: list[object] = []

    def send(fact: Observation | StepFacts) -> None:
        sent.append(fact)
        channel.fact(msgspec.to_builtins(fact))
        channel.phase("")

    with announcing(channel.phase):
        seen = play_case(parsed, bound, send)
    channel.phase("the end")
    rest = replace(seen, steps=seen.steps[max(0, len(sent) - 1) :])
    return {"observation": msgspec.to_builtins(rest), "device_works": _device_works(parsed.device)}


def define(channel: Channel, text: str, model_class: str) -> dict[str, Any]:
    """Define a class of a source in both ways; return which of them it can be driven in, and what refused.

    Raises `UsageError` where the source cannot be read.
    """
    torch.set_num_threads(1)
    channel.phase(f"the definition of {model_class}, which calls its set, get and clear once")
    found = _found(text, model_class)
    return {
        "methods": found.methods is not None,
        "forward": found.forward is not None,
        "refusals": list(found.refusals),
        "replays": found.graphs.replays,
        "lost": found.graphs.said,
        "splits": found.splits is not None,
    }


def split(channel: Channel, text: str, model_class: str, case: Mapping[str, Any]) -> dict[str, Any]:
    """Split the payloads of a `Case` over its ranks, one rank after the other; return the `Observation`."""
    torch.set_num_threads(1)
    channel.phase(f"the parts of {model_class}")
    splitter = _found(text, model_class).splits
    if splitter is None:
        raise HarnessError(f"{model_class} was not bound as a splitter")
    return msgspec.to_builtins(observe_split(msgspec.convert(case, Case), splitter))  # type: ignore[no-any-return]


def describe(channel: Channel, source: Mapping[str, Any]) -> dict[str, str]:
    """Define a class of a source; return its `model_class`, and the `filename` that tracebacks show.

    Raises `UsageError` where it cannot be driven.
    """
    torch.set_num_threads(1)
    channel.phase("the definition of the class")
    bound = _factory(msgspec.convert(source, SourceClass))
    return {"model_class": bound.model_class, "filename": bound.filename}


def where_returned(
    channel: Channel,
    source: Mapping[str, Any],
    tokens: int,
    sizes: tuple[int, int, int],
    dtype: str,
    device: str,
) -> str:
    """Return FILE:LINE of the `return` by which an empty buffer of (capacity, hidden, levels) answers."""
    channel.phase("get")
    bound = _factory(msgspec.convert(source, SourceClass))
    if not isinstance(bound, MethodsClass):
        return bound.filename
    return bound(*sizes, dtype=parse_dtype(dtype), device=parse_device(device)).where_returned(tokens)


def load(channel: Channel, target: str) -> str:
    """Import a user's class `MODULE:CLASS` and check that it fits; return its name.

    Raises `UsageError` where it does not.
    """
    torch.set_num_threads(1)
    channel.phase(f"the import of {target}")
    made = load_buffer(target)
    return str(getattr(made, "__name__", target))


def bind(case: Case, source: SourceClass) -> Bound:
    """Return the class of a source that a case is about; raise `UsageError` where it cannot be driven."""
    if case.buffer.kind is not BufferKind.SOURCE:
        raise HarnessError(f"'{case.buffer.name}' is not a buffer of a source")
    factory = _factory(source)
    if case.buffer.replayed:
        return {case.buffer: _replayed(factory)}
    return {case.buffer: factory}


def _replayed(factory: MethodsClass | ForwardModels | ArgumentClass) -> BufferFactory:
    """Return what makes the same buffers under graphs; an engine with a runner replays its own."""
    return factory.under_graphs() if isinstance(factory, OwnGraphs) else ReplayedClass(factory)


@cache
def _factory(source: SourceClass) -> MethodsClass | ForwardModels | ArgumentClass:
    """Return the class, bound; raises `UsageError` where it cannot be driven in this way."""
    if source.family is not None:
        return methods_of(_opened(source.text), source.family)
    found = _found(source.text, source.model_class)
    factory = found.methods if source.way == "methods" else found.forward
    if factory is None:
        raise HarnessError(f"{source.model_class} was not bound by its {source.way}")
    return factory


@cache
def _found(text: str, model_class: str) -> Found:
    return define_class(_opened(text), _cuts(text)[model_class])


@cache
def _cuts(text: str) -> dict[str, FoundCut]:
    return {cut.model_class: cut for cut in cuts_of(_opened(text))}


@cache
def _opened(text: str) -> Source:
    return open_source(text)


def _device_works(device: str) -> bool:
    if not device.startswith("cuda"):
        return True
    with suppress(RuntimeError):
        torch.cuda.synchronize()
        return True
    return False
