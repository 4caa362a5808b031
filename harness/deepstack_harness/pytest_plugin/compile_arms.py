"""`compile_arms`: a project's own module or function, run eagerly and under arms, its outputs compared."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TypedDict

import pytest
import torch
from torch import Tensor, nn
from typing_extensions import Unpack

from deepstack_harness.catalogue.plans import graph_budget
from deepstack_harness.contract.arm import ArmSpec
from deepstack_harness.contract.case import Case, Compare, PlannedCase, live_buffer
from deepstack_harness.contract.observation import NOT_FINITE, Distances, Observation
from deepstack_harness.contract.oracles.judge import ORACLES, JudgedCase, judge_case
from deepstack_harness.contract.oracles.outputs import (
    case_distances,
    diagnose,
    is_unsteady,
    state_places,
    tolerance,
)
from deepstack_harness.contract.oracles.trace_audit import numbered_steps
from deepstack_harness.contract.protocols import BufferFactory, Inputs
from deepstack_harness.contract.rules import Rule
from deepstack_harness.contract.tolerances import EFFECT, rounding_limit
from deepstack_harness.contract.trace import RUNS_DECODER, Op, Trace
from deepstack_harness.contract.verdicts import Verdict
from deepstack_harness.document.shown import shown
from deepstack_harness.errors import UsageError, text_of
from deepstack_harness.models.family import parse_device, parse_dtype
from deepstack_harness.models.layers import mrope_positions
from deepstack_harness.play.loading import check_fit
from deepstack_harness.play.model import Model, NumericsProbe
from deepstack_harness.play.observe import play
from deepstack_harness.play.region_calls import StepOptions, in_place
from deepstack_harness.play.state import DecoderState
from deepstack_harness.play.steps import measure_steps
from deepstack_harness.pytest_plugin.compared_calls import (
    LeafEffect,
    describe_inputs,
    draw_inputs,
    graphs_needed,
    leaf_effects,
    most_by_place,
    observation_of,
    run_uncompiled,
    steps_of,
    trace_of,
)
from deepstack_harness.pytest_plugin.fixtures import Fixture, name_of, rules_of


@dataclass
class OwnFamily:
    """A `deepstack_harness.contract.protocols.Family` whose one decoder exists already."""

    name: str
    hidden: int
    levels: int
    routed: bool = False
    positions: Callable[..., Tensor] = mrope_positions

    def build(self, *, dtype: torch.dtype, device: torch.device, seed: int) -> nn.Module:
        """Refuse to build: the user's module is there already."""
        raise NotImplementedError(self.name)


def draw_first_inputs(model: Model, trace: Trace) -> Inputs:
    """Return inputs of the first step that runs the decoder: (n, h), (3, n) and one (n, h) per level."""
    runs = (step.tokens for step in trace if step.op in RUNS_DECODER and step.tokens > 0)
    tokens, family = next(runs, 1), model.family
    drawn = torch.randn(
        family.levels + 1, tokens, family.hidden, generator=torch.Generator().manual_seed(0)
    ).to(dtype=model.dtype, device=model.device)
    return Inputs(drawn[0], family.positions(tokens, model.device), tuple(drawn[1:]))


class Options(TypedDict, total=False):
    """The options of both ways to call the fixture.

    arms: names of arms (default: `--deepstack-arms`).  rules: what fails the test, by
    default R0 and R11; none only observes.  graphs: the graphs that each arm may
    build, by default what a correct buffer needs.  dtype, device: where the module
    is.  routed: tokens go to experts.  thorough: also compare with no payload at all
    (None) and with float64, which a module may not know; else the tolerance is the dtype's.
    """

    arms: Sequence[str] | str | None
    rules: Sequence[str]
    graphs: int | None
    dtype: str
    device: str | None
    routed: bool
    thorough: bool


@dataclass(frozen=True)
class ArmRun(JudgedCase):
    """One trace under one arm: the facts, and the judgements of the rules that were named."""

    @property
    def arm(self) -> str:
        """The arm's name."""
        return self.case.arm.name

    @property
    def distances(self) -> list[Distances]:
        """Distances of every step that was compared: to eager, to the controls."""
        return [step.distances for step in self.observation.steps if step.distances is not None]

    @property
    def worst(self) -> float:
        """The distance to eager of the worst step; -1 where nothing was compared."""
        distances = case_distances(self.case, self.observation)
        return -1.0 if distances is None else distances.eager

    @property
    def state(self) -> tuple[str, ...]:
        """Places of the state that the decoder retains between calls, compared as its outputs are."""
        return state_places(self.observation)

    @property
    def graphs(self) -> int:
        """The number of graphs that were built; 0 where nothing is compiled."""
        return self.observation.graphs.graphs if self.observation.graphs else 0


