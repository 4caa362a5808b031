"""Run a region over a list of steps, uncompiled and under each arm, and measure where they differ.

`compile_steps` is the library call; `measure_steps` is what it and the command `steps` run. Every arm starts
from an equal state, which is put back into the region and its steps, or they are made anew by a function of
the user. Two uncompiled runs are compared first, which shows whether all of the state is put back.
"""

import inspect
import os
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor

from deepstack_harness.compile.compiled import GuardRecorder, compile_options
from deepstack_harness.compile.graphs import Recordings, graphs_on
from deepstack_harness.compile.torch_compat import dynamo, structures
from deepstack_harness.compile.watch_facts import FailedGuard, WatchedRegions
from deepstack_harness.compile.watched import watch_guards
from deepstack_harness.contract.arm import ArmSpec, Capture, GuardPolicy, ShapePolicy, arm_names
from deepstack_harness.contract.observation import NOT_FINITE
from deepstack_harness.contract.oracles.promises import JudgedSteps, judge_steps
from deepstack_harness.contract.steps import (
    STEP_ARMS,
    ChangedInput,
    Difference,
    SteppedArm,
    SteppedCall,
    SteppedRegion,
)
from deepstack_harness.errors import NotMeasured, UsageError
from deepstack_harness.play.call_differences import differences_in_place, differences_of, largest_distance
from deepstack_harness.play.region_calls import (
    Call,
    Left,
    Program,
    Step,
    StepOptions,
    arguments_of,
    as_call,
    call_user_function,
    check_steps,
    described,
    detached,
    error_text,
    in_place,
    live_part,
    refuse_unbound,
    restoring,
    run_call,
    side_inputs,
    values_left,
)
from deepstack_harness.play.region_state import Region, make_equal, values_in
from deepstack_harness.play.uncompiled_calls import UncompiledRun, WantedCall, find_instability

_POISON = 1e3
"""Size of the values that neutral rows are filled with."""


def compile_steps(  # noqa: PLR0913  # keywords of a public call
    region: Region,
    steps: Sequence[object],
    *,
    arms: Sequence[str] | str = STEP_ARMS,
    warm_up: int = 1,
    neutral: Callable[..., Sequence[Tensor]] | None = None,
    live: Callable[..., object] | None = None,
    split: Callable[..., Sequence[object]] | None = None,
    seed: int = 0,
) -> JudgedSteps:
    """Run `region` over `steps` uncompiled and under each arm, and judge the promises I1..I5.

        class Model(torch.nn.Module): ...
        result = compile_steps(Model(), [Call(x), Call(x, mask=m)])
        print(result); assert result.good

    region   a module, a function, a bound method, or any callable object
    steps    calls in order, each a `Call`, a tuple of positional arguments or a dict of keyword arguments;
             a function among them is called with the region, between two calls, to change it
    arms     one or several `BACKEND/GUARDS ..`, as `deepstack-harness list arms` has them; `eager/full`
             captures the calls of the warm-up, and replays them on the captured arguments, as a CUDA graph
             does
    warm_up  calls before serving: compilation and capture see these (default 1)
    neutral, live, split   see `StepOptions`: rows that must not matter (I3), the part of a result that is
             compared, and the parts of a call (I5)

    The region itself runs, and it and the steps are left as they were. Where something cannot be put back,
    such as a running generator, nothing is judged, and its place is named. Raises `UsageError` for a wrong
    call.

    >>> x = torch.ones(3)
    >>> result = compile_steps(lambda x, scale=1: x * scale, [Call(x), Call(x, scale=2)])
    >>> result.good
    False
    """
    options = StepOptions(arm_names(arms), warm_up, neutral, live, split, seed)
    checked = check_steps(steps, warm_up)
    name = str(getattr(region, "__qualname__", None) or type(region).__qualname__)
    return judge_steps(measure_steps(in_place(region, checked), options, name))


