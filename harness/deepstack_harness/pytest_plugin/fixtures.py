"""Three fixtures for projects with a buffer or a decoder of their own, and `Fixture`, the base of all four.

`deepstack_contract` holds a class or a factory to the contract of the buffer, `graph_budget` limits the
graphs that a piece of a test may build, and `kernel_facts` returns the kernels that Inductor makes of a
compiled callable. `Fixture` reads the settings of the run, reports a wrong call in one sentence, and stores
judgements for the report. Live objects are played in the process of the test, named classes in a worker.
"""

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace

import msgspec
import pytest
import torch

from deepstack_harness.audit.class_verdicts import (
    BOTH,
    CHOICES,
    RULES,
    WHO_IS_CAPTURED,
    ClassVerdicts,
    by_cause,
    only,
    sum_up,
)
from deepstack_harness.audit.source_worker import control_fault, failed_control, judge_plan
from deepstack_harness.catalogue.plans import Where, check_traces, plan_check
from deepstack_harness.compile.graph_counts import GraphCounter
from deepstack_harness.compile.kernel_probe import KernelProbe
from deepstack_harness.compile.torch_compat import dynamo
from deepstack_harness.compile.torch_compat.inductor import NotRun, cold
from deepstack_harness.compile.watch_facts import WatchedRegions
from deepstack_harness.contract.adapter import adapter_of
from deepstack_harness.contract.arm import arm_names
from deepstack_harness.contract.case import BufferRef, Case, PlannedCase, live_buffer, user_buffer
from deepstack_harness.contract.facts import KernelFacts
from deepstack_harness.contract.observation import GraphCounts, Observation, Raised, Rows
from deepstack_harness.contract.oracles.judge import JudgedCase, judge_cases
from deepstack_harness.contract.protocols import WHERE, BufferFactory, quoted
from deepstack_harness.contract.rules import Rule
from deepstack_harness.contract.trace import Trace
from deepstack_harness.contract.verdicts import Verdict
from deepstack_harness.document.shown import shown
from deepstack_harness.errors import HarnessError, MachineError, NotMeasured, UsageError
from deepstack_harness.models.family import parse_device, parse_dtype
from deepstack_harness.play.case_worker import LOAD, CaseWorker
from deepstack_harness.play.loading import check_fit
from deepstack_harness.play.model import NOTHING_BOUND, Bound
from deepstack_harness.play.play_case import play_case
from deepstack_harness.pytest_plugin.options import JUDGED, quiet_torch, setting, without_gpu
from deepstack_harness.runs.case_result import result_in_test, result_of
from deepstack_harness.text import plural
from deepstack_harness.workers.outcomes import WorkerEnd, value_of
from deepstack_harness.workers.profiles import CONTRACT_LIMITS, profile_for

_DEFAULT_ARMS = "eager/stock,eager/drop_all"
"""The cheapest backend, with torch's own guards and with those that engines drop."""


class Fixture:
    """A fixture of one test."""

    def __init__(self, request: pytest.FixtureRequest) -> None:
        """Take the settings of the run; nothing is played yet."""
        self._config = request.config
        self._node: pytest.Item = request.node
        request.addfinalizer(quiet_torch(request.config))

    def device(self, given: str | None) -> str:
        """Return the device that was given, else that of the run."""
        return given or setting(self._config, "device") or "cpu"

    def arms(self, given: Sequence[str] | str | None) -> Sequence[str]:
        """Return the names of arms that were given, else those of the run."""
        chosen = setting(self._config, "arms") or _DEFAULT_ARMS
        return arm_names(chosen if given is None else given)

    @contextmanager
    def one_sentence(self) -> Iterator[None]:
        """Fail the test with the sentence of a wrong call; skip it where a GPU is not here."""
        try:
            yield
        except HarnessError as error:
            wrong_call = error
        else:
            return
        if isinstance(wrong_call, MachineError):
            without_gpu(self._config, str(wrong_call))
        # pytest shows what was being handled as well, and a block of a generator is left by its exception.
        raise pytest.fail.Exception(str(wrong_call), pytrace=False) from None

    def store(self, judged: JudgedCase) -> None:
        """Store a judged case for the report, as plain data, which xdist carries between processes."""
        stored = self._node.stash.setdefault(JUDGED, [])
        file, line, _ = self._node.location
        where = file if line is None else f"{file}:{line + 1}"
        result = result_in_test(result_of(judged, 0.0), self._node.nodeid, len(stored) + 1, where)
        stored.append(msgspec.to_builtins(result))