class CompileArms(Fixture):
    """The fixture; see `__call__` and `calls`.

    >>> def test_compiled(compile_arms):
    ...     family = Qwen3VLFamily(Qwen3VLConfig(layers=2, levels=2))
    ...     decoder = family.build(dtype=torch.float32, device=torch.device("cpu"), seed=0)
    ...     sizes = {"hidden": family.hidden, "levels": family.levels}
    ...     compile_arms(decoder, ReferenceBuffer, ["cap 16: set 9; forward 16"], **sizes)
    """

    def __call__(
        self,
        decoder: nn.Module,
        buffer: BufferFactory,
        traces: Sequence[str | Trace],
        *,
        hidden: int,
        levels: int,
        positions: Callable[..., Tensor] = mrope_positions,
        **options: Unpack[Options],
    ) -> list[ArmRun]:
        """Play traces over a decoder (`protocols.Decoder`) whose payload comes from a buffer.

        `hidden` and `levels` are the payload's; `positions(tokens, device)` are (3, tokens) int64.
        Fails where a compiled run differs from the eager one or builds too many graphs, and where a rule was
        not put to the test.
        """
        __tracebackhide__ = True
        with self.one_sentence():
            if not traces:
                raise UsageError("compile_arms(traces=[]): there is nothing to play")
            check_fit(buffer, name_of(buffer))
            dtype, device = self._place(options)
            family = OwnFamily(
                type(decoder).__name__, hidden, levels, options.get("routed", False), positions
            )
            state = DecoderState(decoder)
            numerics = NumericsProbe(
                decoder, levels, hidden, thorough=options.get("thorough", True), state=state
            )
            model = Model(family, decoder, numerics, dtype, device, state)
            parsed = [Trace.parse(str(trace)) for trace in traces]
            first = draw_first_inputs(model, parsed[0])
            with state.preserved(), torch.no_grad():
                run_eagerly(decoder, device, name_of(type(decoder)), first)
                model = replace(model, payload_scale=_scale_that_matters(model, first, options))
            cases = [
                _case(
                    trace,
                    arm,
                    graph_budget(trace, arm),
                    options,
                    family=family.name,
                    subject=name_of(buffer),
                    device=device,
                )
                for arm in self._arms(options)
                for trace in parsed
            ]
            runs = [self._run(case, model, buffer, options) for case in cases]
        return _checked(runs, [*_complaints(runs, options), *_without_payload(runs)])

    def calls(
        self,
        function: Callable[..., Tensor],
        inputs: Callable[[int], Inputs],
        sizes: Sequence[int],
        **options: Unpack[Options],
    ) -> list[ArmRun]:
        """Call `function(hidden, positions, payload)` with `inputs(tokens)` for each of `sizes`, in order.

        `Inputs` has the shapes; the function returns (n, h).  `inputs` is called once for each size, and what
        it returns is what the function is called with, compiled and not: the payload may be None, an empty
        tuple, a dict, a number or any other structure, and another one for each size.

        Fails as a call of the fixture does, and where a tensor or a number of a payload never moves the
        output: whether the compiled function reads it is then not known.  Where every payload is None or
        empty nothing is compared but the outputs.
        """
        __tracebackhide__ = True
        with self.one_sentence():
            if not sizes:
                raise UsageError("compile_arms.calls(sizes=[]): there is nothing to call")
            _, device = self._place(options)
            arms, name = self._arms(options), name_of(function)
            given = draw_inputs(inputs, sizes)
            traces = [trace_of(given, arm) for arm in arms]
            for call, left in zip(given, run_uncompiled(function, given), strict=True):
                width = check_output(_called(name, call), left.answer, left.raised, call, device).size(-1)
            with torch.no_grad():
                compiled = StepOptions([arm.name for arm in arms if arm.compiled])
                region = measure_steps(in_place(function, steps_of(given)), compiled, name)
                effects = [leaf_effects(function, call) for call in given]
            runs = []
            for arm, trace in zip(arms, traces, strict=True):
                case = _case(
                    trace,
                    arm,
                    graphs_needed(given, arm),
                    options,
                    family=name,
                    subject="inputs",
                    device=device,
                )
                seen = replace(
                    observation_of(case, region, effects, width), routed=options.get("routed", False)
                )
                runs.append(self._judged(case, seen, options))
        return _checked(runs, [*_complaints(runs, options), *_without_effect(runs, effects)])

    def _place(self, options: Options) -> tuple[torch.dtype, torch.device]:
        dtype = parse_dtype(options.get("dtype", "float32"))
        return dtype, parse_device(self.device(options.get("device")))

    def _arms(self, options: Options) -> list[ArmSpec]:
        arms = [ArmSpec.parse(name) for name in self.arms(options.get("arms"))]
        if not arms:
            raise UsageError("compile_arms(arms=[]): there is nothing to compare")
        return arms

    def _run(self, case: Case, model: Model, make: BufferFactory, options: Options) -> ArmRun:
        assert model.state is not None
        with model.state.preserved():  # every run begins from the state in which the decoder was given
            return self._judged(case, play(case, model, make), options)

    def _judged(self, case: Case, observation: Observation, options: Options) -> ArmRun:
        judged = judge_case(PlannedCase(case, None), observation, _wanted(options))
        self.store(judged)
        return ArmRun(judged.planned, judged.observation, judged.judgements)


