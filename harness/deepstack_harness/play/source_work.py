"""The functions of a worker that plays classes of a source, each defined once.

`play.case_worker` calls them.  A class, or its function that splits a payload, is played on each rank of a
group, one after the other: a rank is a stand-in that has its number and the size of the group,
and nothing is exchanged.
"""

from collections.abc import Iterator
from dataclasses import replace
from functools import cache

import torch
from torch import Tensor

from deepstack_harness.contract.case import HIDDEN_ALONE, LEVELS_ALONE, BufferKind, Case
from deepstack_harness.contract.observation import Observation, Raised, ShardFacts, StepFacts
from deepstack_harness.contract.trace import Op, Step
from deepstack_harness.engines.bind import (
    ArgumentClass,
    DefinedClass,
    OwnGraphs,
    PayloadSplitter,
    ReplayedClass,
)
from deepstack_harness.engines.bound_class import ForwardClass, ForwardModels, MethodsClass
from deepstack_harness.engines.calls import SharesSteps
from deepstack_harness.engines.classes import calls_of, define_class, methods_of
from deepstack_harness.engines.known import found_named, open_source
from deepstack_harness.engines.load import loaded_of
from deepstack_harness.errors import HarnessError, Reason, passes_through, text_of
from deepstack_harness.models.family import parse_device, parse_dtype
from deepstack_harness.play import observe
from deepstack_harness.play.case_worker import ClassWays, Described, SourceClass
from deepstack_harness.play.loading import BoundBuffer, Played
from deepstack_harness.play.model import Bound, Model, NumericsProbe
from deepstack_harness.play.play_case import play_case
from deepstack_harness.play.rows import RowOwners, answer_facts
from deepstack_harness.play.tensors import values_of
from deepstack_harness.play.work import Send, bind_live, send_steps
from deepstack_harness.workers.child import Channel


def play(channel: Channel, case: Case, source: SourceClass) -> Played:
    """Play a case on a class of a source; see `work.send_steps`.

    A class that runs `compiled` has its own text model for a decoder.
    """
    channel.phase("set-up")
    bound = bind_work(case, source)

    def observed(send: Send) -> Observation:
        if source.way == "compiled":
            return observe.play(case, _text_model(source), bound[case.buffer], on_progress=send)
        return play_case(case, bound, send)

    played = send_steps(channel, case, observed)
    met = _met(source)
    if met:
        return replace(played, observation=replace(played.observation, error=str(met[0])))
    return played


def _met(source: SourceClass) -> list[Reason]:
    """Note the stubs that a class has met since the last look, and return all that it ever met."""
    known = _MET.setdefault(source.model_class, [])
    touched = loaded_of(_opened(source.text)).absent.touched
    known += touched
    touched.clear()
    return known


_MET: dict[str, list[Reason]] = {}


def stubs_met(channel: Channel, source: SourceClass) -> tuple[Reason, ...]:
    """Return the stubs that a class has met: what was measured of it is about them too."""
    channel.phase(f"the stubs that {source.model_class} has met")
    return tuple(_met(source))


def define(channel: Channel, text: str, model_class: str) -> ClassWays:
    """Define a class of a source in both ways; return in which of them it runs, and what refused.

    Raises `UsageError` where the source cannot be read.
    """
    channel.phase(f"the definition of {model_class}, which calls its set, get and clear once")
    found, opened = _found(text, model_class), _opened(text)
    return ClassWays(
        methods=found.methods is not None, forward=found.forward is not None, refusals=found.refusals,
        replays=found.graphs.replays, lost=found.graphs.lost,
        no_graphs=found.graphs.no_graphs, splits=found.splits is not None,
        compiled="" if isinstance(found.text, str) else f"{found.text.text.at} {found.text.name}",
        uncompiled=found.text if isinstance(found.text, str) else "",
        every_token=isinstance(found.forward, ForwardClass) and found.forward.convention.by_token,
        loaded=loaded_of(opened).sentence(),
        places={
            name: place
            for way in (found.forward, found.methods)
            if isinstance(way, ForwardModels | MethodsClass)
            for name, place in way.known.places.items()
        },
    )  # fmt: skip


def split(channel: Channel, text: str, model_class: str, case: Case) -> Observation:
    """Split the payloads of a case over its ranks, one rank after the other."""
    channel.phase(f"the parts of {model_class}")
    splitter = _found(text, model_class).splits
    if splitter is None:
        raise HarnessError(f"{model_class} was not bound as a splitter")
    return observe_split(case, splitter)


def describe(channel: Channel, source: SourceClass) -> Described:
    """Define a class of a source; raises `UsageError` where it cannot run."""
    channel.phase("the definition of the class")
    bound = _factory(source)
    return Described(bound.model_class, bound.filename)


def where_returned(
    channel: Channel,
    source: SourceClass,
    tokens: int,
    sizes: tuple[int, int, int],
    dtype: str,
    device: str,
) -> str:
    """Return FILE:LINE of the `return` of a get from an empty buffer of (capacity, hidden, levels)."""
    channel.phase("get")
    bound = _factory(source)
    if not isinstance(bound, MethodsClass):
        return bound.filename
    return bound(*sizes, dtype=parse_dtype(dtype), device=parse_device(device)).where_returned(tokens)


def bind_work(case: Case, source: SourceClass) -> Bound:
    """Return the class of a source that a case is about; raise `UsageError` where it cannot run."""
    if case.buffer.kind is not BufferKind.SOURCE:
        raise HarnessError(f"'{case.buffer.name}' is not a buffer of a source")
    factory = _factory(source)
    if not case.buffer.replayed:
        return {case.buffer: factory}
    # The same buffers under graphs; an engine with a runner replays its own.
    return {case.buffer: factory.under_graphs() if isinstance(factory, OwnGraphs) else ReplayedClass(factory)}


