"""`kernels`: what a decoder compiles to, and how much of it is work on rows that the step does not have."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from collections.abc import Sequence
from typing import TYPE_CHECKING

from deepstack_harness.errors import ExitCode, UsageError
from deepstack_harness.kernels.subject import CPU, TARGETS, Subject
from deepstack_harness.reporting.terminal.output import Output

if TYPE_CHECKING:
    from deepstack_harness.kernels.measurement import Measurement

_OF_SIZES = (
    "family", "revision", "compare", "dtype", "layers", "hidden", "tokens", "capacity", "profile_tokens",
    "static", "target", "cubin", "run", "execute", "configurations",
)  # fmt: skip
SUMMARY = "show the generated kernels and their sizes, also for a GPU that is not here"


def add_arguments(parser: ArgumentParser) -> None:
    """Add what is compiled, at which sizes, and for what."""
    _add_decoder(parser)
    _add_sizes(parser)
    _add_target(parser)
    parser.add_argument(
        "--cost",
        action="store_true",
        help="instead, time decode steps with whole buffers, with slices and without a payload, as ratios",
    )
    defaults = parser.parse_args([])
    parser.set_defaults(of_sizes={name: getattr(defaults, name) for name in _OF_SIZES})


def _add_decoder(parser: ArgumentParser) -> None:
    what = parser.add_argument_group("compiled code")
    what.add_argument(
        "--family",
        default="qwen3_vl",
        help="model family (default: qwen3_vl); opaque and payload_first apply unless it names others",
    )
    what.add_argument(
        "--revision",
        default="pr43617",
        help="buffer that gives the payload, a revision or a mutant (default: pr43617)",
    )
    what.add_argument("--compare", metavar="R2", help="show this revision beside the first one")
    what.add_argument(
        "--dtype", default="bfloat16", metavar="D", help="bfloat16 (default), float32, float16 or float64"
    )
    what.add_argument(
        "--layers", type=int, metavar="L", help="number of layers (default: the family's, which is small)"
    )
    what.add_argument(
        "--hidden", type=int, metavar="H", help="hidden size; heads and feed-forward grow with it"
    )


def _add_sizes(parser: ArgumentParser) -> None:
    sizes = parser.add_argument_group("sizes in token rows")
    sizes.add_argument("--tokens", type=int, default=77, metavar="N", help="tokens of the step (default: 77)")
    sizes.add_argument(
        "--capacity", type=int, default=8192, metavar="C", help="rows of the buffer (default: 8192)"
    )
    sizes.add_argument(
        "--profile-tokens",
        type=int,
        metavar="M",
        help="tokens of the traced profile run (default: the capacity, as in engines)",
    )
    sizes.add_argument(
        "--static", action="store_true", help="compile for fixed sizes instead of symbolic ones"
    )


def _add_target(parser: ArgumentParser) -> None:
    how = parser.add_argument_group("target and output")
    how.add_argument("--target", default=CPU, metavar="T", help=f"{', '.join(TARGETS)} (default: {CPU})")
    how.add_argument(
        "--cubin",
        action="store_true",
        help="compile Triton kernels, and show registers, spills, shared memory and grid",
    )
    how.add_argument(
        "--run", action="store_true", help="compile and run the generated code (target cpu only)"
    )
    how.add_argument(
        "--execute",
        action="store_true",
        help="interpret the Triton source on the CPU, and show which rows and bytes each launch touches "
        "(target h200; no races, PTX, layouts or graphs; matrix products and attention are torch's)",
    )
    how.add_argument(
        "--configurations",
        action="store_true",
        help="with --execute, run each launch with the first and the largest configuration of autotuning",
    )


def run(args: Namespace, output: Output) -> ExitCode:
    """Exit 0 when the kernels were measured, whatever is said of rule R10."""
    if args.cost:
        return _cost(args, output)
    from deepstack_harness.kernels.in_worker import measure
    from deepstack_harness.kernels.rows import rows_of
    from deepstack_harness.oracles.kernels import judge
    from deepstack_harness.reporting.terminal.kernel_table import (
        show_comparison,
        show_judgement,
        show_measurement,
    )

    revisions = [args.revision, *([args.compare] if args.compare else [])]
    subjects = [_subject(args, revision) for revision in revisions]
    with output.progress(f"compiling {args.family} for {args.target}"):
        measured = measure(subjects)
    if args.execute:
        return _executed(output, subjects, measured)
    for subject, one in zip(subjects, measured, strict=True):
        for row in rows_of(subject, one):
            output.record(row)
    if args.compare:
        show_comparison(output, subjects, measured)
    else:
        show_measurement(output, subjects[0], measured[0])
    for subject, one in zip(subjects, measured, strict=True):
        show_judgement(output, subject, judge(one.calls, subject.tokens))
    return ExitCode.HOLDS


def _executed(output: Output, subjects: Sequence[Subject], measured: Sequence[Measurement]) -> ExitCode:
    """Exit 0 when the launches were measured, whatever is said of R10 and R14."""
    from deepstack_harness.kernels.executed import executed
    from deepstack_harness.oracles.executed import judge_step
    from deepstack_harness.reporting.terminal.executed_table import show_executed, show_executed_beside
    from deepstack_harness.reporting.terminal.kernel_table import show_judgement

    steps = [executed(subject, one) for subject, one in zip(subjects, measured, strict=True)]
    for step in steps:
        for row in step.rows():
            output.record(row)
    if len(steps) > 1:
        show_executed_beside(output, steps)
    else:
        show_executed(output, steps[0])
    for step in steps:
        for said in judge_step(step.accesses, step.subject.tokens):
            show_judgement(output, step.subject, said)
    return ExitCode.HOLDS


def _subject(args: Namespace, revision: str) -> Subject:
    return Subject(
        family=args.family, revision=revision, tokens=args.tokens, capacity=args.capacity,
        profile_tokens=args.capacity if args.profile_tokens is None else args.profile_tokens,
        target=args.target, static=args.static, dtype=args.dtype, layers=args.layers, hidden=args.hidden,
        cubin=args.cubin, run=args.run, execute=args.execute, configurations=args.configurations,
    )  # fmt: skip


def _cost(args: Namespace, output: Output) -> ExitCode:
    from deepstack_harness.kernels.costs import CostRow, measure_costs
    from deepstack_harness.reporting.terminal.kernel_table import show_costs

    given = [
        f"--{name.replace('_', '-')}" for name, usual in args.of_sizes.items() if getattr(args, name) != usual
    ]
    if given:
        raise UsageError(f"--cost brings its own decoder and sizes: leave {', '.join(given)} out")
    with output.progress("timing decode steps"):
        costs = measure_costs()
    for cost in costs.steps:
        output.record(CostRow.of(costs, cost))
    show_costs(output, costs)
    return ExitCode.HOLDS