def measure_steps(program: Program, options: StepOptions, name: str) -> SteppedRegion:
    """Run the program uncompiled twice and then under each arm; return the facts.

    Raises `UsageError` for an arm that cannot run steps, and what `program` raises.
    """
    specs = [_checked_arm(arm) for arm in options.arms]
    version = str(torch.__version__)
    try:
        program, shared = restoring(program)
        with shared.preserved():
            with torch.compiler.set_stance("force_eager"):  # for what the region itself compiles
                wanted = list(UncompiledRun(program, options).run())
                if options.answering and any(call.left.raised for call in wanted):
                    return SteppedRegion(name, version)
                unequal = find_instability(program, options, wanted)
            if unequal:
                advanced = [f"`{place}` is a {type(it).__name__}" for place, it in shared.passed_over.items()]
                unequal += f": {', '.join(advanced)}, which is not put back" if advanced else ""
                return SteppedRegion(name, version, restless=unequal)
            parts: dict[int, object] = {}
            if options.neutral or options.split:
                specs.insert(0, ArmSpec())
            arms = [_Arm(program, options, spec, wanted, parts).run() for spec in specs]
    except NotMeasured as error:
        return SteppedRegion(name, version, restless=str(error))
    return SteppedRegion(name, version, tuple(arms))


def _checked_arm(name: str) -> ArmSpec:
    spec = ArmSpec.parse(name)
    uncaptured = spec.compiled and not spec.captured and not spec.interpreted
    replayed = not spec.compiled and spec.capture is Capture.FULL
    if spec.ranks > 1 or spec.reloaded or not (uncaptured or replayed):
        raise UsageError(
            f"arm '{name}' cannot run steps: take BACKEND/GUARDS, such as eager/drop_all or "
            f"inductor/drop_all, or "
            "eager/full for a captured graph"
        )
    return spec


