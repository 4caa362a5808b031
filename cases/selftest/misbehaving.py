"""Functions for children that `harness.isolate` has to survive."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

MARK = 0


def double(number: int) -> int:
    return 2 * number


def refuse(why: str) -> None:
    raise ValueError(why)


def crash() -> None:
    print("printed before", flush=True)
    os.kill(os.getpid(), signal.SIGSEGV)


def fused_attention(tokens: int) -> list[int]:
    """Torch's fused CPU attention, called as a compiled graph calls it; answers the shape of the output."""
    import torch

    rows = torch.ones(1, 4, tokens, 32)
    out, _ = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(rows, rows, rows, is_causal=True)
    return list(out.shape)


def hang(note: str) -> None:
    grandchild = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    Path(note).write_text(str(grandchild.pid))
    time.sleep(600)


def tell_and_hang(note: str) -> None:
    Path(note).write_text(str(os.getpid()))
    time.sleep(600)


def eat(megabytes: int) -> int:
    return len(bytearray(megabytes * 2**20)) // 2**20


def mark() -> int:
    return MARK


class Halfway:
    """Has the constructor of a buffer, and half of its methods."""

    def __init__(self, capacity: int, hidden: int, levels: int, *, dtype: object, device: object) -> None:
        self.made = (capacity, hidden, levels, dtype, device)

    def get(self, tokens: int) -> None:
        """Answer nothing."""

    def set(self, payload: object) -> None:
        """Keep nothing."""
