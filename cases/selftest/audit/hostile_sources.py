"""Sources that end, fool, flood or leave the worker that runs them, by the way in which they do it."""

import textwrap
from pathlib import Path

from cases.selftest.engines.synthetic_vllm import (
    GET,
    HANDS_ON,
    HEADER,
    INIT,
    INNER_MODEL,
    SET,
    ModelFile,
    Vllm,
)

WRONG = "return None"
"""What a get does to be wrong: a mechanism that hides faults has one to hide."""

IN_GET = {
    # Ends
    "exit": "raise SystemExit(0)",
    "exit at once": "import os; os._exit(0)",
    "quit by name": "quit(0)",
    "kill itself": "import os, signal; os.kill(os.getpid(), signal.SIGKILL)",
    "end itself": "import os, signal; os.kill(os.getpid(), signal.SIGTERM)",
    "segmentation fault": "import ctypes; ctypes.string_at(0)",
    "abort": "import os; os.abort()",
    "interrupt": "raise KeyboardInterrupt",
    "generator exit": "raise GeneratorExit",
    "end later from a thread": """
        import os, threading
        threading.Timer(0.05, os._exit, [0]).start()
        """,
    "alarm": "import signal; signal.setitimer(signal.ITIMER_REAL, 0.05)",
    # Endless
    "loop": "while True: pass",
    "sleep": "import time; time.sleep(100000)",
    "stop itself": "import os, signal; os.kill(os.getpid(), signal.SIGSTOP)",
    "loop that catches everything": """
        while True:
            try:
                while True: pass
            except BaseException: pass
        """,
    "deadlock": "import threading; lock = threading.Lock(); lock.acquire(); lock.acquire()",
    # Too much
    "memory": "kept = [bytearray(2 ** 28) for _ in range(64)]",
    "recursion": "self._get_deepstack_input_embeds(num_tokens)",
    "deep recursion": """
        import sys
        sys.setrecursionlimit(10 ** 9)
        def down(): return [down()]
        down()
        """,
    "output": """
        import os
        while True: os.write(1, b"x" * 65536)
        """,
    "output without end of line": """
        while True: print("x" * 65536, end="")
        """,
    "a file": """
        import tempfile
        with open(tempfile.mktemp(), "wb") as file:
            while True: file.write(bytes(2 ** 26))
        """,
    "a message": "raise ValueError('x' * 10 ** 8)",
    # Processes
    "fork": """
        import os
        if os.fork() == 0: os._exit(0)
        """,
    "fork that goes on": "import os; os.fork()",
    "fork bomb": """
        import os
        while True: os.fork()
        """,
    "daemon": """
        import os, time
        if os.fork() == 0:
            os.setsid()
            if os.fork() == 0:
                time.sleep(100000)
            os._exit(0)
        """,
    "program": "import subprocess; subprocess.run(['sleep', '100000'])",
    "replace itself": "import os; os.execv('/bin/true', ['true'])",
    # Elsewhere
    "write": "open(OUTSIDE + '/new', 'w').close()",
    "write over": "open(OUTSIDE + '/there', 'w').close()",
    "remove": "import os; os.unlink(OUTSIDE + '/there')",
    "network": """
        import socket
        socket.create_connection(('127.0.0.1', 9), timeout=1)
        """,
    "listen": "import socket; socket.create_server(('127.0.0.1', 0))",
    "signal its parent": "import os, signal; os.kill(os.getppid(), signal.SIGKILL)",
    # The messages
    "close the messages": "import os; os.closerange(3, 64)",
    "garbage in the messages": """
        import os
        for stream in range(3, 64):
            try: os.write(stream, b'{"kind": "answered"}')
            except OSError: pass
        """,
    "forged answer": """
        import os
        for stream in range(3, 64):
            try: os.write(stream, b'{"call": 2, "kind": "answered", "value": {}}' + bytes([10]))
            except OSError: pass
        """,
    # Excuses and disguises
    "our error": """
        from deepstack_harness.errors import MachineError
        raise MachineError("no GPU here")
        """,
    "unavailable": """
        from deepstack_harness.errors import StepUnavailable
        raise StepUnavailable("no such step")
        """,
    "out of memory by name": "raise type('OutOfMemory', (Exception,), {})('not enough memory')",
    "text that raises": """
        class Silent(Exception):
            def __str__(self): raise SystemExit(0)
        raise Silent
        """,
    "no modules": """
        import sys
        sys.modules.clear()
        return None
        """,
    "another oracle": f"""
        import sys
        for name, module in list(sys.modules.items()):
            if name.startswith("deepstack_harness.contract.oracles"):
                for each in [each for each in vars(module) if "judge" in each]:
                    setattr(module, each, lambda *_, **__: ())
        {WRONG}
        """,
    "another probe": f"""
        import sys
        rows = sys.modules["deepstack_harness.play.rows"]
        rows.RowOwners.runs = lambda _, level: (rows._ZERO._replace(rows=level.size(0)),)
        {WRONG}
        """,
    "another class": f"""
        from deepstack_harness.play import model as in_process; from deepstack_harness.play import player
        import deepstack_harness.models.reference as right
        type(self)._get_deepstack_input_embeds = lambda *_: None
        {WRONG}
        """,
    "exit handler": f"""
        import atexit, time
        atexit.register(time.sleep, 100000)
        {WRONG}
        """,
}  # fmt: skip
"""Statements at the beginning of the method that gets the payload."""


def source(mechanism: str, folder: Path, outside: Path) -> Path:
    """Write a tree with one of the mechanisms; return its root.  `outside` is a folder that it attacks."""
    return Vllm("0.10.0", ELSEWHERE.get(mechanism) or _in_get(mechanism, outside)).tree(folder)


def _in_get(mechanism: str, outside: Path) -> str:
    lines = textwrap.dedent(IN_GET[mechanism]).strip().replace("OUTSIDE", repr(str(outside)))
    head, _, rest = GET.partition("\n")
    return _model(get=f"{head}\n{textwrap.indent(lines, '    ')}\n{rest}")


def _model(**parts: str) -> str:
    return str(ModelFile(more=HANDS_ON, **parts)) + INNER_MODEL


ELSEWHERE = {
    "exit in set": _model(
        set=SET.replace("    self.filled =", "    raise SystemExit(0)\n    self.filled =", 1)
    ),
    "exit in init": _model(init=INIT.replace("        self.filled = 0", "        raise SystemExit(0)")),
    "loop in init": _model(init=INIT.replace("        self.filled = 0", "        while True: pass")),
    "exit in a constant": _model(header=HEADER.replace("FIRST_LEVEL = 0", "FIRST_LEVEL = exit(0)")),
    "power in a constant": _model(header=HEADER.replace("FIRST_LEVEL = 0", "FIRST_LEVEL = 9 ** 9 ** 9")),
    "exit in a default": _model(get=GET.replace("level, count", "level, count, more=exit(0)")),
    "huge storage": _model(init=INIT.replace("max_num_batched_tokens", "max_num_batched_tokens * 10 ** 9")),
}
"""Model files with a mechanism outside of the method that gets."""
MECHANISMS = (*IN_GET, *ELSEWHERE)
