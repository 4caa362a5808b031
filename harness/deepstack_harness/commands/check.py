"""`check`: the whole buffer contract against a class of your own."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from functools import partial
from typing import TYPE_CHECKING

from deepstack_harness.catalogue.matrix import CHECK_TRACES, Where, plan_check
from deepstack_harness.contract.buffer_ref import user_buffer
from deepstack_harness.contract.places import check_device, check_dtype
from deepstack_harness.contract.rules import Rule, names_of
from deepstack_harness.errors import ExitCode
from deepstack_harness.reporting.terminal.output import Output

if TYPE_CHECKING:
    from deepstack_harness.auditing.regimes import Standings
    from deepstack_harness.contract.case import PlannedCase
    from deepstack_harness.oracles.judged_case import JudgedCase
    from deepstack_harness.play.case_worker import CaseWorker

SUMMARY = "test a buffer class of your own against the contract"
_FAMILY = "qwen3_vl"
"""Its hidden size and levels are those that the buffer is made with."""


def add_arguments(parser: ArgumentParser) -> None:
    """Add the class, the device and dtype that it is made with, and how much is played."""
    parser.add_argument(
        "target",
        metavar="MODULE:CLASS",
        help="a class made with (capacity, hidden, levels, *, dtype, device)",
    )
    parser.add_argument("--device", default="cpu", help="cpu (default), cuda or cuda:N")
    parser.add_argument(
        "--dtype", default="float32", metavar="D", help="float32 (default), bfloat16, float16 or float64"
    )
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
        help=f"play more than the sample of {len(CHECK_TRACES)} traces: all sizes of a buffer, real ones too "
        "(capacity 8192), failing allocations and histories of hundreds of steps; this takes half a minute",
    )


def run(args: Namespace, output: Output) -> ExitCode:
    """Exit 0 when every rule that could be put to the test is kept in the regime asked for, 1 when not."""
    user_buffer(args.target)
    check_dtype(args.dtype)
    check_device(args.device)
    from deepstack_harness.devices import parse_device
    from deepstack_harness.reporting.terminal.regime_table import show_advice, show_regimes

    parse_device(args.device)
    standings, advised = _judge(args)
    for standing in standings.of.values():
        for row in standing.rows:
            output.record(row)
    show_regimes(output, standings)
    show_advice(output, standings, advised)
    told = {regime: standing.broken | standing.unjudged for regime, standing in standings.of.items()}
    good = not any(one.broken | one.unjudged for one in standings.chosen(args.regime))
    kept: frozenset[Rule] = frozenset().union(*(one.kept for one in standings.of.values()))
    said = "; ".join(f"{regime} use breaks {names_of(rules)}" for regime, rules in told.items() if rules)
    output.verdict(f"{args.target}: {said or f'keeps {names_of(kept)}'}", good=good)
    return ExitCode.HOLDS if good else ExitCode.BROKEN


def _judge(args: Namespace) -> tuple[Standings, list[JudgedCase]]:
    """Play the traces in a worker; return where the class stands, and the cases that are advisory."""
    from deepstack_harness.auditing.judged_plan import judge_plan
    from deepstack_harness.auditing.regimes import stand_in_regimes
    from deepstack_harness.catalogue.input_traces import ADVISORY_TRACES
    from deepstack_harness.catalogue.thorough_traces import thorough_traces
    from deepstack_harness.play.case_worker import WORK, CaseWorker
    from deepstack_harness.workers.foreign import CONTRACT_LIMITS, profile_for
    from deepstack_harness.workers.outcomes import value_of

    where, buffer = Where(_FAMILY, args.dtype, args.device), user_buffer(args.target)
    plan = plan_check(where, buffer, (*CHECK_TRACES, *thorough_traces()) if args.thorough else CHECK_TRACES)
    with CaseWorker(CONTRACT_LIMITS, sandbox=profile_for(args.device)) as worker:
        name = value_of(worker.call(f"{WORK}:load", {"target": args.target}), f"loading {args.target}")
        cases = judge_plan(plan, worker)
        standings = stand_in_regimes(cases, args.target, name, partial(_again, worker))
        advised = [] if worker.ends else judge_plan(plan_check(where, buffer, ADVISORY_TRACES), worker)
    return standings, advised


def _again(worker: CaseWorker, planned: PlannedCase) -> JudgedCase | None:
    """Play one more case; a class that has ended its worker is left alone."""
    from deepstack_harness.auditing.judged_plan import judge_plan

    return None if worker.ends else judge_plan([planned], worker)[0]
