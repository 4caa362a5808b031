"""How the script of a region judges its calls: changed, and as they are, from an equal state."""

from collections.abc import Callable
from typing import Any

import torch

from deepstack_harness.models.programs.graphs import SmallGraph, compile_as_engines_do


def compiled(region: Any, *options: Any) -> Callable[..., Any]:
    code = region if isinstance(region, torch.nn.Module) or hasattr(region, "__code__") else region.__call__
    return compile_as_engines_do(code)


def replayed(region: Any, *options: Any) -> Callable[..., Any]:
    graphs: list[SmallGraph] = []

    def run(*args: Any, **kwargs: Any) -> Any:
        if graphs:  # a later call replays the first, on the tensors that were captured
            return graphs[0].replay()
        graphs.append(SmallGraph(lambda: region(*args, **kwargs)))
        return graphs[0].out.clone()

    return run


def in_parts(region: Any, options: Any) -> Callable[..., Any]:
    return lambda *args: torch.cat([region(**part) for part in options["split"](*args)])


def outcome(program: Callable[[], Any], change: Callable[..., Any] | None) -> list[list[torch.Tensor]]:
    torch.manual_seed(0)
    region, steps, *options = program()
    run, left = change(region, *options) if change else region, []
    for step in steps:
        if callable(step):
            step(region)
            continue
        args, kwargs = ((), step) if isinstance(step, dict) else (step, {})
        values = (run(*args, **kwargs), *args, *kwargs.values())  # the output, and what is left in arguments
        left.append([value.detach().float().clone() for value in values if torch.is_tensor(value)])
    return left


def faults(program: Callable[[], Any], change: Callable[..., Any]) -> list[str]:
    found = []
    for number, (wanted, got) in enumerate(
        zip(outcome(program, None), outcome(program, change), strict=True), 1
    ):
        off = max(float((before - after).abs().max()) for before, after in zip(wanted, got, strict=True))
        found += [f"call {number}: off from the uncompiled code by {off:.3g}"] if off > 1e-4 else []
    return found