def rules_of(names: Iterable[str], known: Sequence[Rule]) -> list[Rule]:
    """Return rules by name; raises `UsageError` for a rule that the fixture does not judge."""
    wanted = list(names)
    for name in wanted:
        if name not in known:
            raise UsageError(f"rule '{name}' is not judged here; known are {', '.join(known)}")
    return [Rule(name) for name in wanted]


def name_of(thing: Callable[..., object] | str) -> str:
    """Return `module:name` of a class or function, which a text is already."""
    if isinstance(thing, str):
        return thing
    named = thing if hasattr(thing, "__qualname__") else type(thing)
    return f"{named.__module__}:{named.__qualname__}"


def judge_in_process(plan: Iterable[PlannedCase], bound: Bound = NOTHING_BOUND) -> list[JudgedCase]:
    """Play a plan, one case after the other, and judge each.  Raises what `play_case` raises.

    Oracles see plain JSON values, as from a worker: a size that a live object returned may be an `int` with
    a comparison of its own.
    """

    def observe(case: Case) -> Observation:
        facts = json.dumps(msgspec.to_builtins(play_case(case, bound)))  # plain values, as a worker sends
        return msgspec.convert(json.loads(facts), Observation)

    return list(judge_cases(plan, observe))


_FAMILY = "qwen3_vl"
"""Its hidden size and levels are those that the buffer is made with."""


class DeepstackContract(Fixture):
    """The fixture; see `__call__`.

    A class or a function stays in the process of the test, for debuggers and coverage.  One that is named as
    "module:Class" is imported and played in a worker, whose end (an exit, a crash, a hang) is a broken rule.

    >>> def test_buffer(deepstack_contract):
    ...     verdicts = deepstack_contract(ReferenceBuffer, traces=["cap 16: set 9; clear 9; get 9"])
    ...     assert not verdicts.broken
    """

    def __call__(  # the options of `check`, by name
        self,
        make: BufferFactory | str,
        *,
        rules: Sequence[str] | None = None,
        traces: Sequence[str | Trace] | None = None,
        dtype: str = "float32",
        device: str | None = None,
        regime: str | None = None,
        **removed: object,
    ) -> ClassVerdicts:
        """Fail with the rules that `make`'s buffers break, each with the shortest trace that shows it.

        `make(capacity, hidden, levels, *, dtype, device)` is a class or a function.  Without
        `traces` those of `python -m deepstack_harness check` are played; a rule that is named in
        `rules` has to be put to the test by them, too.  `regime` is `live`, `captured` (graphs replay what
        get and clear recorded) or `both`; by default `live`, and both for `traces` of your own.
        A buffer of another shape or with other names has an adapter class (`check --write-adapter`).
        Returns the verdict of every rule.
        """
        __tracebackhide__ = True
        with self.one_sentence():
            wanted = RULES if rules is None else rules_of(rules, RULES)
            if removed:
                raise UsageError(
                    f"{', '.join(removed)}: adapter, shape, rows and capacity were removed: pass an adapter "
                    "class, as 'deepstack-harness check MODULE:CLASS --write-adapter FILE.py' writes it"
                )
            parse_dtype(dtype)
            parse_device(self.device(device))
            where, texts = (
                Where(_FAMILY, dtype, self.device(device)),
                list(map(str, traces or check_traces())),
            )

            def plan_of(buffer: BufferRef) -> list[PlannedCase]:
                return only(plan_check(where, buffer, texts), _regime(regime, traces))

            if callable(make):
                name = name_of(make)
                ref, factory = live_buffer(name, adapter_of(make)), check_fit(make, name)
                cases = judge_in_process(plan_of(ref), {ref: factory})
                fault = control_fault(judge_in_process)
            else:
                cases, fault = _judge_in_worker(make, plan_of, self.device(device))
            if fault is not None:
                raise NotMeasured(f"{name_of(make)} was not judged: {fault}")
            for judged in cases:
                stored = tuple(judgement for judgement in judged.judgements if judgement.rule in wanted)
                self.store(replace(judged, judgements=stored))
            name = name_of(make)
            verdicts = sum_up(cases, name, name.rpartition(":")[2], rules=RULES)
        wrong = [*_complaints(verdicts, wanted, named=rules is not None), *_never_read(cases)]
        if wrong:
            captured = any(row.regime == "captured" and row.verdict is Verdict.FAIL for row in verdicts.rows)
            wrong += [f"  captured: {WHO_IS_CAPTURED}"] if captured else []
            title = f"{name_of(make)} does not keep the contract"
            pytest.fail("\n".join([title, *wrong, f"  {WHERE}"]), pytrace=False)
        return verdicts


