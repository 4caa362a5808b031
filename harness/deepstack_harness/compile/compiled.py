"""Run a decoder eagerly, or under torch.compile as an engine does: one graph, token dimension dynamic.

The engine compiles with `fullgraph=True, dynamic=False`, marks dimension 0 of every tensor argument (the last
of `positions`) dynamic, drops the guards, and reuses the graph for ever (vLLM's compilation wrapper; public
torch API `guard_filter_fn`, `torch.compiler.skip_all_guards_unsafe`). Which guards stay is the arm's policy.
"""

import inspect
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import ExitStack, nullcontext
from typing import Any

import torch
from torch import Tensor
from typing_extensions import override

from deepstack_harness.compile.eager import EagerSession
from deepstack_harness.compile.reloaded import ReloadedDecoder
from deepstack_harness.compile.torch_compat import dynamo
from deepstack_harness.compile.torch_compat.guards import missing_names
from deepstack_harness.compile.torch_compat.structures import tensors_in
from deepstack_harness.compile.watch_facts import WatchedRegions
from deepstack_harness.compile.watched import watch_guards
from deepstack_harness.contract.arm import (
    ArmSpec,
    Capture,
    GuardPolicy,
    InductorOption,
    ShapePolicy,
)
from deepstack_harness.contract.observation import CompiledCode, DroppedGuard, DroppedKind
from deepstack_harness.contract.protocols import Decoder, Inputs, Lane, Profile
from deepstack_harness.errors import NotMeasured, StepUnavailable

_MARKS = {
    ShapePolicy.MARK_DYNAMIC: dynamo.mark_dynamic,
    ShapePolicy.MARK_UNBACKED: dynamo.mark_unbacked,
    ShapePolicy.BACKED_SIZE_OBLIVIOUS: dynamo.mark_dynamic,
}
_OPTIONS = {
    InductorOption.NO_SIZE_ASSERTS: {"size_asserts": False},
    InductorOption.EMULATE_CASTS: {"emulate_precision_casts": True},
}


class GuardRecorder:
    """The guard filter of one session: applies a policy, and counts what it did."""

    def __init__(self, policy: GuardPolicy) -> None:
        """Start with nothing seen."""
        self._policy = policy
        self.calls = self.seen = self.kept = 0
        self.dropped: Counter[str] = Counter()
        """Guards that were dropped, by torch's name of their type."""

    def __call__(self, guards: Sequence[Any]) -> list[bool]:
        """Decide for each guard entry (`guard_filter_fn` of torch.compile) whether it stays."""
        match self._policy:
            case GuardPolicy.DROP_ALL:
                keep = list(torch.compiler.skip_all_guards_unsafe(guards))  # type: ignore[no-untyped-call]
            case GuardPolicy.KEEP_TENSOR:
                keep = list(torch.compiler.keep_tensor_guards_unsafe(guards))  # type: ignore[no-untyped-call]
            case GuardPolicy.SHAPE_ENV_ONLY:
                keep = [guard.guard_type == "SHAPE_ENV" for guard in guards]
            case _:
                keep = [True] * len(guards)
        self.calls += 1
        self.seen += len(keep)
        self.kept += sum(keep)
        self.dropped.update(guard.guard_type for guard, kept in zip(guards, keep, strict=True) if not kept)
        return keep


def compile_options(spec: ArmSpec, guards: GuardRecorder) -> dict[str, str | int | bool | Callable[..., Any]]:
    """Return the `options` that torch.compile has under an arm; a dict for one call, which empties it."""
    options: dict[str, str | int | bool | Callable[..., Any]] = {"guard_filter_fn": guards}
    if spec.by_inductor:  # else its dropout draws other numbers than eager's
        options["fallback_random"] = True
    options |= {key: value for option in spec.options for key, value in _OPTIONS[option].items()}
    if spec.capture is Capture.REDUCE_OVERHEAD:
        options["triton.cudagraphs"] = True  # what mode="reduce-overhead" sets; a mode takes no options
    return options


