"""`engine`: a real engine, end to end, on tiny random models."""

from __future__ import annotations

import time
from argparse import ArgumentParser, Namespace
from pathlib import Path
from typing import TYPE_CHECKING

from deepstack_harness.commands.arguments import finite, whole
from deepstack_harness.commands.source_arguments import add_source
from deepstack_harness.contract.plural import plural
from deepstack_harness.errors import ExitCode
from deepstack_harness.reporting.terminal.output import Output

if TYPE_CHECKING:
    from deepstack_harness.live_engine.environment import EngineHome
    from deepstack_harness.live_engine.models.tiny import TinyModel
    from deepstack_harness.live_engine.play import EngineWork
    from deepstack_harness.sources.source import Source

SUMMARY = "run a real engine end to end on tiny models, under schedules of requests"


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


def run(args: Namespace, output: Output) -> ExitCode:
    """Exit 0 when every rule that was judged is kept in the regime asked for, 1 when not."""
    from deepstack_harness.live_engine.homes import find_home, plan_home
    from deepstack_harness.live_engine.play import play_engine
    from deepstack_harness.live_engine.search import search_engine
    from deepstack_harness.reporting.terminal.engine_table import EngineTable

    methods = _methods(args)
    models = _models(args, methods)
    if args.dry_run:
        for line in plan_home(args.source):
            output.line(line)
        return ExitCode.HOLDS
    begun = time.monotonic()
    home = find_home(args.source, output.line)
    label = f"{home.label} with methods of {methods.label}" if methods else home.label
    work = _work(args, home, label, models, methods)
    table = EngineTable(output)
    with output.progress(f"starting {label}") as say:
        minutes = args.search
        results = search_engine(work, 60 * minutes, args.seed, say) if minutes else play_engine(work, say)
        for result in results:
            table.show(result)
    if args.record:
        count = work.recorder.write(Path(args.record))
        output.line(f"wrote {plural(count, 'order')} to {args.record}")
    good = table.close(args.regime, time.monotonic() - begun)
    return ExitCode.HOLDS if good else ExitCode.BROKEN


def _models(args: Namespace, methods: Source | None) -> list[TinyModel]:
    from deepstack_harness.engines.known import engine_of
    from deepstack_harness.live_engine.models.known import MODELS, model_of
    from deepstack_harness.live_engine.schedules import schedules_of

    # Methods can be put into a class that has them itself; others inherit them, or have one function.
    having = MODELS if methods is None else engine_of(methods).by_methods
    every = [model for model in MODELS.values() if model.family in having]
    models = [model_of(name) for name in args.family] or every
    for model in models:
        schedules_of(model, args.schedule)
    return models


def _methods(args: Namespace) -> Source | None:
    from deepstack_harness.engines.known import open_alone

    return None if args.methods is None else open_alone(args.methods)


def _work(
    args: Namespace, home: EngineHome, label: str, models: list[TinyModel], methods: Source | None
) -> EngineWork:
    from deepstack_harness.live_engine.methods import methods_text
    from deepstack_harness.live_engine.play import EngineWork

    texts = {} if methods is None else {model.family: methods_text(methods, model.family) for model in models}
    compiled = {"eager": (False,), "compile": (True,), "both": (False, True)}[args.mode]
    return EngineWork(home, label, models, args.schedule, compiled, texts)
