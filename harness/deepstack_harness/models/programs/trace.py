"""Sizes and steps, which a script has from its incident, and payloads of these sizes."""

from collections.abc import Callable

import torch
from torch import Tensor

LEVELS, HIDDEN, WIDTH, CAPACITY = 3, 128, 128, 16
STEPS = [("profile", 16), ("set", 9), ("forward", 16)]
seeded = torch.Generator().manual_seed(0)


def drawn(*sizes: int) -> Tensor:
    """Draw the next values, the same in every run."""
    return torch.randn(*sizes, generator=seeded)


def played(
    wrong: Callable[[str, Tensor, Tensor], str], set_payload: Callable[[Tensor], object] = len
) -> list[str]:
    """Play the steps: `wrong` is given each with (LEVELS, n, WIDTH) rows: its payload and zeros after it."""
    found, payload = [], drawn(LEVELS, 0, WIDTH)
    for op, tokens in STEPS:
        if op == "set":
            payload = drawn(LEVELS, tokens, WIDTH)
            set_payload(payload)
            continue
        rows = torch.nn.functional.pad(payload, (0, 0, 0, tokens - payload.size(1)))
        try:
            seen = wrong(op, drawn(tokens, HIDDEN), rows)
        except Exception as error:
            seen = " ".join(f"{type(error).__name__}: {error}".split())[:200]
        found += [f"{op} {tokens}: {seen}"] if seen else []
        payload = payload if op == "get" else drawn(LEVELS, 0, WIDTH)  # a step clears
    return found
