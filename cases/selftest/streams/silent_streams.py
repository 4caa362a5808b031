"""What a process that plays real streams may do instead; called as `streams.on_gpu:play`."""

import os
import signal
import time


def hang(**_: object) -> None:
    time.sleep(600)


def crash(**_: object) -> None:
    os.kill(os.getpid(), signal.SIGSEGV)


def answer(variant: str, source: str | None, device: str, repetitions: int) -> dict[str, object]:
    return {"device": device, "repetitions": repetitions, "different": 2, "first": f"{variant} of {source}"}
