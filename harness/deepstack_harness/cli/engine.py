"""`engine`: a real engine, end to end, on tiny random models.

The table has a line for each schedule with the broken rules under it, and ends with a line for each class.
"""

from __future__ import annotations

import time
from argparse import ArgumentParser, Namespace
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from deepstack_harness.cli.arguments import add_source
from deepstack_harness.cli.output import progress
from deepstack_harness.contract.case import Regime
from deepstack_harness.contract.rules import Rule, names_of
from deepstack_harness.contract.verdicts import BROKEN, KEPT, Row, Verdict
from deepstack_harness.document.blocks import BLANK, Column, Document, Line, TextTable, outcome, table_line
from deepstack_harness.engines.live.judge import ORACLES, EngineResult
from deepstack_harness.errors import ExitCode
from deepstack_harness.options import finite, whole
from deepstack_harness.text import number, plural

if TYPE_CHECKING:
    from deepstack_harness.engines.live.models import TinyModel
    from deepstack_harness.sources.source import Source


def add_arguments(parser: ArgumentParser) -> None:
    """Add the engine, what is played on it, and what is put into it."""
    add_source(
        parser.add_mutually_exclusive_group(),
        "the engine; an environment that has one is given by its folder, and a release gets an environment "
        "of its own, with its build for CPUs",
    )
    parser.add_argument(
        "--family", action="append", default=[], metavar="F", help="play this family only, may be repeated"
    )
    parser.add_argument(
        "--schedule", action="append", default=[], metavar="NAME",
        help="play this schedule only, may be repeated",
    )  # fmt: skip
    parser.add_argument(
        "--mode",
        choices=("eager", "compile", "both"),
        default="both",
        help="uncompiled, compiled, or both (default)",
    )
    parser.add_argument(
        "--methods", metavar="SOURCE",
        help="put the get, set and clear of this source into the engine's class: a release (vllm==0.22.1) "
        "or a path",
    )  # fmt: skip
    parser.add_argument(
        "--regime", choices=("live", "captured", "both"), default="live",
        help="the exit code follows steps as they run here (live, default), emulated replays of CUDA graphs "
        "(captured), or both; all are played and printed",
    )  # fmt: skip
    parser.add_argument(
        "--search", type=finite, metavar="MINUTES",
        help="instead, draw schedules for so many minutes a family, and shrink one that breaks a rule",
    )  # fmt: skip
    parser.add_argument("--seed", type=whole, default=0, metavar="N", help="seed of the search (default 0)")
    parser.add_argument(
        "--record",
        metavar="FILE",
        help="also write the distinct orders of calls that were seen, for fixtures/orders",
    )
    parser.add_argument(
        "--dry-run",
        action="store_true",
        help="only say which environment and engines would be made and started",
    )


def run(args: Namespace) -> Document[ExitCode]:
    """Exit 0 when every rule that was judged passes in the regime that was chosen, 1 when not."""
    from deepstack_harness.engines.known import open_alone
    from deepstack_harness.engines.live.environment import find_home, plan_home
    from deepstack_harness.engines.live.play import EngineWork, play_engine
    from deepstack_harness.engines.live.search import search_engine
    from deepstack_harness.engines.live.session import methods_text

    methods = None if args.methods is None else open_alone(args.methods)
    models = _models(args, methods)
    if args.dry_run:
        for line in plan_home(args.source):
            yield Line(line)
        return ExitCode.HOLDS
    begun = time.monotonic()
    with progress("looking for the engine") as say:
        home = find_home(args.source, say)
    label = f"{home.label} with methods of {methods.label}" if methods else home.label
    texts = {} if methods is None else {model.family: methods_text(methods, model.family) for model in models}
    compiled = {"eager": (False,), "compile": (True,), "both": (False, True)}[args.mode]
    work = EngineWork(home, label, models, args.schedule, compiled, texts)
    results: list[EngineResult] = []
    yield Line("distance: largest difference of log-probabilities that should be equal; emulated graphs")
    yield TextTable(_COLUMNS)
    with progress(f"starting {label}") as say:
        minutes = args.search
        played = search_engine(work, 60 * minutes, args.seed, say) if minutes else play_engine(work, say)
        for result in played:
            yield from show_result(result)
            results.append(result)
    if args.record:
        count = work.recorder.write(Path(args.record))
        yield Line(f"wrote {plural(count, 'order')} to {args.record}")
    good = yield from sum_up(results, args.regime, time.monotonic() - begun)
    return ExitCode.HOLDS if good else ExitCode.BROKEN


