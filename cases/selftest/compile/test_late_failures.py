"""`watch_guards` on programs that go wrong after calls in which every guard held."""

from collections.abc import Callable, Iterator
from functools import partial

import pytest
import torch

from cases.by_day import by_day
from cases.selftest.compile.late_programs import (
    AOT_WRONG,
    INDUCTOR_WRONG,
    LATE_RIGHT,
    LATE_WRONG,
    autocast,
    new_tensor_of_the_default_dtype,
)
from cases.selftest.compile.watched_programs import Compile, compile_without_guards, play
from deepstack_harness import watch_guards
from deepstack_harness.compile.watch_facts import WatchedRegions

Program = Callable[[Compile], Iterator[None]]


@pytest.fixture(autouse=True)
def fresh() -> None:
    torch.compiler.reset()


def name_of(value: object) -> str | None:
    return getattr(value, "__name__", None)


def watched_run(program: Program, backend: str) -> tuple[WatchedRegions, bool | None]:
    """Return what was watched, and whether the outputs differ; None where the graph raised."""
    with watch_guards() as watched:
        try:
            outputs = play(program, partial(compile_without_guards, backend=backend))
        except (RuntimeError, TypeError, IndexError):
            return watched, None
    return watched, any(
        compiled.shape != eager.shape
        or compiled.dtype != eager.dtype
        or compiled.requires_grad < eager.requires_grad
        or not torch.allclose(compiled, eager, atol=1e-4)
        for compiled, eager in zip(outputs.compiled, outputs.eager, strict=True)
    )


@pytest.mark.parametrize(
    ("program", "backend"),
    by_day(
        [
            *((wrong, "eager") for wrong in LATE_WRONG),
            *((wrong, "aot_eager") for wrong in AOT_WRONG),
            *(pytest.param(wrong, "inductor", marks=pytest.mark.slow) for wrong in INDUCTOR_WRONG),
        ],
        count=12,
    ),
    ids=name_of,
)
def test_a_late_failure_is_found_by_its_name(program: Program, backend: str) -> None:
    watched, differs = watched_run(program, backend)
    assert differs is not False
    names = {guard.name: str(guard.effect) for guard in watched.decisive}
    wanted = {**LATE_WRONG, **AOT_WRONG, **INDUCTOR_WRONG}[program]
    assert any(wanted in name for name in names), watched.report()
    assert all(guard.effect.distance for guard in watched.decisive), watched.report()


@pytest.mark.parametrize("backend", by_day(["eager", "aot_eager"], count=12))
@pytest.mark.parametrize("program", [*LATE_RIGHT, autocast, new_tensor_of_the_default_dtype], ids=name_of)
def test_nothing_decides_in_a_right_program(program: Program, backend: str) -> None:
    watched, differs = watched_run(program, backend)
    assert differs is False
    assert watched.decisive == [], watched.report()