_SCALES = tuple(8.0**power for power in range(20))
"""Factors on a payload that are tried, up to 1e17. Where none suffices R0 is not judged."""
_MARGIN = 4
"""Payloads of later steps may have fewer rows than that of the first one, and move the output by less."""


def _scale_that_matters(model: Model, inputs: Inputs, options: Options) -> float:
    """Return the least power of 8 by which payloads are multiplied to move the output by what R0 needs.

    `inputs` are those of the first step. Where no scale suffices it is the one that moves the output most
    for the rounding that it brings; R0 then reports that this is too little to judge by.
    """
    dtype, best, most = options.get("dtype", "float32"), 1.0, 0.0
    for scale in _SCALES:
        parts = [replace(inputs, payload=tuple(scale * level for level in inputs.payload or ()))]
        apart = model.numerics.effects(parts, thorough=options.get("thorough", True))
        more_than_the_dtype_holds = NOT_FINITE in (apart.scale, apart.rounding, apart.effect)
        if more_than_the_dtype_holds or is_unsteady(dtype, apart):
            break
        moved = apart.effect / (EFFECT * rounding_limit(dtype, apart.rounding, apart.scale) or 1.0)
        if moved > _MARGIN:
            return scale
        if moved > most:
            best, most = scale, moved
    return best


def _case(
    trace: Trace,
    arm: ArmSpec,
    graphs: int,
    options: Options,
    *,
    family: str,
    subject: str,
    device: torch.device,
) -> Case:
    stated = options.get("graphs")
    return Case(
        family=family, buffer=live_buffer(subject), trace=trace, arm=arm,
        dtype=options.get("dtype", "float32"), device=str(device),
        compare=Compare.ALL if options.get("thorough", True) else Compare.EAGER,
        graph_budget=graphs if stated is None else stated,
    )  # fmt: skip


def _wanted(options: Options) -> list[Rule]:
    """Return the rules that fail the test; raises `UsageError` for an unknown one."""
    return rules_of(options.get("rules", ("R0", "R11")), [oracle.rule for oracle in ORACLES])


def run_eagerly(decoder: Callable[..., Tensor], device: torch.device, name: str, inputs: Inputs) -> Tensor:
    """Call the decoder once, uncompiled -> (n, h).

    Raises `UsageError`, with the shapes of the arguments: a wrong signature, hidden size or device is no
    verdict about the compiler.
    """
    out, raised = None, ""
    try:
        with torch.no_grad():
            out = decoder(inputs.hidden.clone(), inputs.positions.clone(), inputs.payload)
    except Exception as error:  # noqa: BLE001  # Ctrl-C and the ends of a test are no `Exception`
        raised = f"{type(error).__name__}: {(text_of(error).strip().splitlines() or [''])[0]}"
    return check_output(_called(name, inputs), out, raised, inputs, device)


def _called(name: str, inputs: Inputs) -> str:
    return f"{name} called as decoder({describe_inputs(inputs)})"


def check_output(call: str, out: object, raised: str, inputs: Inputs, device: torch.device) -> Tensor:
    """Return the output (n, h) of an uncompiled call; raises `UsageError` for anything else."""
    if raised:
        raise UsageError(f"{call}, not compiled, raised {raised}")
    if not isinstance(out, Tensor):
        raise UsageError(f"{call} returned {type(out).__name__}, not a tensor (tokens, hidden)")
    tokens = inputs.positions.size(-1)
    if out.dim() != 2 or out.size(0) != tokens:
        raise UsageError(f"{call} returned a tensor {tuple(out.shape)}, not ({tokens}, hidden)")
    if out.device.type != device.type:
        raise UsageError(
            f"{call} returned a tensor on {out.device}, but device is {device}: move the module there, "
            f"or pass device='{out.device}'"
        )
    return out


