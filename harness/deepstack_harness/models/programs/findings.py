"""A trace on a buffer: what its get returns against the payload that was set last."""

import sys
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from deepstack_harness.models.programs.methods import their_buffer

LEVELS, HIDDEN, CAPACITY = 3, 8, 16
CALLS = [("set", 9, 3, 8), ("get", 16, 3, 8), ("clear", 16, 3, 8)]


def buffer_of_copy(
    capacity: int, hidden: int, levels: int, *, dtype: torch.dtype, device: torch.device
) -> Any:
    return their_buffer(Path(sys.argv[1]), capacity, hidden, levels)


Buffer: Any = buffer_of_copy


def is_right(levels: Any, payload: Tensor, tokens: int) -> bool:
    wanted = torch.zeros(LEVELS, tokens, HIDDEN)  # the payload's rows, then zeros
    wanted[:, : payload.size(1)] = payload[:, :tokens]
    pairs = zip(levels or (), wanted, strict=False)
    alike = [(level.dtype, level.shape) == (row.dtype, row.shape) for level, row in pairs]
    return alike == [True] * LEVELS and all(map(torch.equal, levels, wanted))


def faults_of_buffer() -> list[str]:
    torch.manual_seed(0)
    buffer = Buffer(CAPACITY, HIDDEN, LEVELS, dtype=torch.float32, device=torch.device("cpu"))
    payload, capacity, outputs, found = torch.zeros(LEVELS, 0, HIDDEN), CAPACITY, [], []
    places: dict[int, list[int]] = {}
    for op, tokens, *sizes in CALLS:
        given: Any = torch.randn(sizes[0], tokens, sizes[1]) if op == "set" else tokens
        lent: Any = given.clone() if op == "set" else tokens
        bad = tokens < 0 or sizes != [LEVELS, HIDDEN] or (op == "resize" and tokens < payload.size(1))
        try:
            rows = getattr(buffer, op)(lent)
        except Exception as error:
            fits = not bad and tokens <= capacity and op != "resize"
            found += [f"{op} {tokens} raised {error!r}"] if fits else []
            continue
        found += [f"{op} {tokens} was accepted"] if bad else []
        capacity = tokens if op == "resize" else max(capacity, tokens if op != "clear" else 0)
        if op == "set":
            payload, _ = given, lent.fill_(-1000)  # a caller may reuse its tensor
        elif op == "clear":
            payload = payload[:, :0]
        elif op == "get" and not bad:
            found += [] if is_right(rows, payload, tokens) else [f"get {tokens}: wrong rows, or None"]
            outputs.append(rows)  # freed storage could come back at its old address
            where = [level.data_ptr() for level in rows or () if tokens]
            if where and places.setdefault(getattr(buffer, "generation", 0), where) != where:
                found.append(f"get {tokens} gave other storage without a notice")
    return found