class _Arm:
    """The steps under one arm, from an equal state."""

    def __init__(
        self, program: Program, options: StepOptions, spec: ArmSpec, wanted: Sequence[WantedCall],
        parts: dict[int, object],
    ) -> None:  # fmt: skip
        self._program, self._options, self._spec, self._wanted = program, options, spec, wanted
        self._parts = parts
        """By step, the joined results of the parts, uncompiled; the first arm runs them."""
        self._watched = WatchedRegions()
        self._answers: dict[int, object] = {}
        """By step, the part of the result under this arm that is compared."""
        self._stopped = ""

    def run(self) -> SteppedArm:
        """Run all steps, and again with other neutral rows and in parts, where these options are given."""
        name = self._spec.name
        try:
            calls = list(self._steps(self._measure_call))
            graphs = dynamo.graphs_built() if self._spec.compiled else 0
        except _NotCompiled as error:
            return SteppedArm(name, unjudged=str(error))
        finally:
            torch.compiler.reset()
        if self._options.neutral is not None:
            poisoned = list(self._steps(self._with_poison))
            calls = [
                replace(call, poisoned=other.poisoned, neutral=other.neutral)
                for call, other in zip(calls, poisoned, strict=False)
            ]
        if self._options.split is not None and not self._spec.captured:  # parts have sizes of their own
            parts = list(self._steps(self._in_parts))
            calls = [
                replace(
                    call,
                    split=part.split,
                    split_raised=part.raised,
                    differences=(*call.differences, *part.differences),
                )
                for call, part in zip(calls, parts, strict=False)
            ]
        torch.compiler.reset()
        if self._spec.compiled and graphs < 1:
            why = "no graph was built: nothing was compiled"
            if wrong := self._wanted[0].left.raised:
                why = f"{why}, because the uncompiled code ends with {wrong}"
            return SteppedArm(name, tuple(calls), graphs, why)
        return SteppedArm(name, tuple(calls), graphs, stopped=self._stopped)

    def _steps(self, measure: Callable[["_Runs", Call, WantedCall], SteppedCall]) -> Iterator[SteppedCall]:
        region, steps = self._program()
        if self._spec.compiled:
            dynamo.start_counting()
        expected = iter(self._wanted)
        with ExitStack() as opened:
            opened.enter_context(dynamo.refuse_silent_fallback())
            opened.enter_context(warnings.catch_warnings())  # Dynamo looks at .grad of each argument
            warnings.filterwarnings("ignore", "The .grad attribute of a Tensor that is not a leaf")
            if self._spec.shapes is ShapePolicy.BACKED_SIZE_OBLIVIOUS:
                opened.enter_context(dynamo.size_oblivious())
            if self._spec.compiled:
                self._watched = opened.enter_context(watch_guards())
            runs = _Runs(region, self._compiled(region, steps))
            for step in steps:
                if isinstance(step, Call):
                    yield measure(runs, step, next(expected))
                    if self._stopped:
                        return
                else:
                    call_user_function("a step", step, region)

    def _compiled(self, region: Region, steps: Sequence[Step]) -> Region:
        if not self._spec.compiled:
            return region
        if self._spec.shapes is not ShapePolicy.STATIC:
            calls = zip((step for step in steps if isinstance(step, Call)), self._wanted, strict=True)
            answered = [call for call, wanted in calls if not wanted.left.raised]
            _mark_sizes(region, answered, self._spec.shapes)
        called = region if isinstance(region, torch.nn.Module) else _as_function(region)
        try:
            compiled: Region = torch.compile(
                called,
                fullgraph=not self._spec.breaks,
                dynamic=False,
                backend=self._spec.backend.compiler,
                options=compile_options(self._spec, GuardRecorder(self._spec.guards)),
            )
        except Exception as error:  # noqa: BLE001  # such as a module of TorchScript
            raise _NotCompiled(error_text(error)) from None
        return _refusing(compiled) if self._spec.guards is GuardPolicy.SHAPE_ENV_ONLY else compiled

    def _measure_call(self, runs: "_Runs", call: Call, wanted: WantedCall) -> SteppedCall:
        """Run a call, and compare what it left with what the uncompiled code left."""
        options, warm_up = self._options, wanted.step <= self._options.warm_up
        seen = {key: guard.calls for key, guard in self._failed()}
        changed, run, replayed = list(wanted.changed), runs.run, False
        if self._spec.captured:
            run, replayed, moved = runs.captured(call, warm_up=warm_up)
            # An input at another address comes first, with the influence that was measured of it.
            influence = {change.key: change.influence for change in changed}
            moved = [replace(change, influence=influence.get(change.key)) for change in moved]
            keys = {change.key for change in moved}
            changed = [*moved, *(change for change in changed if change.key not in keys)]
        left = run_call(runs.region, call, options.seed + wanted.step, run)
        first = wanted.step == 1 or (self._spec.captured and warm_up)
        if left.raised and first and not wanted.left.raised and not replayed:
            why = left.raised
            if why.startswith("ConstraintViolationError"):
                static = replace(self._spec, shapes=ShapePolicy.STATIC).name
                why = f"{why}; a branch decides by this size: --arm {static} compiles each size for itself"
            raise _NotCompiled(why)
        guards = tuple(
            guard.dropped(guard.where.removeprefix(f"{Path.cwd()}{os.sep}"))
            for key, guard in self._failed()
            if guard.calls > seen.get(key, 0)
        )
        in_place = differences_in_place(wanted.left, left, wanted.limits)
        self._make_equal(runs.region, call, wanted, left)
        if left.raised or wanted.left.raised:
            return SteppedCall(
                wanted.step, warm_up, left.raised, left.refused, wanted.left.raised, changed=tuple(changed),
                guards=guards, effects=wanted.effects, replayed=replayed,
            )  # fmt: skip
        self._answers[wanted.step] = live_part(options, left.answer, call)
        differences = differences_of("answer", wanted.left.answer, left.answer, wanted.limits)
        differences += in_place
        changed = [
            replace(
                change,
                remains=min(
                    (
                        largest_distance(left.answer, other, {})
                        for other in wanted.without.get(change.key, ())
                    ),
                    default=None,
                ),
            )
            for change in changed
        ]
        return SteppedCall(
            wanted.step, warm_up, differences=tuple(differences), changed=tuple(changed), guards=guards,
            effects=wanted.effects, limit=max(wanted.limits.values(), default=0.0), replayed=replayed,
        )  # fmt: skip

    def _with_poison(self, runs: "_Runs", call: Call, wanted: WantedCall) -> SteppedCall:
        views = list(_call_option(self._options.neutral, runs.region, call))
        for view in views:
            if not isinstance(view, Tensor):
                raise UsageError(f"neutral rows are {described(view)}: give views of tensors")
        held = {
            name: value for name, value in side_inputs(runs.region, call).items() if isinstance(value, Tensor)
        }
        for view in views:
            if view.numel() and not any(_share_memory(value, view) for value in held.values()):
                raise UsageError(
                    f"neutral rows of step {wanted.step} are a copy ({described(view)}) that no call reads:"
                    " give views, such as x[n:]; a mask or a list of indices makes a copy"
                )
        generator = torch.Generator().manual_seed(self._options.seed + wanted.step)
        tensors = {
            name: value for name, value in held.items() if any(_share_memory(value, view) for view in views)
        }
        changed = [_fill(view, tensors.values(), generator) for view in views]
        run = runs.run
        if self._spec.captured:
            run, _, _ = runs.captured(call, warm_up=wanted.step <= self._options.warm_up)
        left = run_call(runs.region, call, self._options.seed + wanted.step, run)
        value = None
        if any(changed) and not left.raised and wanted.step in self._answers:
            value = largest_distance(
                self._answers[wanted.step], live_part(self._options, left.answer, call), wanted.limits
            )
        self._make_equal(runs.region, call, wanted, left)
        warm_up = wanted.step <= self._options.warm_up
        return SteppedCall(wanted.step, warm_up, poisoned=value, neutral=tuple(tensors))

    def _in_parts(self, runs: "_Runs", call: Call, wanted: WantedCall) -> SteppedCall:
        split = _call_option(self._options.split, runs.region, call)
        try:
            parts = [as_call(part) for part in split]
        except UsageError as error:
            raise UsageError(f"a part of step {wanted.step} is {error}") from None
        value, raised, differences = None, "", []
        if self._spec.compiled and self._spec.shapes is not ShapePolicy.STATIC:
            _mark_sizes(runs.region, [call, *parts], self._spec.shapes)
        if _is_split(call, parts) and wanted.step in self._answers:
            answers = [
                run_call(runs.region, part, self._options.seed + wanted.step, runs.run) for part in parts
            ]
            for part, left in zip(parts, answers, strict=True):
                if left.raised.startswith(TypeError.__name__) and not self._spec.compiled:
                    refuse_unbound(f"a part of step {wanted.step}", runs.region, part)
            raised = next((left.raised for left in answers if left.raised), "")
            if any(left.refused for left in answers):
                raised = ""  # a compiler that refuses is not wrong
            elif raised and wanted.step in self._parts:
                differences = [Difference("answer of its parts", f"none: it ends with {raised}")]
                raised = ""
            elif raised:
                value = NOT_FINITE
            else:
                joined = _joined([left.answer for left in answers])
                expected = self._parts.setdefault(wanted.step, joined)
                differences = differences_of("answer of its parts", expected, joined, wanted.limits)
                if not differences:
                    value = largest_distance(
                        self._answers[wanted.step], live_part(self._options, joined, call), wanted.limits
                    )
        self._make_equal(runs.region, call, wanted, Left(None, "", values_left(runs.region, call, None)))
        warm_up = wanted.step <= self._options.warm_up
        return SteppedCall(wanted.step, warm_up, raised, split=value, differences=tuple(differences))

    def _make_equal(self, region: Region, call: Call, wanted: WantedCall, left: Left) -> None:
        """Give the region and the arguments what the uncompiled code left: the next call begins from there.

        Without it a step would be blamed for what an earlier one did.
        """
        places = [difference.place for difference in differences_in_place(wanted.left, left, {})]
        try:
            make_equal(region, arguments_of(region, call), wanted.left.values, left.values, places)
        except Exception as error:  # noqa: BLE001  # an attribute that a class of the user refuses
            self._stopped = (
                f"what step {wanted.step} left cannot be made equal ({type(error).__name__}: {error}): "
                "later steps were not run"
            )

    def _failed(self) -> Iterator[tuple[tuple[int, tuple[str, str]], FailedGuard]]:
        for number, region in enumerate(self._watched.regions):
            for key, guard in region.failed.items():
                yield (number, key), guard


