"""Play a trace on a class that was made by its own `__init__`, uncompiled and by the engine's own decorator.

`audit.constructed` calls it in a worker of its own, because importing an engine changes the process.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache, partial
from importlib import import_module
from typing import Protocol, TypeVar

import torch
from torch import Tensor, nn

from deepstack_harness.compile.distances import apart, largest
from deepstack_harness.compile.torch_compat import dynamo
from deepstack_harness.contract.case import Case
from deepstack_harness.contract.observation import Distances, Observation, StepFacts
from deepstack_harness.contract.trace import RUNS_DECODER, Op, Step
from deepstack_harness.engines.known import engine_of, open_source
from deepstack_harness.engines.load import LoadedSource, loaded_of
from deepstack_harness.engines.model_class import CannotSupply
from deepstack_harness.engines.tiny import HIDDEN, Tiny
from deepstack_harness.errors import HarnessError, Reason, SourceError, passes_through, text_of
from deepstack_harness.play.attempt import attempt
from deepstack_harness.workers.child import Channel

_SEED = 1  # weights are drawn with 0
T = TypeVar("T")


def construct(channel: Channel, text: str, model_class: str, case: Case) -> Observation:
    """Make a class twice, uncompiled and compiled, and play the trace of a case on both.

    A step's distances are those of its outputs: compiled to uncompiled, and both to an uncompiled step whose
    levels are zero.  What the compiled object raises is a fact.  Raises `UsageError` where the source cannot
    be read or imported, `SourceError` with the place where the class cannot be made or run uncompiled, or
    its code meets a stub, or nothing of it is compiled.
    """
    channel.phase(f"the import of the module of {model_class}")
    source = _opened(text)
    engine, loaded = engine_of(source), loaded_of(source)
    loaded.absent.values.update(engine.files.parts.libraries)
    surroundings: ModelSurroundings = import_module(engine.surroundings).SURROUNDINGS
    tiny = engine.tiny[model_class]
    surroundings.prepare(loaded, tiny)
    loaded.absent.touched.clear()
    channel.phase(f"{model_class}, made by its __init__")
    graphs_before = dynamo.graphs_built()
    with torch.no_grad():
        steps = tuple(_Pair(loaded, surroundings, tiny, model_class, case).play(case))
    if loaded.absent.touched:  # code of the source may have taken the exception
        raise CannotSupply(loaded.absent.touched[0])
    if dynamo.graphs_built() == graphs_before and not any(step.raised for step in steps):
        raise SourceError("not measured: the engine's decorator compiled nothing of it")
    return Observation(
        case.dtype, case.device, tiny.levels, HIDDEN, str(torch.__version__), steps, routed=tiny.routed
    )


_opened = cache(open_source)


class ModelSurroundings(Protocol):
    """What an engine has around a model: settings, parallel groups of one rank, the context of a step."""

    def prepare(self, loaded: LoadedSource, tiny: Tiny) -> None:
        """Import the module of a class, and replace its parts."""
        ...

    def build(
        self, loaded: LoadedSource, tiny: Tiny, model_class: str, capacity: int, *, compiled: bool
    ) -> nn.Module:
        """Return an object of the class for `capacity` tokens, `compiled` by the engine's own decorator."""
        ...

    def profile(self, tiny: Tiny, model: nn.Module, tokens: int) -> None:
        """Run the model as the engine's profile run does: without a payload."""
        ...

    def step(self, tiny: Tiny, model: nn.Module, tokens: int, payload: Tensor | None) -> Tensor:
        """Run one step with a payload of (tokens, width), or text only; return (tokens, hidden)."""
        ...


class _Pair:
    """Two objects of a class with equal weights, uncompiled and compiled, that are given the same steps."""

    def __init__(
        self, loaded: LoadedSource, surroundings: ModelSurroundings, tiny: Tiny, model_class: str, case: Case
    ) -> None:
        self._loaded, self._surroundings, self._tiny = loaded, surroundings, tiny
        self._payload: Tensor | None = None

        def build(*, compiled: bool) -> nn.Module:
            return surroundings.build(loaded, tiny, model_class, case.trace.capacity, compiled=compiled)

        torch.compiler.reset()
        self._eager = self._own(partial(build, compiled=False))
        self._compiled = self._own(partial(build, compiled=True))

    def play(self, case: Case) -> Iterator[StepFacts]:
        """Yield the facts of each step; one that the compiled object does not survive is the last."""
        for number, step in enumerate(case.trace):
            facts = StepFacts(str(step), case.trace.capacity)
            if step.op is Op.SET:
                drawn = torch.Generator().manual_seed(_SEED + number)
                self._payload = torch.randn(step.tokens, self._tiny.width, generator=drawn)
                yield facts
                continue
            eager, control = self._own(partial(self._references, step))
            done = attempt("decoder", partial(self._run, self._compiled, step, self._payload))
            if step.op in RUNS_DECODER:
                self._payload = None
            if done.raised:
                yield replace(facts, raised=done.raised)
                return
            yield replace(facts, distances=_distances(done.value, eager, control))

    def _references(self, step: Step) -> tuple[Tensor | None, Tensor | None]:
        """Return the uncompiled outputs of a step, with the payload and with levels of zeros."""
        zeroed = None
        if self._payload is not None:
            zeroed = self._payload.clone()
            zeroed[:, self._tiny.main :] = 0
        eager = self._run(self._eager, step, self._payload)
        return eager, self._run(self._eager, step, zeroed)

    def _run(self, model: nn.Module, step: Step, payload: Tensor | None) -> Tensor | None:
        """Do a step; return the output of (tokens, hidden), None of a profile run."""
        if step.op is Op.PROFILE:
            self._surroundings.profile(self._tiny, model, step.tokens)
            return None
        assert step.op in RUNS_DECODER, step
        return self._surroundings.step(self._tiny, model, step.tokens, payload)

    def _own(self, function: Callable[[], T]) -> T:
        """Return what uncompiled code of the class returns; its exceptions say nothing about compiling."""
        try:
            return function()
        except Exception as error:
            if passes_through(error) or isinstance(error, HarnessError):
                raise
            file, line = self._loaded.raised_at(error)
            what = f"the class cannot be made or run uncompiled: {type(error).__name__}: {text_of(error)}"
            raise SourceError(Reason(what, file or self._tiny.member, line)) from error


def _distances(compiled: Tensor | None, eager: Tensor | None, control: Tensor | None) -> Distances | None:
    """Return the distances of outputs of (tokens, hidden); None of a step without an output."""
    if compiled is None or eager is None or control is None:
        return None
    if not (eager.isfinite().all() and control.isfinite().all()):
        raise SourceError("not measured: the uncompiled output is not finite")
    return Distances(
        eager=apart(compiled, eager), no_deepstack=None, zero_deepstack=apart(compiled, control),
        effect=apart(eager, control), rounding=0.0, scale=largest(eager),
    )  # fmt: skip
