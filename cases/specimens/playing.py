"""One runner for specimens: each under each detector that applies, and all of them find the same.

`findings` plays a specimen in this process under `steps`, under a watch of dropped guards, and under a watch
of captured graphs, and returns one word for each: "found", "right", or what is wrong.
"""

from collections.abc import Callable, Iterator
from contextlib import nullcontext
from typing import Any, cast
from unittest import mock

import torch
from torch import Tensor, nn

from cases.selftest.compile.recorded_graphs import RecordedGraph, Wrapper, recorded
from cases.specimens.kit import Specimen
from deepstack_harness import Call, watch_guards
from deepstack_harness.compile.torch_compat import structures
from deepstack_harness.compile.watch_captured import around, watch_captured
from deepstack_harness.compile.watch_facts import FailedGuard, WatchedRegions
from deepstack_harness.contract.arm import ShapePolicy
from deepstack_harness.contract.oracles.promises import judge_steps
from deepstack_harness.play.region_calls import Program, StepOptions, restoring, run_call
from deepstack_harness.play.steps import _as_function, _mark_sizes, measure_steps
from deepstack_harness.play.steps_work import fresh_program

STOCK = "eager/stock"
_LATE = 12
"""Times that a watched program makes its first call: a watch that samples the calls sees no later ones."""
UNSEEN = {
    **dict.fromkeys(("writes_unsaid", "used_up_twice"), "no guard is about what an operation writes unsaid"),
    "count_that_compiling_skips": "no guard is about whether the code is compiled",
    "hook_that_changes_the_answer": "torch makes no guard on hooks (`skip_nnmodule_hook_guards`)",
}
"""Faults that a watch does not see, by specimen; one that it does see after all is an error."""
OBJECT_OF = {"plan_shared_with_the_warm_up": "self.plan"}
"""Objects that a watch names where `steps` names the numbers in them."""


def findings(specimen: Specimen) -> Iterator[tuple[str, str]]:
    """Yield each detector, and "found", "right", "unseen: .." with the reason, or what it got wrong."""
    yield "steps", _by_steps(specimen)
    for arm in specimen.arms:
        if not set(specimen.breaks.split()) <= {"I1", "I2", "I4"}:
            continue  # rows and parts: no watch knows which ones matter
        if arm in {"eager/drop_all", "aot_eager/drop_all"}:
            yield f"watch {arm}", _verdict(specimen, arm, watch(specimen, arm.partition("/")[0]).decisive)
        elif arm == "eager/full":
            yield f"watch {arm}", _verdict(specimen, arm, watch_replays(specimen).decisive)


def _by_steps(specimen: Specimen) -> str:
    options_given = specimen.program()[2:]
    arms = [*([STOCK] if specimen.kept_by_guards else []), *specimen.arms]
    options = StepOptions(arms, specimen.warm_up, **(options_given[0] if options_given else {}))
    judged = judge_steps(
        measure_steps(fresh_program(specimen.program, specimen.warm_up), options, specimen.name)
    )
    if judged.unjudged or not any(finding.chances for finding in judged.rows):
        return f"not judged: {judged}"
    broken = {(finding.arm, str(finding.promise)) for finding in judged.broken}
    wanted = {(arm, promise) for arm in specimen.arms for promise in specimen.breaks.split()}
    wanted |= {("eager", promise) for _, promise in wanted if promise in {"I3", "I5"}}
    if broken != wanted:
        return f"wrong: {sorted(broken ^ wanted)}: {judged}"
    text = str(judged)
    if any(word not in text for word in specimen.words) or (specimen.never and specimen.never in text):
        return f"other words: {text}"
    named = any(specimen.names in finding.detail for finding in judged.broken)
    return "right" if not wanted else "found" if named else f"`{specimen.names}` is not named: {judged}"


def _verdict(specimen: Specimen, arm: str, decisive: list[FailedGuard]) -> str:
    names = [guard.name for guard in decisive]
    if not specimen.breaks:
        return f"false alarm: {names}" if names else "right"
    if specimen.name in UNSEEN:
        return f"unseen: {UNSEEN[specimen.name]}" if not names else f"seen after all: {names}"
    named = OBJECT_OF.get(specimen.name, specimen.names)
    facts = {guard.rule.split()[1] for guard in decisive if named in guard.name or guard.name in named}
    if specimen.fact and arm == "eager/full":
        return "found" if specimen.fact in facts else f"no {specimen.fact} of `{specimen.names}`: {names}"
    return "found" if facts else f"missed: {names}"


def watch(specimen: Specimen, backend: str) -> WatchedRegions:
    """Run a specimen as a program does that compiles it and drops its guards."""
    torch.compiler.reset()
    program, shared = restoring(fresh_program(specimen.program, specimen.warm_up))
    with shared.preserved(), watch_guards() as watched:
        run_without_guards(program, backend, late=_LATE)
    return watched


def run_without_guards(program: Program, backend: str = "eager", late: int = 1) -> None:
    """Compile a region, drop its guards, and make its calls; one that fails fails by itself."""
    region, steps = program()
    _mark_sizes(region, [step for step in steps if isinstance(step, Call)], ShapePolicy.NONE)
    run: Any = torch.compile(
        region if isinstance(region, nn.Module) else _as_function(region),
        backend=backend, fullgraph=True, dynamic=False,
        options={"guard_filter_fn": torch.compiler.skip_all_guards_unsafe},
    )  # fmt: skip
    for number, step in enumerate(steps):
        if isinstance(step, Call):
            for _ in range(late):
                run_call(region, step, number, run)
            late = 1
        else:
            step(region)


def watch_replays(specimen: Specimen, device: str = "cpu") -> WatchedRegions:
    """Run a specimen as a program that runs and captures its warm-up by sizes, and replays it."""
    program, shared = restoring(fresh_program(specimen.program, specimen.warm_up))
    recording = mock.patch.multiple(torch.cuda, CUDAGraph=RecordedGraph, graph=recorded)
    graphs = recording if device == "cpu" else nullcontext()
    watched = WatchedRegions()
    with shared.preserved(), graphs, watch_captured(watched), torch.no_grad():
        region: Any
        region, steps = program()
        wrapper, calls = Wrapper(cast("Callable[..., Tensor]", region)), 0
        for number, step in enumerate(steps):
            if not isinstance(step, Call):
                step(region)
                continue
            calls += 1
            leaves = structures.leaves((step.args, step.kwargs))
            size: object = next((leaf.shape for _, leaf in leaves if isinstance(leaf, Tensor)), ())
            if calls > specimen.warm_up and size not in wrapper.entries:
                size = None
            marked = around(lambda *args, size=size, **kwargs: wrapper(size, *args, **kwargs), code=region)
            if size is not None and size not in wrapper.entries:
                run_call(region, step, number, around(region))
            run_call(region, step, number, marked)
    return watched
