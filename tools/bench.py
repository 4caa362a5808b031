"""`python -m tools.bench`: measure what the harness costs, as ratios of things measured in one run.

The figures are the start of the command line beside `import torch`, binding a local source, fuzzing (steps a
second, and the time against a bare loop over the same token counts), and `repro` beside a bare script that
compiles the same with torch alone. Times are those of this machine; the ratios are what can be compared.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import torch
from torch import Tensor

from deepstack_harness.catalogue.incidents import decisive, find
from deepstack_harness.catalogue.plans import Where, plan_incident
from deepstack_harness.compile.torch_compat import dynamo
from deepstack_harness.contract.arm import EAGER, ArmSpec, Backend, GuardPolicy
from deepstack_harness.contract.case import PlannedCase, registered
from deepstack_harness.contract.protocols import Inputs
from deepstack_harness.contract.rules import Rule
from deepstack_harness.contract.trace import RUNS_DECODER, Trace
from deepstack_harness.files import read_regular, write_atomically
from deepstack_harness.play.model import Model

if TYPE_CHECKING:
    from deepstack_harness.fuzz.faults import Progress

_REPEATS = 5
_INCIDENT = "43602"
_FAMILY = "qwen3_vl"
_TOKENS = 16
_HUNT_STEP_S = 300.0


class BenchFigure(msgspec.Struct, frozen=True):
    """Figure of one measurement: its value and the limit that it is meant to keep, in `unit`.

    `limit` is an upper one, or a lower one for rates (`unit` "steps/s"). `detail` has the times in seconds.
    """

    name: str
    value: float
    limit: float
    unit: str
    detail: str


def main(argv: Sequence[str] | None = None) -> int:
    """Measure everything, or with `--bare` be the bare script that `repro` is compared with.

    That script compiles the pair under Inductor that `repro` ends with, or with `--full` all that it does.
    """
    parser = argparse.ArgumentParser(
        prog="python -m tools.bench", description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument(
        "--source", metavar="PATH", help="also time binding this local source (wheel or tree)"
    )
    parser.add_argument("--json", metavar="FILE", type=Path, help="write one JSON object per figure")
    parser.add_argument(
        "--history",
        metavar="DIR",
        type=Path,
        help="folder of nights: print the median of earlier figures too",
    )
    parser.add_argument("--bare", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--full", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args(argv)
    if args.bare:
        compile_bare(full=args.full)
        return 0
    earlier = read_earlier(args.history, args.json) if args.history else {}
    figures = []
    for figure in measure(args.source):
        figures.append(figure)
        print(sentence(figure, earlier.get(figure.name, ())), flush=True)
        if args.json:
            write_atomically(args.json, b"".join(msgspec.json.encode(each) + b"\n" for each in figures))
    return 0


def sentence(figure: BenchFigure, earlier: Sequence[float]) -> str:
    """Return one line about a figure, with the median of earlier nights where there are any."""
    bound = "at least" if figure.unit == "steps/s" else "at most"
    line = f"{figure.name}: {figure.value:.2f} {figure.unit}, {bound} {figure.limit:.2f}"
    if figure.detail:
        line += f" ({figure.detail})"
    return f"{line}; median of {len(earlier)} earlier {statistics.median(earlier):.2f}" if earlier else line


def read_earlier(history: Path, written: Path | None) -> dict[str, list[float]]:
    """Return the values of each figure in the `bench.jsonl` of a folder of nights; a torn line is skipped."""
    values: dict[str, list[float]] = {}
    for path in sorted(history.glob("*/bench.jsonl")):
        if written is not None and path.resolve() == written.resolve():
            continue
        for line in read_regular(path).splitlines():
            with suppress(msgspec.DecodeError, msgspec.ValidationError):
                figure = msgspec.json.decode(line, type=BenchFigure)
                values.setdefault(figure.name, []).append(figure.value)
    return values


def measure(source: str | None) -> Iterator[BenchFigure]:
    """Yield each figure as it is measured."""
    importing = _best_of(["-c", "import torch"])
    helping = _best_of(["-m", "deepstack_harness", "--help"])
    yield _ratio("'python -m deepstack_harness --help'", helping, "'import torch'", importing, 1 / 3)
    if source is not None:
        yield BenchFigure(f"binding {Path(source).name}", bind_seconds(source), 0.3, "s", "")
    yield from fuzzing()
    for words, limit in (([], 1.5), (["--full"], 1.3)):
        bare = _with_cold_cache(["-m", "tools.bench", "--bare", *words])
        repro = _with_cold_cache(["-m", "deepstack_harness", "repro", _INCIDENT, "--quiet", *words])
        name = f"'{' '.join(['repro', _INCIDENT, *words])}'"
        compiled = "the same compilations" if words else "the same pair under Inductor"
        yield _ratio(name, repro, f"a bare script that compiles {compiled}", bare, limit)


def _best_of(words: Sequence[str]) -> float:
    return min(_seconds(lambda: _python(words)) for _ in range(_REPEATS))


def _with_cold_cache(words: Sequence[str]) -> float:
    # Inductor caches what it compiled on the disk: each side starts with an empty cache.
    with tempfile.TemporaryDirectory() as folder:
        return _seconds(lambda: _python(words, folder))


def _python(words: Sequence[str], inductor_cache: str | None = None) -> None:
    environment = {**os.environ, **({"TORCHINDUCTOR_CACHE_DIR": inductor_cache} if inductor_cache else {})}
    subprocess.run([sys.executable, *words], check=True, stdout=subprocess.DEVNULL, env=environment)


def _seconds(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def _ratio(name: str, seconds: float, other: str, reference: float, limit: float) -> BenchFigure:
    detail = f"{seconds:.2f} s, {other} {reference:.2f} s"
    return BenchFigure(name, seconds / reference, limit, "times", detail)


def bind_seconds(source: str) -> float:
    """Return the seconds to find and bind the class of a local source for the first time.

    torch is imported before.
    """
    from deepstack_harness.engines.classes import methods_of
    from deepstack_harness.engines.known import open_source

    return _seconds(lambda: methods_of(open_source(source), _FAMILY))


def fuzzing() -> Iterator[BenchFigure]:
    """Yield the rate of a hunt on a buffer alone, and its cost over a bare loop on compiled decoders."""
    yield BenchFigure("fuzzing a buffer alone", steps_per_second_alone(), 1000, "steps/s", "")
    for arm in ("eager/drop_all", "inductor/drop_all"):
        rate, ratio = beside_bare_loop(ArmSpec.parse(arm))
        against = f"{rate:.0f} steps/s, against a bare loop of eager, compiled and control"
        yield BenchFigure(f"fuzzing {arm}", ratio, 1.3, "times", against)


def steps_per_second_alone(examples: int = 300) -> float:
    """Return the steps a second of a buffer alone, reads of all rows included; `reference`, one thread."""
    return _hunt(EAGER, examples)[0].steps_per_second


def beside_bare_loop(arm: ArmSpec, examples: int = 200) -> tuple[float, float]:
    """Return (steps a second, time against that of a bare loop) of a compiled arm; both compile once.

    The loop runs eager, compiled and the zeroed control on the same counts, and compares them.
    """
    progress, tokens = _hunt(arm, examples)
    _bare_loop_seconds(arm, tokens[:2])  # what is imported once for all, 2 s, counts for neither side
    return progress.steps_per_second, progress.seconds / _bare_loop_seconds(arm, tokens)


def _hunt(arm: ArmSpec, examples: int) -> tuple[Progress, list[int]]:
    """Hunt in the buffer `reference`; return its progress, and the tokens of each run of the decoder."""
    # hypothesis takes a second to import, which `--bare` must not pay for.
    from deepstack_harness.fuzz.faults import Target, Watch
    from deepstack_harness.fuzz.hunt import hunt
    from deepstack_harness.fuzz.player import WorkerPlayer

    class TokenCounts(Watch):
        """Watch that notes how many tokens each run of the decoder had."""

        def __init__(self) -> None:
            self.tokens: list[int] = []

        def on_example(self, progress: Progress, trace: Trace) -> None:
            self.tokens += [step.tokens for step in trace if step.op in RUNS_DECODER]

    target, watch = Target(registered("reference"), arm, _FAMILY), TokenCounts()
    with closing(WorkerPlayer(step_s=_HUNT_STEP_S)) as player:
        hunt(target, player, examples=2)  # warms up what is imported or cached once for all
        progress = hunt(target, player, examples=examples, watch=watch).progress
    return progress, watch.tokens


def _bare_loop_seconds(arm: ArmSpec, tokens: Sequence[int]) -> float:
    from deepstack_harness.compile.captured import open_arm
    from deepstack_harness.fuzz.hunt import CAPACITY

    torch.set_num_threads(1)
    model = Model.build(_FAMILY)
    start = time.perf_counter()
    with torch.no_grad(), closing(open_arm(arm, model.decoder, model.profile(CAPACITY))) as session:
        for count in tokens:
            hidden, *levels = (
                torch.randn(count, model.family.hidden) for _ in range(1 + model.family.levels)
            )
            inputs = Inputs(hidden, model.family.positions(count, model.device), tuple(levels))
            zeros = tuple(torch.zeros_like(hidden) for _ in levels)
            eager = model.decoder(inputs.hidden, inputs.positions, inputs.payload)
            control = model.decoder(inputs.hidden, inputs.positions, zeros)
            out = session.forward(inputs)
            if count:
                _ = (out - eager).abs().max().item(), (control - eager).abs().max().item()
    return time.perf_counter() - start


def compile_bare(*, full: bool) -> None:
    """Compile with torch alone what `repro` compiles under Inductor, or all that `repro --full` compiles.

    There are no buffers, probes, oracles or tables.
    """
    torch.set_num_threads(1)
    model, incident = Model.build(_FAMILY), find(_INCIDENT)
    every = plan_incident(incident, Where(_FAMILY))
    pair = [each for each in decisive(incident, every) if each.case.arm.backend is Backend.INDUCTOR]
    with torch.no_grad():
        for planned in every if full else pair:
            if planned.case.arm.compiled:
                _compile_and_run(planned, model)


def _compile_and_run(planned: PlannedCase, model: Model) -> None:
    arm = planned.case.arm
    torch.compiler.reset()
    forward = torch.compile(
        model.decoder.forward,
        fullgraph=True,
        dynamic=False,
        backend=arm.backend.compiler,
        options={"guard_filter_fn": _GUARD_FILTERS[arm.guards]},
    )
    for payload in _payloads(planned, model):
        hidden = torch.randn(_TOKENS, model.family.hidden)
        positions = model.family.positions(_TOKENS, model.device)
        for tensor, dim in [(hidden, 0), (positions, 1), *((level, 0) for level in payload or ())]:
            dynamo.mark_dynamic(tensor, dim)
        forward(hidden, positions, payload)


_GUARD_FILTERS: dict[GuardPolicy, Callable[[Sequence[Any]], Sequence[bool]]] = {
    GuardPolicy.STOCK: lambda guards: [True] * len(guards),
    GuardPolicy.SHAPE_ENV_ONLY: lambda guards: [guard.guard_type == "SHAPE_ENV" for guard in guards],
    GuardPolicy.KEEP_TENSOR: torch.compiler.keep_tensor_guards_unsafe,
    GuardPolicy.DROP_ALL: torch.compiler.skip_all_guards_unsafe,
}


def _payloads(planned: PlannedCase, model: Model) -> Iterator[tuple[Tensor, ...] | None]:
    """Yield the payload of each decoder call of the incident's traces: a (tokens, hidden) tensor per level.

    The second call may not be reached.
    """
    broken = planned.must_break or frozenset()
    levels = tuple(torch.randn(_TOKENS, model.family.hidden) for _ in range(model.family.levels))
    yield None if Rule.STRUCTURE in broken else levels
    if Rule.BOUNDARY not in broken:
        yield levels


if __name__ == "__main__":
    sys.exit(main())