def _regime(regime: str | None, traces: Sequence[str | Trace] | None) -> str:
    """Return the regime to play; raises `UsageError` for an unknown one."""
    if regime is None:
        return BOTH if traces else "live"
    if regime not in CHOICES:
        raise UsageError(f"unknown regime '{regime}'; known are {', '.join(CHOICES)}")
    return regime


def _judge_in_worker(
    target: str,
    plan_of: Callable[[BufferRef], list[PlannedCase]],
    device: str,
) -> tuple[list[JudgedCase], str | None]:
    """Import `target`, MODULE:CLASS, in a worker and play a plan and the controls there.

    Returns the cases, and what went wrong with the controls.  Raises `UsageError` if it cannot be imported.
    """
    with CaseWorker(CONTRACT_LIMITS, sandbox=profile_for(device)) as worker:
        result = worker.call(LOAD, {"target": target})
        if isinstance(result, WorkerEnd):  # `value_of` would blame the machine, and the test be skipped
            raise UsageError(f"loading {target}: {result.sentence}")
        loaded = value_of(result, f"loading {target}")
        cases = judge_plan(plan_of(user_buffer(target, loaded.adapter)), worker)
        return cases, None if worker.ends else failed_control(worker)


def _complaints(verdicts: ClassVerdicts, wanted: Sequence[Rule], *, named: bool) -> Iterator[str]:
    rows = [row for row in verdicts.rows if row.rule in wanted]
    for row, also in by_cause(rows, verdicts.effects):
        yield f"  broken: {shown(row).sentence}"
        yield f"    {quoted(row.rule)}"
        yield from (f"    also {shown(effect).sentence}" for effect in also)
    for row in rows:
        if row.verdict is Verdict.ERROR:
            yield f"  not judged: {row.rule} {row.rule.word}: {row.detail}"
        elif row.verdict is Verdict.SKIP and named:
            yield f"  not put to the test: {row.rule} {row.rule.word}: {row.detail}"
    if all(row.verdict is Verdict.SKIP for row in rows) and not named:
        yield "  these traces put no rule to the test"


def _never_read(cases: Sequence[JudgedCase]) -> Iterator[str]:
    """Iterate over one complaint where payloads were set and no get returned a row of any of them.

    A rule that such a buffer passes was not put to the test: all that was seen is that of an empty buffer.
    """
    refusals: list[Raised | None] = []
    read = False
    for judged in cases:
        is_set = False
        for facts in judged.observation.steps if judged.observation.vision else ():
            if _has_rows(facts.content):
                is_set = True
                refusal = facts.raised
            elif is_set and facts.answer is not None and facts.answer.rows:
                refusals.append(refusal)
                read |= _has_rows(facts.answer.rows)
    if refusals and not read:
        raised = next((refusal for refusal in refusals if refusal), None)
        why = f": set raised {raised.type}: {raised.message}" if raised else ""
        yield f"  not put to the test: no answer had a row that was set{why}"


def _has_rows(levels: Rows | None) -> bool:
    return any(run.payload for level in levels or () for run in level)