class _NotCompiled(Exception):
    """The first call of the warm-up could not be compiled, or not captured."""


def _as_function(region: Region) -> Region:
    """Return what torch.compile takes: a function, or the method `__call__` of an object.

    A `functools.partial` has no method of Python's own, and guards on the arguments of a wrapper name none
    of them.
    """
    if inspect.isroutine(region):
        return region
    method = region.__call__  # type: ignore[operator]
    return method if inspect.ismethod(method) else lambda *args, **kwargs: region(*args, **kwargs)  # noqa: PLW0108  # has code


def _refusing(compiled: Region) -> Region:
    """Return a function that refuses to recompile after its first run, as vLLM's `evaluate_guards` does."""
    warm = False

    def run(*args: object, **kwargs: object) -> object:
        nonlocal warm
        with torch.compiler.set_stance("fail_on_recompile") if warm else nullcontext():
            answer = compiled(*args, **kwargs)
        warm = True
        return answer

    return run


def _share_memory(one: Tensor, other: Tensor) -> bool:
    strided = one.layout is torch.strided is other.layout
    return strided and one.untyped_storage().data_ptr() == other.untyped_storage().data_ptr() != 0


@torch.no_grad()
def _fill(view: Tensor, tensors: Iterable[Tensor], generator: torch.Generator) -> bool:
    """Write other values over neutral rows; return whether one changed.

    Integers get other values of the same tensor, so that an index stays a valid one.
    """
    if not view.numel():
        return False
    if view.is_floating_point() or view.is_complex():
        drawn = torch.promote_types(view.dtype, torch.float32)
        view.copy_(torch.randn(view.shape, generator=generator, dtype=drawn) * _POISON)
        return True
    if view.dtype is torch.bool:
        view.logical_not_()
        return True
    values = torch.unique(next((tensor for tensor in tensors if _share_memory(tensor, view)), view))
    by = torch.randint(1, max(len(values), 2), view.shape, generator=generator).to(view.device)
    view.copy_(values[(torch.searchsorted(values, view.contiguous()) + by) % len(values)])
    return len(values) > 1


