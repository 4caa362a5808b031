"""`check`: the whole buffer contract against a class of your own, as a table of rules and regimes."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from deepstack_harness.catalogue.fitted_traces import fitted_traces
from deepstack_harness.catalogue.plans import Where, check_traces, plan_check
from deepstack_harness.cli.arguments import add_device_and_dtype, add_removed_adapter_options
from deepstack_harness.cli.output import write_text
from deepstack_harness.contract.case import Regime, check_device, check_dtype, user_buffer
from deepstack_harness.contract.protocols import WHERE, quoted
from deepstack_harness.contract.rules import Rule, names_of
from deepstack_harness.contract.trace import DTYPES, Trace
from deepstack_harness.contract.verdicts import Verdict, worst
from deepstack_harness.document.blocks import BLANK, Column, Document, Heading, Line, outcome, table_line
from deepstack_harness.document.shown import finding as finding_lines
from deepstack_harness.errors import ExitCode, UsageError
from deepstack_harness.files import store_hypothesis_in_cache
from deepstack_harness.text import plural

if TYPE_CHECKING:
    from deepstack_harness.audit.class_verdicts import RegimeVerdicts
    from deepstack_harness.contract.adapter import Adapter
    from deepstack_harness.contract.oracles.judge import JudgedCase

_FAMILY = "qwen3_vl"
"""Its hidden size and levels are those that the buffer is made with."""


def add_arguments(parser: ArgumentParser) -> None:
    """Add the class, the device and dtype that it is made with, and how much is played."""
    parser.add_argument(
        "target",
        metavar="MODULE:CLASS",
        help="a class made with (capacity, hidden, levels, *, dtype, device)",
    )
    add_device_and_dtype(parser)
    parser.set_defaults(dtype=None)
    add_removed_adapter_options(parser)
    parser.add_argument(
        "--write-adapter", metavar="FILE",
        help="instead, write an adapter class for a class of other names or another shape, from its "
        "signatures; edit it, and check FILE:Adapter",
    )  # fmt: skip
    parser.add_argument(
        "--regime",
        default="live",
        choices=("live", "captured", "both"),
        help="what the exit code follows: every call runs the Python of the class (live, default), or graphs "
        "replay it (captured); both are played and printed",
    )
    parser.add_argument(
        "--thorough",
        action="store_true",
        help="play more than the usual sample of traces: every pair of unusual inputs, real sizes (capacity "
        "8192), failing allocations, and drawn histories of hundreds of steps; this takes a minute",
    )


def run(args: Namespace) -> Document[ExitCode]:
    """Exit 0 when every rule that could be put to the test passes in the chosen regime, 1 when not."""
    user_buffer(args.target)
    if args.write_adapter:
        return (yield from _write_adapter(args))
    if args.dtype is not None:
        check_dtype(args.dtype)
    check_device(args.device)
    if args.device != "cpu":  # torch takes 2 s to import
        from deepstack_harness.models.family import parse_device

        parse_device(args.device)
    regimes, advised, adapter = _judge(args)
    for verdicts in regimes.by_regime.values():
        yield from verdicts.rows
    if adapter is not None:
        yield from show_adapter(adapter, _texts(args))
    yield from show_regimes(regimes)
    yield from show_advice(regimes, advised)
    good = not any(verdicts.broken | verdicts.unjudged for verdicts in regimes.chosen(args.regime))
    kept: frozenset[Rule] = frozenset().union(*(verdicts.kept for verdicts in regimes.by_regime.values()))
    parts = []
    for regime, verdicts in regimes.by_regime.items():
        if verdicts.broken:
            parts.append(f"{regime} use breaks {names_of(verdicts.broken)}")
        if verdicts.unjudged:
            parts.append(f"{names_of(verdicts.unjudged)} of {regime} use could not be judged")
    parts = parts or [f"keeps {names_of(kept)}"]
    tested = {
        row.rule
        for verdicts in regimes.by_regime.values()
        for row in verdicts.rows
        if row.verdict is not Verdict.SKIP
    }
    if untested := frozenset(adapter.unchecked if adapter else ()) - tested:
        parts.append(f"not tested: {names_of(untested)}")
    yield outcome(f"{args.target}: {'; '.join(parts)}", good=good)
    return ExitCode.HOLDS if good else ExitCode.BROKEN


def _texts(args: Namespace) -> tuple[str, ...]:
    """Return the traces that are played."""
    if not args.thorough:
        return check_traces()
    store_hypothesis_in_cache()
    from deepstack_harness.fuzz.strategies import thorough_traces

    return check_traces() + thorough_traces()


def show_adapter(adapter: Adapter, texts: Sequence[str]) -> Document:
    """Print what an adapter class states, what is not checked of it, and how many traces check something."""
    yield Line(f"adapter: {str(adapter) or 'nothing is fixed'}")
    for rule, why in adapter.unchecked.items():
        yield Line(f"{rule} {why}", "dim")
    asked = len(fitted_traces(map(Trace.parse, texts), adapter))
    yield Line(f"traces: {asked} of {len(texts)}; the others make no further call of such a buffer")
    yield BLANK


def _write_adapter(args: Namespace) -> Document[ExitCode]:
    """Write an adapter class to a file; raises `UsageError` for one that is there already."""
    from deepstack_harness.play.case_worker import WRITE_ADAPTER, CaseWorker
    from deepstack_harness.workers.outcomes import value_of
    from deepstack_harness.workers.profiles import CONTRACT_LIMITS, profile_for

    if Path(args.write_adapter).exists():
        raise UsageError(f"'{args.write_adapter}' is there already: choose another file")
    with CaseWorker(CONTRACT_LIMITS, sandbox=profile_for(args.device)) as worker:
        text = value_of(worker.call(WRITE_ADAPTER, {"target": args.target}), f"loading {args.target}")
    write_text(args.write_adapter, text)
    yield Line(f"wrote {args.write_adapter}: edit it, and check {args.write_adapter}:Adapter")
    return ExitCode.HOLDS


def _judge(args: Namespace) -> tuple[RegimeVerdicts, list[JudgedCase], Adapter | None]:
    """Play the traces in a worker; return the place of the class, the advisory cases, and its adapter."""
    from deepstack_harness.audit.class_verdicts import sum_up_each_regime
    from deepstack_harness.audit.source_worker import failed_control, judge_plan, unjudged
    from deepstack_harness.catalogue.traces import ADVISORY_TRACES
    from deepstack_harness.play.case_worker import LOAD, CaseWorker
    from deepstack_harness.workers.outcomes import value_of
    from deepstack_harness.workers.profiles import CONTRACT_LIMITS, profile_for

    with CaseWorker(CONTRACT_LIMITS, sandbox=profile_for(args.device)) as worker:
        loaded = value_of(worker.call(LOAD, {"target": args.target}), f"loading {args.target}")
        adapter = loaded.adapter
        where = Where(_FAMILY, args.dtype or DTYPES[0], args.device)
        buffer = user_buffer(args.target, adapter)
        plan = plan_check(where, buffer, _texts(args))
        cases = judge_plan(plan, worker)
        # A class that has ended its worker is not played once more.
        regimes = sum_up_each_regime(
            cases, args.target, loaded.name,
            lambda planned: None if worker.ends else judge_plan([planned], worker)[0],
        )  # fmt: skip
        advised = [] if worker.ends else judge_plan(plan_check(where, buffer, ADVISORY_TRACES), worker)
        why = None if worker.ends else failed_control(worker)
    if why is not None:
        by_regime = {regime: unjudged(verdicts, why) for regime, verdicts in regimes.by_regime.items()}
        regimes, advised = replace(regimes, by_regime=by_regime, same_live={}), []
    return regimes, advised, adapter


_COLUMNS = [Column(width=3), Column(width=9), Column(width=10), Column(width=10), Column()]


def show_regimes(regimes: RegimeVerdicts) -> Document:
    """Print a line per rule with its verdict in each regime, then every broken rule in full."""
    from deepstack_harness.audit.class_verdicts import RULES, WHO_IS_CAPTURED

    yield table_line(
        _COLUMNS, ["", "", *(str(regime) for regime in regimes.by_regime), "put to the test by"], "dim"
    )
    for rule in RULES:
        rows = [
            next(row for row in regimes.by_regime[regime].rows if row.rule is rule)
            for regime in regimes.by_regime
        ]
        verdict = worst(row.verdict for row in rows)
        # How often each regime put it to the test, or why none did.
        *first, last = chances = [row.chances or 0 for row in rows]
        tested = " + ".join([*(f"{count:,}" for count in first), plural(last, rule.chance)])
        if not any(chances):
            tested = rows[0].detail if rows[0].verdict is Verdict.SKIP else ""
        cells = [rule, rule.word, *(row.verdict.word for row in rows), tested]
        yield table_line(_COLUMNS, cells, verdict.style)
    rows = [row for verdicts in regimes.by_regime.values() for row in verdicts.rows]
    findings = [*regimes.findings, *((row, ()) for row in rows if row.verdict is Verdict.ERROR)]
    for rule in sorted({row.rule for row, _ in findings}, key=list(Rule).index):
        yield BLANK
        yield Heading(quoted(rule))
        for row, effects in (finding for finding in findings if finding[0].rule is rule):
            yield from finding_lines(row, effects, named=False)
    if findings:
        yield BLANK
        yield Line(WHERE)
    captured = regimes.by_regime.get(Regime.CAPTURED)
    if captured and captured.broken:
        yield Line(f"captured: {WHO_IS_CAPTURED}")


def show_advice(regimes: RegimeVerdicts, cases: Iterable[JudgedCase]) -> Document:
    """Print what became of counts that are no Python int; no rule is about them, and no row has them."""
    broken = {rule for verdicts in regimes.by_regime.values() for rule in verdicts.broken}
    details = [
        f"  {judgement.detail}"
        for result in cases
        for judgement in result.judgements
        if judgement.verdict is Verdict.FAIL and judgement.rule not in broken
    ]
    if details:
        yield BLANK
        yield Line("advisory: counts that are no Python int; the contract lets a buffer refuse them")
        for text in details:
            yield Line(text)
