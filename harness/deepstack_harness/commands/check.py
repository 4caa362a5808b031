"""`check`: the whole buffer contract against a class of your own."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace

from deepstack_harness.catalogue.matrix import Where, plan_check
from deepstack_harness.contract.buffer_ref import user_buffer
from deepstack_harness.contract.places import check_device, check_dtype
from deepstack_harness.contract.rules import Rule, names_of
from deepstack_harness.errors import ExitCode
from deepstack_harness.reporting.terminal.output import Output

SUMMARY = "test a buffer class of your own against the contract"
_FAMILY = "qwen3_vl"
"""Its hidden size and levels are those that the buffer is made with."""


def add_arguments(parser: ArgumentParser) -> None:
    """Add the class, and the device and dtype that it is made with."""
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


def run(args: Namespace, output: Output) -> ExitCode:
    """Exit 0 when every rule that could be put to the test is kept in the regime asked for, 1 when not."""
    ref = user_buffer(args.target)
    check_dtype(args.dtype)
    check_device(args.device)
    from deepstack_harness.auditing.judged_plan import judge_plan
    from deepstack_harness.auditing.regimes import stand_in_regimes
    from deepstack_harness.devices import parse_device
    from deepstack_harness.play.case_worker import WORK, CaseWorker
    from deepstack_harness.reporting.terminal.regime_table import show_regimes
    from deepstack_harness.workers.foreign import CONTRACT_LIMITS, profile_for
    from deepstack_harness.workers.outcomes import value_of

    parse_device(args.device)
    plan = plan_check(Where(_FAMILY, args.dtype, args.device), ref)
    with CaseWorker(CONTRACT_LIMITS, sandbox=profile_for(args.device)) as worker:
        name = value_of(worker.call(f"{WORK}:load", {"target": args.target}), f"loading {args.target}")
        cases = judge_plan(plan, worker)
    standings = stand_in_regimes(cases, args.target, name)
    for standing in standings.of.values():
        for row in standing.rows:
            output.record(row)
    show_regimes(output, standings)
    told = {regime: standing.broken | standing.unjudged for regime, standing in standings.of.items()}
    good = not any(one.broken | one.unjudged for one in standings.chosen(args.regime))
    kept: frozenset[Rule] = frozenset().union(*(one.kept for one in standings.of.values()))
    said = "; ".join(f"{regime} use breaks {names_of(rules)}" for regime, rules in told.items() if rules)
    output.verdict(f"{args.target}: {said or f'keeps {names_of(kept)}'}", good=good)
    return ExitCode.HOLDS if good else ExitCode.BROKEN
