"""`deepstack_contract`: the contract of the buffer against a class or a factory of a project's own."""

from collections.abc import Iterator, Sequence
from dataclasses import replace

import pytest

from deepstack_harness.auditing.judged_here import judge_here
from deepstack_harness.auditing.judged_plan import judge_plan
from deepstack_harness.auditing.regimes import BOTH, CHOICES, RULES, WHO_IS_CAPTURED, only
from deepstack_harness.auditing.standing import Standing, by_cause, sum_up
from deepstack_harness.catalogue.matrix import CHECK_TRACES, Where, plan_check
from deepstack_harness.contract.buffer_ref import BufferRef, live_buffer, user_buffer
from deepstack_harness.contract.case import PlannedCase
from deepstack_harness.contract.contract_text import WHERE, quoted
from deepstack_harness.contract.protocols import BufferFactory
from deepstack_harness.contract.rules import Rule
from deepstack_harness.contract.trace import Trace
from deepstack_harness.contract.verdicts import Verdict
from deepstack_harness.devices import parse_device, parse_dtype
from deepstack_harness.errors import UsageError
from deepstack_harness.oracles.judged_case import JudgedCase
from deepstack_harness.play.case_worker import WORK, CaseWorker
from deepstack_harness.play.user_buffer import check_fit
from deepstack_harness.pytest_plugin.fixture_base import Fixture, name_of, rules_of, told
from deepstack_harness.workers.foreign import CONTRACT_LIMITS, profile_for
from deepstack_harness.workers.outcomes import WorkerEnd, value_of

_FAMILY = "qwen3_vl"
"""Its hidden size and levels are those that the buffer is made with."""


class DeepstackContract(Fixture):
    """The fixture; see `__call__`.

    A class or a function stays in the process of the test, for debuggers and coverage.  One that is named as
    "module:Class" is imported and played in a worker, whose end (an exit, a crash, a hang) is a broken rule.
    """

    def __call__(
        self,
        make: BufferFactory | str,
        *,
        rules: Sequence[str] | None = None,
        traces: Sequence[str | Trace] | None = None,
        dtype: str = "float32",
        device: str | None = None,
        regime: str | None = None,
    ) -> Standing:
        """Fail with the rules that `make`'s buffers break, each with the shortest trace that shows it.

        `make(capacity, hidden, levels, *, dtype, device)` is a class or a function.  Without
        `traces` those of `python -m deepstack_harness check` are played; a rule that is named in
        `rules` has to be put to the test by them, too.  `regime` is `live`, `captured` (graphs replay what
        get and clear recorded) or `both`; by default `live`, and both for `traces` of your own.
        Returns where every rule stands.
        """
        __tracebackhide__ = True
        with self.one_sentence():
            wanted = RULES if rules is None else rules_of(rules, RULES)
            parse_dtype(dtype), parse_device(self.device(device))
            _check_fit(make)
            plan = plan_check(
                Where(_FAMILY, dtype, self.device(device)),
                _ref(make),
                map(str, traces or CHECK_TRACES),
            )
            plan = only(plan, _regime(regime, traces))
            standing = self._stand(make, plan, wanted)
        wrong = list(_complaints(standing, wanted, named=rules is not None))
        if wrong:
            captured = any(row.regime == "captured" and row.verdict is Verdict.FAIL for row in standing.rows)
            wrong += [f"  captured: {WHO_IS_CAPTURED}"] if captured else []
            title = f"{name_of(make)} does not keep the contract"
            pytest.fail("\n".join([title, *wrong, f"  {WHERE}"]), pytrace=False)
        return standing

    def _stand(
        self, make: BufferFactory | str, plan: Sequence[PlannedCase], wanted: Sequence[Rule]
    ) -> Standing:
        name = name_of(make)
        cases = judge_here(plan, {_ref(make): make}) if callable(make) else _judge_in_worker(plan, make)
        for judged in cases:
            self.store(_of_rules(judged, wanted))
        return sum_up(cases, name, name.rpartition(":")[2], rules=RULES)


def _regime(regime: str | None, traces: Sequence[str | Trace] | None) -> str:
    """Return the regime to play; raises `UsageError` for an unknown one."""
    if regime is None:
        return BOTH if traces else "live"
    if regime not in CHOICES:
        raise UsageError(f"unknown regime '{regime}'; known are {', '.join(CHOICES)}")
    return regime


def _ref(make: BufferFactory | str) -> BufferRef:
    return user_buffer(make) if isinstance(make, str) else live_buffer(name_of(make))


def _check_fit(make: BufferFactory | str) -> None:
    if callable(make):  # else the worker checks it
        check_fit(make, name_of(make))


def _judge_in_worker(plan: Sequence[PlannedCase], target: str) -> list[JudgedCase]:
    """Import `target`, MODULE:CLASS, in a worker and play a plan there.  Raises `UsageError` if it cannot."""
    device = plan[0].case.device
    with CaseWorker(CONTRACT_LIMITS, sandbox=profile_for(device)) as worker:
        loaded = worker.call(f"{WORK}:load", {"target": target})
        if isinstance(loaded, WorkerEnd):  # `value_of` would blame the machine, and the test be skipped
            raise UsageError(f"loading {target}: {loaded.sentence}")
        value_of(loaded, f"loading {target}")
        return judge_plan(plan, worker)


def _of_rules(judged: JudgedCase, wanted: Sequence[Rule]) -> JudgedCase:
    return replace(judged, judgements=tuple(said for said in judged.judgements if said.rule in wanted))


def _complaints(standing: Standing, wanted: Sequence[Rule], *, named: bool) -> Iterator[str]:
    rows = [row for row in standing.rows if row.rule in wanted]
    for row, also in by_cause(rows, standing.effects):
        yield f"  broken: {told(row)}"
        yield f"    {quoted(row.rule)}"
        yield from (f"    also {told(effect)}" for effect in also)
    for row in rows:
        if row.verdict is Verdict.ERROR:
            yield f"  not judged: {row.rule} {row.rule.word}: {row.detail}"
        elif row.verdict is Verdict.SKIP and named:
            yield f"  not put to the test: {row.rule} {row.rule.word}: {row.detail}"
    if all(row.verdict is Verdict.SKIP for row in rows) and not named:
        yield "  these traces put no rule to the test"
