"""`kernels`: what a decoder compiles to, and how much of it is work on rows that the step does not have."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from deepstack_harness.cli.arguments import add_removed, options_in_use
from deepstack_harness.cli.output import progress, refused_target, write_text
from deepstack_harness.compile.kernels import Subject
from deepstack_harness.document.blocks import Document, Line
from deepstack_harness.errors import ExitCode, UsageError
from deepstack_harness.options import add_options, record_of

if TYPE_CHECKING:
    from deepstack_harness.compile.kernels import Measurement


_OF_SIZES = (
    "family", "revision", "compare", "dtype", "layers", "hidden", "tokens", "capacity", "profile_tokens",
    "target", "cubin", "execute", "configurations", "code",
)  # fmt: skip


def add_arguments(parser: ArgumentParser) -> None:
    """Add what is compiled, at which sizes, and for what."""
    what = parser.add_argument_group("compiled code")
    add_options(what, Subject, "family", "revision")
    what.add_argument("--compare", metavar="R2", help="compare the first revision with this one")
    add_options(what, Subject, "dtype", "layers", "hidden")
    sizes = parser.add_argument_group("sizes in token rows")
    add_options(sizes, Subject, "tokens", "capacity", "profile_tokens")
    how = parser.add_argument_group("target and output")
    add_options(how, Subject, "target", "cubin", "execute", "configurations")
    how.add_argument(
        "--code", metavar="DIR",
        help="also write the code that Inductor generated, a file for each graph, into a folder",
    )  # fmt: skip
    add_removed(parser, "--static", "play fixed sizes with 'repro INCIDENT --arm inductor/stock/static'")
    add_removed(
        parser, "--run", "run generated code with '--target h200 --execute', or an inductor arm of 'repro'"
    )
    add_removed(parser, "--cost", "time what a payload costs a step with '--payload-cost'")
    parser.add_argument(
        "--payload-cost",
        action="store_true",
        help="instead, time what a payload costs a step under each capture mode, as a list and as one "
        "tensor; with --target cuda at the sizes of Qwen3-VL 4B, 8B and 32B",
    )
    defaults = parser.parse_args([])
    parser.set_defaults(of_sizes={name: getattr(defaults, name) for name in _OF_SIZES})


def run(args: Namespace) -> Document[ExitCode]:
    """Exit 0 when the kernels were measured, whatever the verdict on rule R10."""
    if args.payload_cost:
        return (yield from _payload_cost(args))
    from deepstack_harness.cli.kernel_tables import show_comparison, show_judgement, show_measurement
    from deepstack_harness.compile.kernel_rows import kernel_rows
    from deepstack_harness.compile.kernels import measure
    from deepstack_harness.contract.oracles.compiler import judge_kernels as judge

    revisions = [args.revision, *([args.compare] if args.compare else [])]
    subjects = [_subject(args, revision) for revision in revisions]
    if args.code:
        with refused_target(f"'{args.code}'"):
            Path(args.code).mkdir(parents=True, exist_ok=True)
    with progress(f"compiling {args.family} for {args.target}"):
        measured = measure(subjects)
    if args.code:
        for measurement in measured:  # over an earlier graph of its name
            subject = measurement.subject
            for number, code in enumerate(measurement.code):
                name = f"{subject.revision}-{subject.target}-graph{number}.py".replace("@", "-")
                write_text(str(Path(args.code) / name), code)
                yield Line("wrote", command=str(Path(args.code) / name))
    if args.execute:
        return (yield from _executed(measured))
    for measurement in measured:
        yield from kernel_rows(measurement)
    if args.compare:
        yield from show_comparison(measured)
    else:
        yield from show_measurement(measured[0])
    for measurement in measured:
        subject = measurement.subject
        yield from show_judgement(subject, judge(measurement.calls, subject.tokens))
    return ExitCode.HOLDS


def _executed(measured: Sequence[Measurement]) -> Document[ExitCode]:
    """Exit 0 when the launches were measured, whatever the verdicts on R10 and R14."""
    from deepstack_harness.cli.kernel_tables import show_executed, show_executed_beside, show_judgement
    from deepstack_harness.compile.kernel_rows import executed, executed_rows
    from deepstack_harness.contract.oracles.compiler import judge_step

    steps = [executed(measurement) for measurement in measured]
    for step in steps:
        yield from executed_rows(step)
    if len(steps) > 1:
        yield from show_executed_beside(steps)
    else:
        yield from show_executed(steps[0])
    for step in steps:
        subject = step.measured.subject
        for judgement in judge_step(step.accesses, subject.tokens):
            yield from show_judgement(subject, judgement)
    return ExitCode.HOLDS


def _subject(args: Namespace, revision: str) -> Subject:
    profile = args.capacity if args.profile_tokens is None else args.profile_tokens
    return record_of(Subject, args, revision=revision, profile_tokens=profile, code=args.code is not None)


def _payload_cost(args: Namespace) -> Document[ExitCode]:
    """Exit 0 when every model was timed, 3 when one could not be; its sentence is printed."""
    from deepstack_harness.cli.kernel_tables import show_payload_costs
    from deepstack_harness.compile.payload_costs import measure_payload_costs, payload_row, payload_work

    others = {name: default for name, default in args.of_sizes.items() if name != "target"}
    if options := options_in_use(args, others):
        raise UsageError(f"--payload-cost brings its own decoders and sizes: leave {options} out")
    work, problems = payload_work(args.target), 0
    with progress("timing steps") as say:
        say(f"timing steps of {work[0].name}")
        for timed in measure_payload_costs(work):
            for row in timed.rows:
                yield payload_row(row)
            yield from show_payload_costs(timed)
            problems += bool(timed.problem)
    return ExitCode.MACHINE if problems else ExitCode.HOLDS
