"""Play a decode step of a tiny decoder in this process, and measure its kernels.

`Decode` is a decoder with its buffer, compiled as a `Subject` requires: it plays the profile run of an
engine, and one step with a payload. `measure_step` watches Inductor meanwhile.
"""

import resource
import time
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from functools import cache
from importlib.metadata import version
from typing import Any

import torch
from torch import Tensor

from deepstack_harness.catalogue.buffers import buffer_named
from deepstack_harness.compile.captured import open_arm
from deepstack_harness.compile.interpreted import InterpretedSession
from deepstack_harness.compile.kernel_probe import KernelProbe, launched, with_grids
from deepstack_harness.compile.kernels import CPU, CUDA, Measurement, Subject
from deepstack_harness.compile.torch_compat.inductor import Lowered, NotRun, cold
from deepstack_harness.compile.torch_compat.modes import without_storage
from deepstack_harness.compile.torch_compat.targets import GPUS
from deepstack_harness.contract.arm import ArmSpec
from deepstack_harness.contract.facts import Candidate, GraphCall, Kernel
from deepstack_harness.contract.protocols import (
    Buffer,
    Inputs,
    Profile,
    Session,
    in_graph,
    take_accesses,
)
from deepstack_harness.errors import UsageError
from deepstack_harness.models.family import TinyFamily, parse_device, parse_dtype, tiny_family_named
from deepstack_harness.models.granite4_vision import Granite4VisionConfig
from deepstack_harness.models.layers import give_storage

_WIDENED = ("mlp", "heads", "kv_heads")
_DEFAULTS = ("opaque", "payload_first")
"""Attention as engines have it, which a compiler cannot look into; and of two orders of reading sizes the
one in which extra rows show."""


@dataclass(frozen=True)
class Decode:
    """A decoder whose payload is what the buffer returns, as in an engine."""

    subject: Subject
    family: TinyFamily[Any]
    buffer: Buffer
    session: Session
    dtype: torch.dtype
    device: torch.device

    @classmethod
    def open(cls, subject: Subject) -> "Decode":
        """Make decoder and buffer; nothing is compiled yet, and weights are drawn only for what will run.

        Raises `UsageError` for an unknown family, `MachineError` for a device that is not here.
        """
        family, dtype = sized_family(subject), parse_dtype(subject.dtype)
        device = parse_device("cpu" if subject.target == CPU or subject.execute else "cuda")
        if subject.runs:
            decoder = family.build(dtype=dtype, device=device, seed=0)
        else:
            with torch.device("meta"):
                decoder = family.decoder()
            give_storage(decoder, dtype, device)
            decoder.eval()
        make = buffer_named(subject.revision)
        decoder = in_graph(make, decoder)
        buffer = make(subject.capacity, family.width, family.levels, dtype=dtype, device=device)
        profile = Profile(subject.capacity, family.width, family.levels, dtype, device)
        session = open_arm(ArmSpec.parse(subject.arm), decoder, profile)
        return cls(subject, family, buffer, session, dtype, device)

    def profile_run(self) -> Tensor:
        """Run the profile run of an engine, before which nothing was set; return (profile_tokens, hidden)."""
        return self.session.forward(self.inputs(self.subject.profile_tokens))

    def step(self) -> Tensor:
        """Set a payload (levels, tokens, hidden) for the tokens of the step; decode -> (tokens, hidden)."""
        shape = (self.family.levels, self.subject.tokens, self.family.width)
        self.buffer.set(torch.zeros(shape, dtype=self.dtype, device=self.device))
        return self.session.forward(self.inputs(self.subject.tokens))

    def inputs(self, tokens: int) -> Inputs:
        """Return the decoder's arguments for so many tokens; the payload is what the buffer returns now.

        They are views of storage for `capacity` tokens, as an engine's are: a graph that runs more rows than
        the step has reads on after them, and must find memory there.
        """
        capacity = self.subject.capacity
        hidden = torch.zeros(capacity, self.family.hidden, dtype=self.dtype, device=self.device)
        room = torch.zeros(3 * capacity, dtype=torch.int64, device=self.device)
        positions = room[: 3 * tokens].view(3, tokens).data
        positions.copy_(self.family.positions(tokens, self.device))
        return Inputs(hidden[:tokens].data, positions, self.buffer.get(tokens))