@cache
def _text_model(source: SourceClass) -> Model:
    """Return the text model that a class passes its payload to, as the decoder of a case."""
    family = _found(source.text, source.model_class).text
    if isinstance(family, str):
        raise HarnessError(f"{source.model_class} has no text model that can be run: {family}")
    dtype, device = torch.float32, torch.device("cpu")
    decoder = family.build(dtype=dtype, device=device, seed=0)
    numerics = NumericsProbe(decoder, family.levels, family.hidden, each_level=True)
    return Model(family, decoder, numerics, dtype, device)


@cache
def _factory(source: SourceClass) -> MethodsClass | ForwardModels | ArgumentClass:
    """Return the class, bound; raises `UsageError` where it cannot run in this way."""
    if source.family is not None:
        return methods_of(_opened(source.text), source.family)
    found = _found(source.text, source.model_class)
    factory = found.methods if source.way == "methods" else found.forward
    if factory is None:
        raise HarnessError(f"{source.model_class} was not bound by its {source.way}")
    return factory


@cache
def _found(text: str, model_class: str) -> DefinedClass:
    found = found_named(_opened(text), model_class)
    if found is None:
        raise HarnessError(f"{model_class} was found in '{text}' by another process and is not there")
    return define_class(_opened(text), found)


_opened = cache(open_source)


def bind_shared(source: str, family: str) -> BoundBuffer:
    """Put a reference in the place of the class of a source that runs for a family; see `work.bind_shared`.

    Raises `UsageError` for what does not exist, and `MachineError` for a source that cannot be fetched.
    """
    factory = methods_of(open_source(source), family)
    bind_live(factory.ref, factory)
    return BoundBuffer(factory.ref, str(torch.__version__))


def play_split(channel: Channel, case: Case, source: SourceClass, ranks: int) -> Observation:
    """Play a case unshared, and then on each rank; return the first with the rows of every rank."""
    channel.phase("set-up")
    bound = bind_work(case, source)
    channel.phase("get")
    whole, seen = play_case(case, bound), []
    calls = calls_of(_opened(source.text))
    assert isinstance(calls, SharesSteps)
    for rank in range(ranks):
        with calls.as_rank(rank, ranks):
            seen.append(play_case(case, bound))
    steps = zip(whole.steps, *(rank.steps for rank in seen), strict=True)
    done = []
    for first, *shares in steps:
        shards = tuple(  # a rank whose get raised has no rows
            ShardFacts(rank, ranks, share.answer.rows if share.answer else ())
            for rank, share in enumerate(shares)
        )
        done.append(first if first.answer is None else replace(first, shards=shards))
    return replace(whole, steps=tuple(done))


def observe_split(case: Case, splitter: PayloadSplitter) -> Observation:
    """Play a trace of sets and forwards: every forward is one step that all ranks share."""
    steps = tuple(_SplitTrace(case, splitter).play())
    return Observation(case.dtype, case.device, LEVELS_ALONE, HIDDEN_ALONE, str(torch.__version__), steps)


class _SplitTrace:
    """One case: the payload of the step that comes next, and the owners of all rows."""

    def __init__(self, case: Case, splitter: PayloadSplitter) -> None:
        self._case = case
        self._splitter = splitter
        self._owners = RowOwners()
        self._generator = torch.Generator().manual_seed(case.seed)
        self._sets = 0
        self._payload: Tensor | None = None
        self._marks: Tensor | None = None

    def play(self) -> Iterator[StepFacts]:
        for step in self._case.trace:
            yield self._set(step) if step.op is Op.SET else self._forward(step)

    def _set(self, step: Step) -> StepFacts:
        self._sets += 1
        drawn = torch.randn((LEVELS_ALONE, step.tokens, HIDDEN_ALONE), generator=self._generator)
        payload = values_of(step, drawn)
        self._owners.remember(self._sets, payload)
        marks = torch.zeros(step.tokens, dtype=torch.bool)
        for start, end in ((0, step.tokens),) if step.spans is None else step.spans:
            marks[start:end] = True
        self._payload, self._marks = (payload, marks) if step.tokens else (None, None)
        return StepFacts(str(step), self._case.trace.capacity)

    def _forward(self, step: Step) -> StepFacts:
        whole = torch.zeros(LEVELS_ALONE, step.tokens, HIDDEN_ALONE)
        if self._payload is not None:
            whole[:, : self._payload.size(1)] = self._payload
        answer = answer_facts(tuple(whole), self._owners)
        ranks, shards = self._case.arm.ranks, []
        try:
            for rank in range(ranks):
                rows = self._rows(rank, ranks, step.tokens)
                shards.append(ShardFacts(rank, ranks, self._owners.runs_of(rows)))
        except BaseException as error:
            if passes_through(error):
                raise
            raised = Raised(type(error).__name__, f"rank {rank} of {ranks}: {text_of(error)}", "decoder", "")
            return StepFacts(str(step), self._case.trace.capacity, answer=answer, raised=raised)
        self._payload = self._marks = None
        return StepFacts(str(step), self._case.trace.capacity, answer=answer, shards=tuple(shards))

    def _rows(self, rank: int, ranks: int, tokens: int) -> tuple[Tensor, ...]:
        levels = [torch.ones(1, HIDDEN_ALONE)] * LEVELS_ALONE
        if self._payload is not None and self._marks is not None:
            levels = [level[self._marks].clone() for level in self._payload]
        rows = self._splitter.rows(rank, ranks, self._marks, levels, tokens)
        # A splitter that is given nothing adds nothing.
        return rows or tuple(torch.zeros(LEVELS_ALONE, tokens // ranks, HIDDEN_ALONE))