class GraphBudget(Fixture):
    """The fixture; see `__call__`.

    >>> def test_one_graph(graph_budget):
    ...     with graph_budget(1) as counter:
    ...         torch.compile(torch.sin, backend="eager")(torch.ones(3))
    ...     assert counter.facts().graphs == 1
    """

    def __init__(self, request: pytest.FixtureRequest, watched: WatchedRegions) -> None:
        """Take the settings of the run, and what a watch over the whole test sees."""
        super().__init__(request)
        self._watched = watched

    @contextmanager
    def __call__(
        self, graphs: int, *, breaks: int = 0, recompiles: int | None = None
    ) -> Iterator[GraphCounter]:
        """Fail when the block builds more graphs than `graphs`, or none; what was compiled before is dropped.

        Fails too when a dropped guard that decides fails in the block: too few graphs are no good either.

        A budget of 0 is for code that is warm: what was compiled before stays, and the block builds nothing
        more.  `breaks` are graph breaks that are accepted, `recompiles` recompiles (None: as
        many as the graphs allow). Gives the counter, to look at in the block and after it.
        """
        __tracebackhide__ = True
        with self.one_sentence():
            if graphs < 0:
                raise UsageError(f"graph_budget({graphs}): a budget is 0 graphs or more")
        opened = ExitStack()
        failed_before = self._failed_calls()
        with self.one_sentence():
            counter = opened.enter_context(GraphCounter(warm=graphs == 0))
        try:
            with opened:
                yield counter
        except Exception as error:
            if not dynamo.is_recompile_limit(error):
                raise
            limit = "reached torch's recompile limit, behind which it runs eagerly"
            pytest.fail(f"{limit}: {_counts_in_words(counter.so_far)}", pytrace=False)
        with self.one_sentence():
            counts = counter.facts()
        allowed = {"graphs": graphs, "breaks": breaks, "recompiles": recompiles}
        over = [
            f"{name} {getattr(counts, name)}, at most {most}"
            for name, most in allowed.items()
            if most is not None and getattr(counts, name) > most
        ]
        if over:
            pytest.fail(f"over the budget: {', '.join(over)}: {_counts_in_words(counts)}", pytrace=False)
        wrong = [text for text, calls in self._failed_calls().items() if calls > failed_before.get(text, 0)]
        if wrong:
            pytest.fail("\n".join([f"a graph too few: {_counts_in_words(counts)}", *wrong]), pytrace=False)

    def _failed_calls(self) -> dict[str, int]:
        """Return the calls in which each dropped guard that decides has failed, by what is wrong in words."""
        return {
            f"  {region.name}: {guard.name} was {guard.then} when compiled, and then {guard.now}; the guard "
            f"'{guard.rule}' ({guard.where}) was dropped; {guard.effect}": guard.calls
            for region in self._watched.regions
            for guard in region.decisive
        }


def _counts_in_words(counts: GraphCounts) -> str:
    graphs, again = plural(counts.graphs, "graph"), plural(counts.recompiles, "recompile")
    words = f"{graphs}, {again}, {plural(counts.breaks, 'break')}"
    return f"{words}; recompiled because {counts.reasons[0]}" if counts.reasons else words


class KernelFactsOf(Fixture):
    """The fixture; see `__call__`.

    >>> def test_kernels(kernel_facts):
    ...     double = torch.compile(lambda hidden: 2 * hidden.relu(), dynamic=True)
    ...     call = lambda: double(torch.ones(6, 8))
    ...     facts = kernel_facts(call, tokens=6, capacity=16, arguments=["hidden"])
    ...     assert len(facts.calls) == 1
    """

    def __call__(
        self,
        call: Callable[[], object],
        *,
        tokens: int,
        capacity: int,
        profile: Callable[[], object] | None = None,
        arguments: Sequence[str] = ("hidden", "positions"),
        run: bool = True,
    ) -> KernelFacts:
        """Return the kernels of `call()`, which calls something compiled with backend inductor.

        `tokens` and `capacity` are the rows of the step and of the buffer; they differ.
        `profile()` is called before, as an engine's first run: what `call` runs may have
        been compiled there.  `arguments` are the names of those parameters of the
        compiled function whose sizes are tokens.  Without `run`, code is generated, not
        compiled, which is faster, and both calls end where the first graph would run.
        What was compiled before is dropped.  Fails where no kernel was seen.
        """
        __tracebackhide__ = True
        with self.one_sentence():
            if tokens == capacity:
                raise UsageError(f"tokens and capacity are both {tokens}: their rows could not be told apart")
            dynamo.start_counting()
            with (
                torch.no_grad(),
                cold(run=run),
                KernelProbe(tokens, capacity, run=run, arguments=arguments) as probe,
            ):
                before = _called(profile, probe)
                _called(call, probe)
            if not probe.watched.calls[before:]:
                raise NotMeasured(_nothing_of_inductor(dynamo.backends_used()))
            facts = probe.facts()
            calls = facts.calls[before:]
            if not any(kernel.rows for call in calls for kernel in call.kernels):
                raise NotMeasured(
                    f"no kernel has rows of the {tokens} tokens or of the capacity {capacity}: is the call "
                    f"of {tokens} tokens, and are its parameters {', '.join(arguments)}?"
                )
            return replace(facts, calls=calls)


def _nothing_of_inductor(backends: Sequence[str]) -> str:
    """Return why there are no kernels: what was compiled, and with which backends."""
    nothing = "the call ran no graph that Inductor compiled"
    if not backends:
        return f"{nothing}: it compiled nothing at all; is torch.compile in the way that it takes?"
    return (
        f"{nothing}: its graphs were compiled with backend {', '.join(backends)}, and need backend inductor"
    )


def _called(call: Callable[[], object] | None, probe: KernelProbe) -> int:
    """Call, and return how many graphs were called until now."""
    with suppress(NotRun):
        if call is not None:
            call()
    return len(probe.watched.calls)
