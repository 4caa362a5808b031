"""`compile_arms`: a project's own module, run eagerly and under arms, its outputs compared."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypedDict

import pytest
import torch
from torch import Tensor, nn
from typing_extensions import Unpack

from deepstack_harness.callers.engine import Engine
from deepstack_harness.catalogue.matrix import graph_budget
from deepstack_harness.contract.arm_spec import ArmSpec
from deepstack_harness.contract.buffer_ref import live_buffer
from deepstack_harness.contract.case import Case, Compare, PlannedCase
from deepstack_harness.contract.observation import Distances
from deepstack_harness.contract.protocols import BufferFactory, Inputs
from deepstack_harness.contract.rules import Rule
from deepstack_harness.contract.trace import Op, Step, Trace
from deepstack_harness.contract.verdicts import Verdict
from deepstack_harness.devices import parse_device, parse_dtype
from deepstack_harness.errors import UsageError
from deepstack_harness.families.positions import mrope_positions
from deepstack_harness.oracles.all_rules import ORACLES
from deepstack_harness.oracles.distances import case_distances
from deepstack_harness.oracles.judged_case import JudgedCase, judge_case
from deepstack_harness.play.model import Model
from deepstack_harness.play.observe import play
from deepstack_harness.play.user_buffer import check_fit
from deepstack_harness.probes.numerics import NumericsProbe
from deepstack_harness.pytest_plugin.fixture_base import Fixture, name_of, rules_of, told
from deepstack_harness.pytest_plugin.user_model import (
    Given,
    GivenBuffers,
    OwnFamily,
    as_module,
    described,
    drawn_inputs,
)


class Options(TypedDict, total=False):
    """The options of both ways to call the fixture.

    arms: names of arms (default: `--deepstack-arms`).  rules: what fails the test, by
    default R0 and R11; none only observes.  graphs: the graphs that each arm may
    build, by default what a correct buffer needs.  dtype, device: where the module
    is.  routed: tokens go to experts.  thorough: also compare with no payload at all
    (None) and with float64, which a module may not know; else the tolerance is the dtype's.
    """

    arms: Sequence[str] | None
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
        found = case_distances(self.case, self.observation)
        return -1.0 if found is None else found.eager

    @property
    def graphs(self) -> int:
        """The number of graphs that were built; 0 where nothing is compiled."""
        return self.observation.graphs.graphs if self.observation.graphs else 0


class CompileArms(Fixture):
    """The fixture; see `__call__` and `calls`."""

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
        Fails where a compiled run differs from the eager one, or builds too many graphs.
        """
        __tracebackhide__ = True
        with self.one_sentence():
            if not traces:
                raise UsageError("compile_arms(traces=[]): there is nothing to play")
            check_fit(buffer, name_of(buffer))
            family = OwnFamily(
                type(decoder).__name__, hidden, levels, options.get("routed", False), positions
            )
            model = self._model(family, decoder, options)
            played = [Trace.parse(str(one)) for one in traces]
            _try_eagerly(model, name_of(type(decoder)), drawn_inputs(model, played[0]))
            cases = self._cases(model, name_of(buffer), lambda _: played, options)
            runs = [self._run(case, model, buffer, Engine(), options) for case in cases]
        return _judged(runs)

    def calls(
        self,
        function: Callable[..., Tensor],
        inputs: Callable[[int], Inputs],
        sizes: Sequence[int],
        **options: Unpack[Options],
    ) -> list[ArmRun]:
        """Call `function(hidden, positions, payload)` with `inputs(tokens)` for each of `sizes`, in order.

        `Inputs` has the shapes; the function returns (n, h).  The payload may be None: then nothing is
        compared but the outputs.
        """
        __tracebackhide__ = True
        with self.one_sentence():
            if not sizes:
                raise UsageError("compile_arms.calls(sizes=[]): there is nothing to call")
            payload = inputs(max(sizes)).payload or ()
            family = OwnFamily(
                name_of(function),
                inputs(max(sizes)).hidden.size(-1),
                len(payload),
                options.get("routed", False),
            )
            options = {"thorough": False, **options}
            device = parse_device(self.device(options.get("device")))
            model = self._model(family, as_module(function, len(payload), device), options)
            _try_eagerly(model, name_of(function), inputs(sizes[0]))
            cases = self._cases(model, "inputs", lambda arm: [_trace_of(sizes, arm)], options)
            make, caller = GivenBuffers(inputs), Given(inputs)
            runs = [self._run(case, model, make, caller, options) for case in cases]
        return _judged(runs)

    def _model(self, family: OwnFamily, decoder: nn.Module, options: Options) -> Model:
        dtype, device = (
            parse_dtype(options.get("dtype", "float32")),
            parse_device(self.device(options.get("device"))),
        )
        numerics = NumericsProbe(
            decoder, family.levels, family.hidden, thorough=options.get("thorough", True)
        )
        return Model(family, decoder, numerics, dtype, device)

    def _cases(
        self, model: Model, subject: str, traces: Callable[[ArmSpec], Sequence[Trace]], options: Options
    ) -> list[Case]:
        compare = Compare.ALL if options.get("thorough", True) else Compare.EAGER
        arms = map(ArmSpec.parse, self.arms(options.get("arms")))
        return [
            Case(
                family=model.family.name, buffer=live_buffer(subject), trace=trace, arm=arm,
                dtype=options.get("dtype", "float32"), device=str(model.device), compare=compare,
                graph_budget=options.get("graphs") or graph_budget(trace, arm),
            )
            for arm in arms
            for trace in traces(arm)
        ]  # fmt: skip

    def _run(self, case: Case, model: Model, make: BufferFactory, caller: Engine, options: Options) -> ArmRun:
        wanted = rules_of(options.get("rules", ("R0", "R11")), [one.rule for one in ORACLES])
        judged = judge_case(PlannedCase(case, None), play(case, model, make, caller), wanted)
        self.store(judged)
        return ArmRun(judged.planned, judged.observation, judged.judgements)


