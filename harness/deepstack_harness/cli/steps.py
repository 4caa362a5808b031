"""`steps MODULE:NAME`: any function or module over calls that differ from its warm-up, compiled and not."""

from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from deepstack_harness.cli.output import write_text
from deepstack_harness.contract.arm import ArmSpec
from deepstack_harness.contract.oracles.promises import JudgedSteps, judge_steps, report_lines
from deepstack_harness.contract.steps import STEP_ARMS, SteppedHistory, SteppedTarget
from deepstack_harness.document.blocks import Document, Heading, Line, outcome
from deepstack_harness.errors import ExitCode, UsageError
from deepstack_harness.text import plural
from deepstack_harness.workers.outcomes import value_of
from deepstack_harness.workers.profiles import COMPILE, FOREIGN_LIMITS
from deepstack_harness.workers.remote import Remote
from deepstack_harness.workers.worker import Worker

_Calls = Callable[[Remote[Any], Mapping[str, object]], Any]
"""Calls a function where the target runs; raises a `HarnessError` for what it raises."""
_MOST_SCRIPTS = 3
"""Programs that are tried until one shows its finding; each compiles anew."""
_EXAMPLES_ARMS = ("eager/drop_all",)


def add_arguments(parser: ArgumentParser) -> None:
    """Add the name, the arms, and how steps are drawn."""
    parser.add_argument(
        "target",
        metavar="MODULE:NAME",
        help="or FILE.py:NAME: a function that returns (callable, steps); or a function, a module or its "
        "class, whose steps are drawn from its signature",
    )
    parser.add_argument(
        "--arm", action="append", dest="arms", metavar="A",
        help=f"an arm, may be repeated (default: {', '.join(STEP_ARMS)}; with --examples "
        f"{_EXAMPLES_ARMS[0]}); eager/full captures the warm-up and replays it",
    )  # fmt: skip
    parser.add_argument(
        "--warm-up", type=int, default=1, metavar="N", help="calls before serving (default 1)"
    )
    parser.add_argument(
        "--examples", type=int, default=0, metavar="N",
        help="vary the first call: each input by itself, then N longer histories that hypothesis draws",
    )  # fmt: skip
    parser.add_argument(
        "--script", metavar="F", help="write a program that shows the first finding and needs only torch"
    )


def run(args: Namespace) -> Document[ExitCode]:
    """Exit 0 when all that was put to the test holds, 1 when not, or when nothing was put to the test."""
    if not all(args.target.partition(":")):
        raise UsageError(f"'{args.target}' is not MODULE:NAME, as in my_package.model:step, or FILE.py:NAME")
    if args.warm_up < 1 or args.examples < 0:
        raise UsageError(f"--warm-up {args.warm_up} --examples {args.examples}: at least 1, and at least 0")
    arms = args.arms or list(STEP_ARMS if not args.examples else _EXAMPLES_ARMS)
    for arm in arms:
        ArmSpec.parse(arm)
    named = {"target": args.target, "warm_up": args.warm_up}
    with worker_calls(f"running {args.target}") as call:
        found: SteppedTarget = call(_MEASURE, {**named, "arms": arms, "drawn": bool(args.examples)})
        judged = [(history, judge_steps(history.region)) for history in found.histories]
        if args.examples and not any(result.broken for _, result in judged):
            from deepstack_harness.fuzz.steps import search

            longer = search(
                found.inputs, args.examples,
                lambda chosen: call(_DRAWN, {**named, "arms": arms, "chosen": chosen}),
            )  # fmt: skip
            judged += [(longer, judge_steps(longer.region))] if longer is not None else []
        for history, result in judged:
            for row in result.rows:
                yield replace(row, case=args.target, revision=args.target, trace=history.words)
        wrong = [(history, result) for history, result in judged if result.broken or result.unjudged]
        for history, result in judged if len(judged) == 1 else wrong:
            alone = len(judged) == 1
            if not alone:
                yield Heading(history.words)
            for line in report_lines(result):
                yield Line(line if alone else f"  {line}")
        if args.script:
            yield from _write_script(args.script, wrong, lambda shown: call(_WRITE, {**named, **shown}))
    return (yield from _end(args.target, judged, found.undrawn))


def _write_script(
    path: str, wrong: Sequence[tuple[SteppedHistory, JudgedSteps]], write: Callable[[dict[str, object]], str]
) -> Document:
    """Write the first program that was seen to show its finding; else print why there is none.

    A finding with a distance comes first: it is the easier one to show.
    """
    from deepstack_harness.play.written_programs import why_not_shown

    why = "nothing is broken"
    firsts = [
        (history, min(result.broken, key=lambda row: row.value is None))
        for history, result in wrong
        if result.broken
    ]
    firsts.sort(key=lambda first: first[1].value is None)
    for history, row in firsts[:_MOST_SCRIPTS]:
        shown = {"promise": row.rule, "arm": row.arm, "limit": row.limit or 0.0}
        try:
            text = write({"chosen": history.chosen, **shown})
            why = why_not_shown(text)
        except UsageError as error:
            why = str(error)
        if not why:
            write_text(path, text)
            yield Line(f"written: {path}, a program that shows it and needs only torch")
            return
    yield Line(f"not written: {path}: no program that needs only torch shows it: {why}")


def _end(
    target: str, judged: Sequence[tuple[SteppedHistory, JudgedSteps]], unvaried: Sequence[str]
) -> Document[ExitCode]:
    results = [result for _, result in judged]
    broken = sorted({str(row.rule) for result in results for row in result.broken})
    tested = sum(row.chances or 0 for result in results for row in result.rows)
    unjudged = [result for result in results if result.unjudged]
    undrawn = ", ".join(f"`{name}`" for name in unvaried)
    good = not broken and not unjudged and not undrawn and any(result.good for result in results)
    if len(judged) > 1:
        wrong = sum(bool(result.broken) for result in results)
        yield Line(f"{plural(len(judged), 'history')} drawn, {wrong or 'none'} of them broken")
    if broken:
        words = f"breaks {' '.join(broken)}"
    elif unjudged:
        words = "could not be judged"
    elif good:
        words = f"keeps what it promises of its inputs ({plural(tested, 'chance')})"
    else:
        words = "nothing was put to the test" if not tested else "not all inputs were put to the test"
    if undrawn:
        yield Line(
            f"not varied: {undrawn}, because no annotation gives other values: annotate with Tensor, "
            "a number or a dataclass of such, or name a function that returns (callable, steps)"
        )
    yield outcome(f"{target}: {words}", good=good)
    return ExitCode.HOLDS if good else ExitCode.BROKEN


@contextmanager
def worker_calls(doing: str) -> Iterator[_Calls]:
    """Start a worker for code of the user; yield what calls it, and end it with the block."""
    with Worker(FOREIGN_LIMITS, preload=_WORK, sandbox=COMPILE) as worker:
        yield lambda remote, arguments: value_of(worker.call(remote, arguments), doing)


_WORK = "deepstack_harness.play.steps_work"
_MEASURE = Remote(f"{_WORK}:measure_target", SteppedTarget)
_DRAWN = Remote(f"{_WORK}:measure_drawn", SteppedHistory)
_WRITE = Remote(f"{_WORK}:write_shown", str)
