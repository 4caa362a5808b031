"""Measures one subject in this process, which was prepared for its target (`kernels.worker`)."""

import time
from contextlib import ExitStack, suppress
from dataclasses import replace
from functools import cache
from typing import NamedTuple

import torch

from deepstack_harness.arms.interpreted import InterpretedSession
from deepstack_harness.contract.facts.accesses import AccessFacts
from deepstack_harness.contract.facts.kernels import Candidate, GraphCall, Kernel, KernelFacts
from deepstack_harness.contract.optional_members import take_accesses
from deepstack_harness.kernels.decode import Decode
from deepstack_harness.kernels.subject import CUDA, Subject
from deepstack_harness.probes.kernels import KernelProbe
from deepstack_harness.probes.launches import launched, with_grids
from deepstack_harness.torch_compat.fake_tensors import without_storage
from deepstack_harness.torch_compat.lowering import Lowered, NotRun, cold


class MeasuredKernels(NamedTuple):
    """The family's full name, the calls of the step, and accesses and processor time of interpreted ones."""

    family: str
    facts: KernelFacts
    accesses: AccessFacts | None = None
    seconds: float = 0.0


def measure_step(asked: Subject) -> MeasuredKernels:
    """Measure the step of a subject.

    Its graphs are all that were compiled until then.

    Raises `UsageError` for an unknown family, `NotMeasured` where no kernel was seen.
    """
    with ExitStack() as stack:
        stack.enter_context(torch.no_grad())
        stack.enter_context(cold(compile_threads=asked.compile_threads, run=asked.runs))
        if not asked.runs:
            stack.enter_context(without_storage())
        decode = Decode.open(asked)
        if asked.execute:  # it replaces parts of the interpreter while it is open
            stack.callback(decode.session.close)
        probe = KernelProbe(asked.tokens, asked.capacity, run=asked.runs)
        with probe:
            before = _traced(decode, probe) if asked.execute else _run(decode, probe)
            started = time.process_time()
            if asked.execute:
                decode.step()
            spent = time.process_time() - started
        facts = probe.facts()
        calls = facts.calls[before:]
        if asked.target == CUDA:
            calls = with_grids(calls, launched(decode.step))
    if asked.cubin:
        calls = tuple(_compiled(call, probe.watched.graphs[call.graph]) for call in calls)
    found = replace(facts, calls=calls)
    return MeasuredKernels(decode.family.name, found, take_accesses(decode.session), spent)


def _traced(decode: Decode, probe: KernelProbe) -> int:
    """Generate the graph of the profile run, or of the step; return the number of calls so far."""
    session, asked = decode.session, decode.asked
    assert isinstance(session, InterpretedSession), "a subject that is executed names an interpreted arm"
    session.graphs.compares = asked.configurations
    session.trace(decode.inputs(asked.tokens if asked.static else asked.profile_tokens))
    return len(probe.watched.calls)


def _run(decode: Decode, probe: KernelProbe) -> int:
    """Play the profile run and the step; return the number of calls before the step's."""
    if not decode.asked.static:
        with suppress(NotRun):
            decode.profile_run()
    before = len(probe.watched.calls)
    with suppress(NotRun):
        decode.step()
    return before


def _compiled(call: GraphCall, lowered: Lowered | None) -> GraphCall:
    """Return the call, with what each candidate of its Triton kernels compiles to."""
    from deepstack_harness.torch_compat.fake_gpu_cubin import compile_candidates

    by_name = {function.name: function for function in (lowered.functions if lowered else ())}

    @cache  # layers share their kernels
    def candidates(name: str, numels: tuple[tuple[str, int], ...]) -> tuple[Candidate, ...]:
        return tuple(compile_candidates(by_name[name], dict(numels)))

    def compiled(kernel: Kernel) -> Kernel:
        if kernel.function is None:
            return kernel
        return replace(kernel, candidates=candidates(kernel.function, tuple(kernel.numels.items())))

    return replace(call, kernels=tuple(map(compiled, call.kernels)))