def sized_family(subject: Subject) -> TinyFamily[Any]:
    """Return the family with the subject's layers and hidden size; heads and feed-forward widen with it.

    It has each of `_DEFAULTS` that the family knows and its name does not decide.
    Granite's levels before layers that are left out are left out too.
    Raises `UsageError` for an unknown family, and for sizes that do not go together.
    """
    base, _, chosen = subject.family.partition(":")
    names, variants = chosen.split("+") if chosen else [], tiny_family_named(subject.family).variants
    decided = {field for name in names for field in variants[name].changes}
    names += [name for name in _DEFAULTS if name in variants and not decided & variants[name].changes.keys()]
    family = tiny_family_named(":".join([base, "+".join(names)] if names else [base]))
    config, hidden = family.config, subject.hidden or family.config.hidden
    changes: dict[str, Any] = {"layers": subject.layers or config.layers, "hidden": hidden}
    if isinstance(config, Granite4VisionConfig):
        changes |= config.within(changes["layers"])
    for name in _WIDENED:
        changes[name], left = divmod(getattr(config, name) * hidden, config.hidden)
        if left or not changes[name]:
            raise UsageError(
                f"--hidden {hidden}: {name} of family '{subject.family}' is {getattr(config, name)} at "
                f"hidden {config.hidden} and grows with it, which gives no whole number here"
            )
    return type(family)(replace(config, **changes), family.name)


def measure_step(subject: Subject) -> Measurement:
    """Compile and call one step of a subject, and return its kernels with what measuring them cost.

    Its graphs are all that were compiled until then. The process was prepared for the subject's target
    (`deepstack_harness.compile.kernel_worker`).

    Raises `UsageError` for an unknown family, `NotMeasured` where no kernel was seen.
    """
    device = torch.cuda.get_device_name() if subject.target == CUDA else subject.target
    device = GPUS[subject.target].name if subject.target in GPUS else device
    started, used = time.monotonic(), _processor_seconds()
    with ExitStack() as stack:
        stack.enter_context(torch.no_grad())
        stack.enter_context(cold(compile_threads=subject.compile_threads, run=subject.runs))
        if not subject.runs:
            stack.enter_context(without_storage())
        decode = Decode.open(subject)
        if subject.execute:  # it replaces parts of the interpreter while it is open
            stack.callback(decode.session.close)
        probe = KernelProbe(subject.tokens, subject.capacity, run=subject.runs)
        step_seconds = 0.0
        with probe:
            before = _trace(decode, probe) if subject.execute else _run(decode, probe)
            if subject.execute:
                step_started = time.process_time()
                decode.step()
                step_seconds = time.process_time() - step_started
        facts = probe.facts()
        calls = facts.calls[before:]
        if subject.target == CUDA:
            calls = with_grids(calls, launched(decode.step))
    if subject.cubin:
        calls = tuple(_with_candidates(call, probe.watched.graphs[call.graph]) for call in calls)
    return Measurement(
        subject=subject,
        family=decode.family.name,
        calls=calls,
        graphs=facts.graphs,
        torch=str(torch.__version__),
        triton=None if subject.target == CPU else version("triton"),
        device=device,
        seconds=time.monotonic() - started,
        processor_seconds=_processor_seconds() - used,
        peak_bytes=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
        accesses=take_accesses(decode.session),
        step_processor_seconds=step_seconds,
        code=tuple(graph.code for graph in probe.watched.graphs if graph) if subject.code else (),
    )


def _processor_seconds() -> float:
    """Return the processor time of this process, and of the compilers that it started and waited for."""
    usages = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)


def _trace(decode: Decode, probe: KernelProbe) -> int:
    """Generate the graph of the profile run, or of the step; return the number of calls so far."""
    session, subject = decode.session, decode.subject
    assert isinstance(session, InterpretedSession), "a subject that is executed names an interpreted arm"
    session.graphs.compares = subject.configurations
    session.trace(decode.inputs(subject.tokens if subject.static else subject.profile_tokens))
    return len(probe.watched.calls)


def _run(decode: Decode, probe: KernelProbe) -> int:
    """Play the profile run and the step; return the number of calls before the step's."""
    if not decode.subject.static:
        with suppress(NotRun):
            decode.profile_run()
    before = len(probe.watched.calls)
    with suppress(NotRun):
        decode.step()
    return before


def _with_candidates(call: GraphCall, lowered: Lowered | None) -> GraphCall:
    """Return the call, with what each candidate of its Triton kernels compiles to."""
    from deepstack_harness.compile.torch_compat.fake_gpu import compile_candidates

    by_name = {function.name: function for function in (lowered.functions if lowered else ())}

    @cache  # layers share their kernels
    def candidates(name: str, numels: tuple[tuple[str, int], ...]) -> tuple[Candidate, ...]:
        return tuple(compile_candidates(by_name[name], dict(numels)))

    def compiled(kernel: Kernel) -> Kernel:
        if kernel.function is None:
            return kernel
        return replace(kernel, candidates=candidates(kernel.function, tuple(kernel.numels.items())))

    return replace(call, kernels=tuple(map(compiled, call.kernels)))