def _call_option(function: Callable[..., Any] | None, region: Region, call: Call) -> Any:  # noqa: ANN401  # the user's
    """Call a function of `StepOptions` with the arguments of a call, and with the region if it takes one."""
    assert function is not None
    parameters, args, kwargs = list(inspect.signature(function).parameters), list(call.args), call.kwargs
    if "region" in parameters and "region" not in kwargs:
        at = parameters.index("region")
        if at < len(args):
            args.insert(at, region)
        else:
            kwargs = {**kwargs, "region": region}
    return call_user_function(f"'{getattr(function, '__qualname__', function)}'", function, *args, **kwargs)


def _is_split(call: Call, parts: Sequence[Call]) -> bool:
    """Return whether parts differ from the call: several, or one with other arguments."""
    if len(parts) != 1:
        return bool(parts)
    own, other = (structures.leaves((made.args, made.kwargs)) for made in (call, parts[0]))
    return len(own) != len(other) or any(a is not b for (_, a), (_, b) in zip(own, other, strict=True))


def _joined(answers: Sequence[object]) -> object:
    first = answers[0]
    parts = [[leaf for _, leaf in structures.leaves(answer)] for answer in answers]
    merged = iter(
        torch.cat(cast(list[Tensor], leaves)) if isinstance(leaves[0], Tensor) else leaves[0]
        for leaves in map(list, zip(*parts, strict=True))
    )
    return structures.map_leaves(lambda _: next(merged), first)


