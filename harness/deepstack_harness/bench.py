"""`python -m deepstack_harness.bench`: what the harness costs, as ratios of things measured in one run.

Times are those of this machine; the ratios are what can be compared.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from deepstack_harness.catalogue.incidents import find
from deepstack_harness.catalogue.matrix import Planned, Where, plan_incident
from deepstack_harness.contract.arm_spec import ArmSpec, GuardPolicy
from deepstack_harness.contract.rules import Rule

if TYPE_CHECKING:
    from torch import Tensor

    from deepstack_harness.play import Model

_REPEATS = 5
_INCIDENT = "43602"
_FAMILY = "qwen3_vl"
_TOKENS = 16


def main(argv: Sequence[str] | None = None) -> int:
    """Measure everything, or with `--bare` be the bare script that `repro` is compared with."""
    parser = argparse.ArgumentParser(
        prog="python -m deepstack_harness.bench", description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument(
        "--source", metavar="PATH", help="also time binding this local source (wheel or tree)"
    )
    parser.add_argument("--bare", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args(argv)
    if args.bare:
        compile_bare()
        return 0
    for line in measure(args.source):
        print(line, flush=True)
    return 0


def measure(source: str | None) -> Iterator[str]:
    """One line per ratio."""
    importing = _best(["-c", "import torch"])
    helping = _best(["-m", "deepstack_harness", "--help"])
    yield _ratio("'python -m deepstack_harness --help'", helping, "'import torch'", importing, 1 / 3)
    if source is not None:
        yield f"binding {source}: {bind_seconds(source):.3f} s, limit 0.300 s"
    yield from fuzzing()
    bare = _cold(["-m", "deepstack_harness.bench", "--bare"])
    repro = _cold(["-m", "deepstack_harness", "repro", _INCIDENT, "--quiet"])
    yield _ratio(f"'repro {_INCIDENT}'", repro, "a bare script with the same compilations", bare, 1.3)


def fuzzing() -> Iterator[str]:
    """Steps a second of a hunt, on a buffer alone and on a compiled decoder."""
    from deepstack_harness.fuzzing.throughput import alone_steps_per_second, beside_bare_loop

    yield f"fuzzing a buffer alone: {alone_steps_per_second():.0f} steps/s, at least 1000"
    for arm in ("eager/drop_all", "inductor/drop_all"):
        rate, ratio = beside_bare_loop(ArmSpec.parse(arm))
        yield (
            f"fuzzing {arm}: {rate:.0f} steps/s; against a bare loop of eager, compiled "
            f"and control: ratio {ratio:.2f}, limit 1.50"
        )


def bind_seconds(source: str) -> float:
    """Seconds to find and bind the class of a local source for the first time, after torch is imported."""
    from deepstack_harness.engines.classes import methods_of
    from deepstack_harness.engines.known import open_source

    return _seconds(lambda: methods_of(open_source(source), _FAMILY))


def compile_bare() -> None:
    """What `repro` compiles, with torch alone: no buffers, probes, oracles or tables."""
    import torch

    from deepstack_harness.play import Model

    torch.set_num_threads(1)
    model = Model.build(_FAMILY)
    with torch.no_grad():
        for planned in plan_incident(find(_INCIDENT), Where(_FAMILY)):
            if planned.case.arm.compiled:
                _compile_and_run(planned, model)


def _compile_and_run(planned: Planned, model: Model) -> None:
    import torch

    from deepstack_harness.torch_compat import dynamo

    arm = planned.case.arm
    torch.compiler.reset()
    forward = torch.compile(
        model.decoder.forward,
        fullgraph=True,
        dynamic=False,
        backend=str(arm.backend),
        options={"guard_filter_fn": _guard_filter(arm.guards)},
    )
    for payload in _payloads(planned, model):
        hidden, positions = (
            torch.randn(_TOKENS, model.family.hidden),
            model.family.positions(_TOKENS, model.device),
        )
        for tensor, dim in [(hidden, 0), (positions, 1), *((level, 0) for level in payload or ())]:
            dynamo.mark_dynamic(tensor, dim)
        forward(hidden, positions, payload)


def _guard_filter(policy: GuardPolicy) -> Callable[[Sequence[Any]], Sequence[bool]]:
    import torch

    filters: dict[GuardPolicy, Callable[[Sequence[Any]], Sequence[bool]]] = {
        GuardPolicy.STOCK: lambda guards: [True] * len(guards),
        GuardPolicy.SHAPE_ENV_ONLY: lambda guards: [guard.guard_type == "SHAPE_ENV" for guard in guards],
        GuardPolicy.KEEP_TENSOR: torch.compiler.keep_tensor_guards_unsafe,
        GuardPolicy.DROP_ALL: torch.compiler.skip_all_guards_unsafe,
    }
    return filters[policy]


def _payloads(planned: Planned, model: Model) -> Iterator[tuple[Tensor, ...] | None]:
    """What the two decoder calls of the incident's traces are given; the second may not be reached."""
    import torch

    broken = planned.must_break or frozenset()
    levels = tuple(torch.randn(_TOKENS, model.family.hidden) for _ in range(model.family.levels))
    yield None if Rule.R1 in broken else levels
    if Rule.R2 not in broken:
        yield levels


def _best(words: Sequence[str]) -> float:
    return min(_seconds(lambda: _python(words)) for _ in range(_REPEATS))


def _cold(words: Sequence[str]) -> float:
    # Inductor keeps what it compiled on the disk: each side starts with an empty cache.
    with tempfile.TemporaryDirectory() as folder:
        return _seconds(lambda: _python(words, folder))


def _python(words: Sequence[str], inductor_cache: str | None = None) -> None:
    environment = {**os.environ, **({"TORCHINDUCTOR_CACHE_DIR": inductor_cache} if inductor_cache else {})}
    subprocess.run([sys.executable, *words], check=True, stdout=subprocess.DEVNULL, env=environment)


def _seconds(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def _ratio(one: str, seconds: float, other: str, reference: float, limit: float) -> str:
    ratio = seconds / reference
    return f"{one} {seconds:.2f} s, {other} {reference:.2f} s: ratio {ratio:.2f}, limit {limit:.2f}"


if __name__ == "__main__":
    sys.exit(main())
