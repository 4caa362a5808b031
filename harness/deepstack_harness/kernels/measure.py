"""Measures one subject in this process, which was prepared for its target (`kernels.worker`)."""

from contextlib import ExitStack, suppress
from dataclasses import replace
from functools import cache

import torch

from deepstack_harness.contract.facts.kernels import Candidate, GraphCall, Kernel, KernelFacts
from deepstack_harness.kernels.decode import Decode
from deepstack_harness.kernels.subject import CUDA, Subject
from deepstack_harness.probes.kernels import KernelProbe
from deepstack_harness.probes.launches import launched, with_grids
from deepstack_harness.torch_compat.fake_tensors import without_storage
from deepstack_harness.torch_compat.lowering import Lowered, NotRun, cold


def measure_step(asked: Subject) -> tuple[str, KernelFacts]:
    """Return the family's full name, and the calls of the step.

    Its graphs are all that were compiled until then.

    Raises `UsageError` for an unknown family, `NotMeasured` where no kernel was seen.
    """
    with ExitStack() as stack:
        stack.enter_context(torch.no_grad())
        stack.enter_context(cold(compile_threads=asked.compile_threads, run=asked.runs))
        if not asked.runs:
            stack.enter_context(without_storage())
        decode = Decode.open(asked)
        probe = KernelProbe(asked.tokens, asked.capacity, run=asked.runs)
        with probe:
            before = _run(decode, probe)
        facts = probe.facts()
        calls = facts.calls[before:]
        if asked.target == CUDA:
            calls = with_grids(calls, launched(decode.step))
    if asked.cubin:
        calls = tuple(_compiled(call, probe.watched.graphs[call.graph]) for call in calls)
    return decode.family.name, replace(facts, calls=calls)


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
