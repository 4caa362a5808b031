"""`check`: the whole buffer contract against a class of your own."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace

from deepstack_harness.catalogue.matrix import Where, plan_check
from deepstack_harness.contract.rules import Rule
from deepstack_harness.errors import ExitCode
from deepstack_harness.reporting.terminal.output import Output

SUMMARY = "the buffer contract against a class of your own"
_FAMILY = "qwen3_vl"
"""Its hidden size and levels are those that the buffer is made with."""


def add_arguments(parser: ArgumentParser) -> None:
    """The class, and what it is made with."""
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
    from deepstack_harness.auditing.standing import stand
    from deepstack_harness.devices import parse_device, parse_dtype
    from deepstack_harness.play.cells import Runner
    from deepstack_harness.play.user_buffer import load_buffer
    from deepstack_harness.reporting.terminal.audit_table import show_standing

    parse_dtype(args.dtype), parse_device(args.device)
    made_by = load_buffer(args.target)
    plan = plan_check(Where(_FAMILY, args.dtype, args.device), args.target)
    standing = stand(Runner({args.target: made_by}), args.target, made_by.__name__, plan)  # type: ignore[attr-defined]
    for row in standing.rows:
        output.record(row)
    show_standing(output, standing)
    if standing.broken or standing.unjudged:
        names = " ".join(rule for rule in Rule if rule in standing.broken | standing.unjudged)
        output.verdict(f"{args.target}: breaks {names}", good=False)
        return ExitCode.BROKEN
    output.verdict(
        f"{args.target}: keeps {' '.join(rule for rule in Rule if rule in standing.kept)}", good=True
    )
    return ExitCode.HOLDS