class CompiledSession(EagerSession):
    """One decoder under torch.compile. Sessions share Dynamo: keep one open at a time."""

    def __init__(self, spec: ArmSpec, decoder: Decoder, profile: Profile) -> None:
        """Reset Dynamo and wrap the decoder; the first forward compiles."""
        super().__init__(spec, decoder, profile)
        dynamo.start_counting()
        self.guards = GuardRecorder(spec.guards)
        self.first: Inputs | None = None
        self._reloaded: ReloadedDecoder | None = None
        self.calls = 0
        self._compile_seconds = 0.0
        self._cleanup, self._reloading = ExitStack(), ExitStack()
        self._texts: list[str] | None = None
        if spec.by_inductor:  # a worker that compiles with another backend never imports Inductor
            from deepstack_harness.compile.torch_compat import inductor

            self._texts = self._cleanup.enter_context(inductor.generated_code())
        self._watched = WatchedRegions()
        if not missing_names():
            # Outputs are compared with eager ones anyway: no effect is measured here.
            self._watched = self._cleanup.enter_context(watch_guards(measure=False))
        # After too many recompiles Dynamo by default runs eager, and eager equals eager.
        self._cleanup.enter_context(dynamo.refuse_silent_fallback())
        if spec.shapes is ShapePolicy.BACKED_SIZE_OBLIVIOUS:
            self._cleanup.enter_context(dynamo.size_oblivious())
        self._code = decoder.forward.__code__  # type: ignore[attr-defined]
        self._compiled = torch.compile(
            decoder.forward,  # type: ignore[attr-defined]
            fullgraph=not spec.breaks,
            dynamic=False,
            backend=spec.backend.compiler,
            options=compile_options(spec, self.guards),
        )

    def forward(self, inputs: Inputs) -> Tensor:
        """Run the compiled decoder; return (n, h)."""
        self._mark(inputs)
        self.first = self.first or inputs
        if self._reloaded is not None:
            return self._reloaded(inputs.hidden, inputs.positions, inputs.payload)
        graphs, began = dynamo.graphs_built(), time.process_time()
        # As in vLLM's mode `evaluate_guards`; only once warm, as the stance raises on the first compile too.
        refuses = self._spec.guards is GuardPolicy.SHAPE_ENV_ONLY and self.calls > 0
        try:
            with torch.compiler.set_stance("fail_on_recompile") if refuses else nullcontext():
                out = self._compiled(inputs.hidden, inputs.positions, inputs.payload)
        except Exception as error:
            self.limit_hit |= dynamo.is_recompile_limit(error)
            if refuses and dynamo.is_refusal(error):  # torch's refusal names no guard
                bound = inspect.signature(self._decoder.forward).bind(  # type: ignore[attr-defined]
                    inputs.hidden, inputs.positions, inputs.payload
                )
                failed = dynamo.failing_guards(self._code, {"self": self._decoder, **bound.arguments})
                guards = " and ".join(failed) or "not known"
                raise RuntimeError(f"guard evaluated and failed: {guards}; {error}") from error
            raise
        if dynamo.graphs_built() > graphs:
            self._compile_seconds += time.process_time() - began
        self.calls += 1
        return out  # type: ignore[no-any-return]

    @property
    def guards_checked(self) -> int:
        """Guards torch evaluates when the decoder is called, as torch stores them."""
        return dynamo.checked_guards(self._code)

    @property
    def code(self) -> CompiledCode:
        """What was compiled since the session was opened, and what that took."""
        dropped = tuple(DroppedKind(kind, number) for kind, number in sorted(self.guards.dropped.items()))
        if self._texts is None:
            return CompiledCode(dropped, seconds=self._compile_seconds)
        from deepstack_harness.compile.torch_compat import inductor

        kernels = tuple(name for text in self._texts for name in inductor.kernels_in(text))
        seconds = None if inductor.cache_hits() else self._compile_seconds
        return CompiledCode(dropped, kernels, sum(len(text.encode()) for text in self._texts), seconds)

    def failed_guards(self) -> tuple[DroppedGuard, ...]:
        """Return the dropped guards that decide, and would have refused a call since `forget_failures`."""
        return tuple(
            guard.dropped(guard.where.rpartition("/")[2])
            for region in self._watched.regions
            if not region.captured
            for guard in region.decisive
        )

    def forget_failures(self) -> None:
        """Count calls and failed guards from zero, for another case on the same graphs."""
        for region in self._watched.regions:
            region.start_again()

    def reload(self) -> None:
        """Save the graph of the first forward, and go on in a fresh process that loaded it.

        Raises `StepUnavailable` before the first forward, and what `ReloadedDecoder` raises.
        """
        if self.first is None:
            raise StepUnavailable(f"arm {self._spec.name} has compiled nothing yet that it could reload")
        self._reloading.close()
        self._reloaded = ReloadedDecoder(
            self._decoder,
            self.first,
            backend=self._spec.backend.compiler,
            options=compile_options(self._spec, GuardRecorder(self._spec.guards)),
        )
        self._reloading.callback(self._reloaded.close)

    def _mark(self, inputs: Inputs) -> None:
        mark = _MARKS.get(self._spec.shapes)
        if mark is None:
            return
        mark(inputs.positions, 1)
        for rows in tensors_in((inputs.hidden, inputs.payload)):  # a caller may leave the hidden states out
            if rows.dim():
                mark(rows, 0)

    def close(self) -> None:
        """Drop the graphs and restore the settings."""
        self._reloading.close()
        self._cleanup.close()
        torch.compiler.reset()


class ReduceOverheadSession(CompiledSession):
    """A compiled session whose runs are replays from the third one of a size on."""

    @override
    def forward(self, inputs: Inputs) -> Tensor:
        """Return a copy of the output (n, hidden): torch writes over its own at the next run.

        Raises `NotMeasured` where torch gave up on CUDA graphs, which it does without an error.
        """
        torch.compiler.cudagraph_mark_step_begin()  # type: ignore[no-untyped-call]
        out = super().forward(inputs).clone()
        if dynamo.graphs_skipped():
            raise NotMeasured(f"arm {self._spec.name}: torch ran it without a CUDA graph")
        return out

    @override
    def capture(self, inputs: Inputs, lane: Lane) -> None:
        raise StepUnavailable(f"arm {self._spec.name}: torch captures by itself, in forward")

    @override
    def replay(self, inputs: Inputs, lane: Lane) -> Tensor:
        raise StepUnavailable(f"arm {self._spec.name}: torch replays by itself, in forward")
