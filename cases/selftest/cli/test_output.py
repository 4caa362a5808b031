"""Rows of a table on a terminal of 80 columns, and in a pipe."""

import os
import pty
import subprocess
import sys

COMMAND = [sys.executable, "-m", "deepstack_harness", "list", "rules"]
# rich asks the variables first, and then the terminal.
PLAIN = {**os.environ, "TERM": "xterm", "COLUMNS": "80", "NO_COLOR": "1"}


def on_a_terminal() -> list[str]:
    """Return the lines that COMMAND writes to a pseudo-terminal."""
    parent, child = pty.openpty()
    process = subprocess.Popen(COMMAND, stdout=child, stdin=child, env=PLAIN)
    os.close(child)
    written = b""
    try:
        while part := os.read(parent, 65536):
            written += part
    except OSError:
        # Linux reports EIO when the other end is closed.
        pass
    os.close(parent)
    assert process.wait() == 0
    return written.decode().replace("\x1b[0m", "").replace("\x1b[1m", "").splitlines()


def test_on_a_terminal_the_last_cell_goes_on_below_itself() -> None:
    lines = on_a_terminal()
    assert max(map(len, lines)) <= 80
    rule = next(number for number, line in enumerate(lines) if line.startswith("    R2 "))
    column = lines[rule].index("boundary")
    assert lines[rule + 1].index("min(N, P))") == column


def test_in_a_pipe_a_row_is_one_line() -> None:
    said = subprocess.run(COMMAND, env=PLAIN, capture_output=True, text=True, check=True).stdout
    rows = [line for line in said.splitlines() if line.startswith("    R")]
    assert len(rows) == 15
    assert all("(figure: " in row and row.endswith(")") for row in rows)