def _try_eagerly(model: Model, name: str, inputs: Inputs) -> None:
    """Call the decoder once, uncompiled; raises `UsageError` that names what is called and with what.

    A wrong signature, hidden size or device is no verdict about the compiler.
    """
    call = f"{name} called as decoder({described(inputs)})"
    try:
        with torch.no_grad():
            out = model.decoder(inputs.hidden, inputs.positions, inputs.payload)
    except Exception as error:  # noqa: BLE001  # Ctrl-C and the ends of a test are no `Exception`
        said = (str(error).strip().splitlines() or [""])[0]
        raise UsageError(f"{call}, not compiled, raised {type(error).__name__}: {said}") from None
    if not isinstance(out, Tensor):
        raise UsageError(f"{call} returned {type(out).__name__}, not a tensor (tokens, hidden)")
    if out.device.type != model.device.type:
        raise UsageError(
            f"{call} returned a tensor on {out.device}, but device is {model.device}: move the module there, "
            f"or pass device='{out.device}'"
        )


def _judged(runs: list[ArmRun]) -> list[ArmRun]:
    __tracebackhide__ = True
    wrong = [line for run in runs for line in _complaints(run)]
    if wrong:
        pytest.fail(
            "\n".join([f"{runs[0].case.family} is not the same when compiled", *wrong]), pytrace=False
        )
    return runs


def _complaints(run: ArmRun) -> Iterator[str]:
    for row in run.rows():
        if row.verdict is Verdict.FAIL:
            yield f"  broken: {told(row)}"
        elif row.verdict is Verdict.ERROR or (
            row.verdict is Verdict.SKIP and _applies(row.rule, run.case.arm)
        ):
            place = f"on '{row.trace}' under {row.arm}"
            yield f"  not judged: {row.rule} {row.rule.word}, {place}: {row.detail}"


def _applies(rule: Rule, arm: ArmSpec) -> bool:
    """Say whether a rule that was named has to be judged under this arm."""
    return arm.compiled if rule is Rule.R11 else rule is Rule.R0 and (arm.compiled or arm.captured)


def _trace_of(sizes: Sequence[int], arm: ArmSpec) -> Trace:
    """Return a trace with one forward for each size."""
    if arm.captured:
        raise UsageError(f"arm {arm.name}: captured graphs read fixed storage; play a buffer, not calls")
    return Trace(max(sizes), tuple(Step(Op.FORWARD, size) for size in sizes))