def _mark_sizes(region: Region, calls: Sequence[Call], policy: ShapePolicy) -> None:
    """Mark dimensions of arguments whose sizes differ between the calls, as engines mark those of tokens.

    An argument that only calls of one size have differs nowhere: of its dimensions the first is marked that
    is as large as one that differs, in each call that has it.
    """
    by_call = [
        {
            name: value
            for argument, held in arguments_of(region, call).items()
            for name, value in values_in(argument, held).items()
            if isinstance(value, Tensor)
        }
        for call in calls
    ]
    sizes: dict[tuple[str, int, int], dict[int, int]] = {}
    """By input, number of dimensions and dimension, the size in each call."""
    for number, tensors in enumerate(by_call):
        for name, tensor in tensors.items():
            for dim, size in enumerate(tensor.shape):
                sizes.setdefault((name, tensor.dim(), dim), {})[number] = size
    varying = [found.items() for found in sizes.values() if len({*found.values()}) > 1]
    mark = dynamo.mark_unbacked if policy is ShapePolicy.MARK_UNBACKED else dynamo.mark_dynamic
    oblivious = policy is ShapePolicy.BACKED_SIZE_OBLIVIOUS  # 1 too is compiled as a symbol
    for tensors in by_call:
        for name, tensor in tensors.items():
            found = [sizes[name, tensor.dim(), dim].items() for dim in range(tensor.dim())]
            dims = [dim for dim, items in enumerate(found) if items in varying]
            follows = [dim for dim, items in enumerate(found) if any(items <= other for other in varying)]
            for dim in dims or follows[:1]:
                if tensor.shape[dim] > 1 or oblivious:
                    mark(tensor, dim)


class _Runs:
    """What runs in place of the region: the compiled one, or graphs that were captured by sizes."""

    def __init__(self, region: Region, run: Region) -> None:
        self.region, self.run = region, run
        self._graphs: Recordings[tuple[int, ...]] | None = None
        self._addresses: dict[tuple[int, ...], dict[str, int]] = {}
        """Of the tensors of each captured call, by name."""

    def captured(self, call: Call, *, warm_up: bool) -> tuple[Region, bool, list[ChangedInput]]:
        """Return what runs this call: a capture in the warm-up, then a replay where the sizes are known.

        A replay takes no arguments: it uses those that were captured. The second value is True for a replay,
        the third has the tensors whose address is no longer the captured one.
        """
        held = side_inputs(self.region, call)
        tensors = {name: value for name, value in held.items() if isinstance(value, Tensor)}
        arguments = (leaf for _, leaf in structures.leaves((call.args, call.kwargs)))
        sizes = next((tuple(leaf.shape) for leaf in arguments if isinstance(leaf, Tensor)), ())
        addresses = {name: value.data_ptr() for name, value in tensors.items()}
        if self._graphs is None:
            device = next((value.device for value in tensors.values()), torch.device("cpu"))
            self._graphs = Recordings(graphs_on(device))
        graphs = self._graphs
        if sizes in graphs:
            moved = [
                ChangedInput(name, "address", "captured", "another address")
                for name, address in addresses.items()
                if self._addresses[sizes].get(name, address) != address
            ]
            return torch.no_grad()(lambda *_args, **_kwargs: detached(graphs[sizes].replay())), True, moved
        if not warm_up:
            return self.region, False, []
        self._addresses[sizes] = addresses

        @torch.no_grad()
        def capture(*args: object, **kwargs: object) -> object:
            return graphs.record(sizes, lambda: self.region(*args, **kwargs))

        return capture, False, []
