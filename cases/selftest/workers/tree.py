"""In place of any caller's work: a worker that hangs, with a daemon; both hold the witness of a test open."""

import os

from cases.selftest.workers import misbehaving


def play(**_: object) -> None:
    misbehaving._join(os.environ["WITNESS"])
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            misbehaving._tell("worker and daemon")
            misbehaving.hang()
        os._exit(0)
    misbehaving.hang()


bind = load = play
