"""`check`: the whole buffer contract against a class of your own."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace

from deepstack_harness.catalogue.matrix import Where, plan_check
from deepstack_harness.contract.buffer_ref import user_buffer
from deepstack_harness.contract.rules import names_of
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


def run(args: Namespace, output: Output) -> ExitCode:
    """Exit 0 when every rule that could be put to the test is kept, 1 when one is broken."""
    from deepstack_harness.auditing.judged_plan import judge_plan
    from deepstack_harness.auditing.standing import sum_up
    from deepstack_harness.devices import parse_device, parse_dtype
    from deepstack_harness.play.case_worker import WORK, CaseWorker
    from deepstack_harness.reporting.terminal.audit_table import show_standing
    from deepstack_harness.workers.foreign import CONTRACT_LIMITS, profile_for
    from deepstack_harness.workers.outcomes import value_of

    parse_dtype(args.dtype), parse_device(args.device)
    plan = plan_check(Where(_FAMILY, args.dtype, args.device), user_buffer(args.target))
    with CaseWorker(CONTRACT_LIMITS, sandbox=profile_for(args.device)) as worker:
        name = value_of(worker.call(f"{WORK}:load", {"target": args.target}), f"loading {args.target}")
        cases = judge_plan(plan, worker)
    standing = sum_up(cases, args.target, name)
    for row in standing.rows:
        output.record(row)
    show_standing(output, standing)
    if standing.broken or standing.unjudged:
        broken = names_of(standing.broken | standing.unjudged)
        output.verdict(f"{args.target}: breaks {broken}", good=False)
        return ExitCode.BROKEN
    output.verdict(f"{args.target}: keeps {names_of(standing.kept)}", good=True)
    return ExitCode.HOLDS