def _checked(runs: list[ArmRun], complaints: Sequence[str]) -> list[ArmRun]:
    """Return the runs; fail the test where there is something to complain of."""
    __tracebackhide__ = True
    if complaints:
        broken = any(run.broken for run in runs)
        verdict = "is not the same when compiled" if broken else "was not compared in all that was asked for"
        pytest.fail("\n".join([f"{runs[0].case.family} {verdict}", *complaints]), pytrace=False)
    return runs


def _complaints(runs: Sequence[ArmRun], options: Options) -> list[str]:
    """Return a line for each broken rule, and for each requested rule that was not put to the test."""
    lines = [line for run in runs for line in _complaints_of(run)]
    for rule in _wanted(options):
        judgements = [judgement for run in runs for judgement in run.judgements if judgement.rule is rule]
        # What R0 and R11 have to judge under a compiled arm was complained of above.
        judged_apart = any(_applies(rule, run.case.arm) for run in runs)
        if not judged_apart and all(judgement.verdict is Verdict.SKIP for judgement in judgements):
            lines.append(f"  not put to the test: {rule} {rule.word}: {judgements[0].detail}")
    return lines


def _without_payload(runs: Sequence[ArmRun]) -> Iterator[str]:
    """Iterate over a complaint for each arm that passes R0 and ran no step on a payload in any trace."""
    for arm in dict.fromkeys(run.arm for run in runs):
        of_arm = [run for run in runs if run.arm == arm]
        kept = all(Rule.OUTPUT in run.kept for run in of_arm)
        if kept and not any(apart.effect > 0 for run in of_arm for apart in run.distances):
            yield (
                f"  not put to the test: R0 output under {arm}: no step ran the decoder on a payload: let a "
                "trace set one before a forward"
            )


def _complaints_of(run: ArmRun) -> Iterator[str]:
    place = f"on '{run.case.trace}' under {run.arm}"
    for row in run.rows():
        applies = _applies(row.rule, run.case.arm)
        if row.verdict is Verdict.FAIL:
            yield f"  broken: {shown(row).sentence}"
            if row.rule is Rule.OUTPUT and (why := diagnose(run.case, run.observation)):
                yield f"    {why}"
        elif row.verdict is Verdict.ERROR or (row.verdict is Verdict.SKIP and applies):
            yield f"  not judged: {row.rule} {row.rule.word}, {place}: {row.detail}"
        elif row.rule is Rule.OUTPUT and applies:
            for step, why in _not_compared(run):
                yield f"  not judged: {row.rule} {row.rule.word}, {place}: {step} was not compared: {why}"


def _not_compared(run: ArmRun) -> Iterator[tuple[str, str]]:
    """Iterate over (step in words, reason) of the steps whose output R0 could not see."""
    for number, step, facts in numbered_steps(run.case, run.observation):
        if step.op in RUNS_DECODER - {Op.CAPTURE} and step.tokens > 0 and facts.distances is None:
            raised = facts.raised
            why = f"{raised.call} raised {raised.type}: {raised.message}" if raised else facts.unavailable
            yield f"step {number} '{step}'", why or "the uncompiled decoder gave no output"


def _applies(rule: Rule, arm: ArmSpec) -> bool:
    """Return whether a rule that was named has to be judged under this arm."""
    return arm.compiled if rule is Rule.GRAPHS else rule is Rule.OUTPUT and (arm.compiled or arm.captured)


def _without_effect(runs: Sequence[ArmRun], effects: Sequence[Sequence[LeafEffect]]) -> Iterator[str]:
    """Iterate over complaints about what no call reads: an arm that loses it would pass."""
    for run in runs:
        if Rule.OUTPUT not in run.kept:
            continue
        limit = max(tolerance(run.case, distances) for distances in run.distances)
        for leaf in most_by_place(effects):
            if leaf.effect <= limit:
                moved = f"moves the output by {leaf.effect:.2g} at most ({leaf.tokens} tokens)"
                yield (
                    f"  not put to the test: R0 output under {run.arm}: {leaf.place} {moved}, "
                    f"and {limit:.2g} would pass: leave it out of `inputs`, or give values that matter"
                )