def _models(args: Namespace, methods: Source | None) -> list[TinyModel]:
    from deepstack_harness.engines.known import engine_of
    from deepstack_harness.engines.live.models import MODELS, model_of
    from deepstack_harness.engines.live.schedules import schedules_of

    # Methods can be put into a class that has them itself; others inherit them, or have one function.
    having = MODELS if methods is None else engine_of(methods).by_methods
    every = [model for model in MODELS.values() if model.family in having]
    models = [model_of(name) for name in args.family] or every
    for model in models:
        schedules_of(model, args.schedule)
    return models


_COLUMNS = (
    Column("schedule", 27),
    Column("steps", 5, right=True),
    *(Column(head, 8, right=True) for head in ("replayed", "distance", "limit", "seconds")),
    Column("broken", 6),
)


def show_result(result: EngineResult) -> Document:
    """Print one result: the outputs that should be equal and are furthest apart, and what it breaks."""
    distances = [
        row
        for row in result.rows
        if row.rule is Rule.OUTPUT and row.value is not None and row.limit is not None
    ]
    worst = max(distances, key=lambda row: (row.verdict in BROKEN, row.value), default=None)
    played = [result.name, f"{result.order.model.family} {result.order.arm}"]
    played += [result.replay.name] if result.replay else []
    cells = [
        ", ".join(played), str(result.steps), str(result.replayed),
        number(worst.value if worst else None, 3) or "-",
        number(worst.limit if worst else None, 3) or "-",
        f"{result.seconds:.1f}", names_of(row.rule for row in result.broken),
    ]  # fmt: skip
    yield table_line(_COLUMNS, cells, "red" if result.broken else "")
    yield from result.rows
    for row in result.broken:
        yield Line(f"    {row.rule} {row.rule.word}: {row.detail} ({row.reach})", "red")


def sum_up(results: Sequence[EngineResult], regime: str, seconds: float) -> Document[bool]:
    """Print what each class passes and breaks, and the blind spots; return whether the regime is good."""
    rows = [row for result in results for row in result.rows]
    yield BLANK
    for name, (question, unseen) in ORACLES.items():
        yield Line(f"{name}: {question} Cannot see {unseen}.", "dim")
    met = frozenset().union(*(result.met for result in results))
    yield Line(f"met {len(met)} distinct pairs of dispatch and visual state", "dim")
    good = bool(rows)
    for label, model_class in sorted({(row.revision, row.model_class or "") for row in rows}):
        of_class = [row for row in rows if row.model_class == model_class]
        held = not any(
            row.verdict in {*BROKEN, Verdict.ERROR} and regime in ("both", row.regime) for row in of_class
        )
        yield outcome(f"{label}, {model_class}: {_kept_and_broken(of_class)}", good=held)
        good = good and held
    yield Line(f"{len(results)} results in {seconds:.0f} s")
    return good


def _kept_and_broken(rows: Sequence[Row]) -> str:
    parts = []
    for regime, name in ((Regime.LIVE, "live"), (Regime.CAPTURED, "emulated replays")):
        of_regime = [row for row in rows if row.regime is regime]
        broken = {row.rule for row in of_regime if row.verdict in BROKEN}
        kept = {row.rule for row in of_regime if row.verdict in KEPT} - broken
        unjudged = {row.rule for row in of_regime if row.verdict is Verdict.ERROR}
        if of_regime:
            verdict = f"breaks {names_of(broken)}" if broken else f"keeps {names_of(kept)}"
            parts.append(f"{name}: {verdict}" + (f", not judged {names_of(unjudged)}" if unjudged else ""))
    return "; ".join(parts)
