"""`deepstack_contract`: the contract of the buffer against a class or a factory of a project's own."""

from collections.abc import Iterator, Sequence

import pytest

from deepstack_harness.auditing.standing import Standing, sum_up
from deepstack_harness.catalogue.matrix import CHECK_TRACES, Planned, Where, plan_check
from deepstack_harness.contract.protocols import BufferFactory
from deepstack_harness.contract.rules import Rule, Verdict
from deepstack_harness.contract.trace import Trace
from deepstack_harness.devices import parse_device, parse_dtype
from deepstack_harness.play.cells import Cell, Runner
from deepstack_harness.play.user_buffer import check_fit
from deepstack_harness.pytest_plugin.fixture_base import Asked, name_of, rules_of, told

_RULES = (Rule.R1, Rule.R2, Rule.R3, Rule.R4, Rule.R5, Rule.R6, Rule.R7, Rule.R8)
_FAMILY = "qwen3_vl"
"""Its hidden size and levels are those that the buffer is made with."""


class DeepstackContract(Asked):
    """The fixture; see `__call__`."""

    def __call__(
        self,
        make: BufferFactory,
        *,
        rules: Sequence[str] | None = None,
        traces: Sequence[str | Trace] | None = None,
        dtype: str = "float32",
        device: str | None = None,
    ) -> Standing:
        """Fail with the rules that `make`'s buffers break, each with the shortest trace that shows it.

        `make(capacity, hidden, levels, *, dtype, device)` is a class or a function.  Without
        `traces` those of `python -m deepstack_harness check` are played; a rule that is named in
        `rules` has to be put to the test by them, too.  Answers where every rule stands.
        """
        __tracebackhide__ = True
        with self.one_sentence():
            wanted = _RULES if rules is None else rules_of(rules, _RULES)
            parse_dtype(dtype), parse_device(self.device(device))
            check_fit(make, name_of(make))
            plan = plan_check(
                Where(_FAMILY, dtype, self.device(device)), name_of(make), map(str, traces or CHECK_TRACES)
            )
            standing = self._stand(make, plan, wanted)
        wrong = list(_complaints(standing, wanted, named=rules is not None))
        if wrong:
            pytest.fail("\n".join([f"{name_of(make)} does not keep the contract", *wrong]), pytrace=False)
        return standing

    def _stand(self, make: BufferFactory, plan: Sequence[Planned], wanted: Sequence[Rule]) -> Standing:
        runner = Runner({name_of(make): make})
        cells = [runner.play(planned) for planned in plan]
        for cell in cells:
            self._keep_cell(cell, wanted)
        return sum_up(cells, name_of(make), name_of(make).rpartition(":")[2], {})

    def _keep_cell(self, cell: Cell, wanted: Sequence[Rule]) -> None:
        self.keep(cell.case, cell.observation, (said for said in cell.judgements if said.rule in wanted))


def _complaints(standing: Standing, wanted: Sequence[Rule], *, named: bool) -> Iterator[str]:
    rows = [row for row in standing.rows if row.rule in wanted]
    for row in rows:
        if row.verdict == Verdict.FAIL:
            yield f"  broken: {told(row)}"
        elif row.verdict == Verdict.ERROR:
            yield f"  not judged: {row.rule} {Rule(row.rule).word}: {row.detail}"
        elif row.verdict == Verdict.SKIP and named:
            yield f"  not put to the test: {row.rule} {Rule(row.rule).word}: {row.detail}"
    if all(row.verdict == Verdict.SKIP for row in rows) and not named:
        yield "  these traces put no rule to the test"
