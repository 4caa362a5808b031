"""Numbers on the command line."""

from argparse import ArgumentTypeError

from deepstack_harness.clean_text import shortened

MOST = 10**9
"""Seconds, minutes or GiB without an end for every purpose; larger numbers overflow clocks and limits."""


def finite(text: str) -> float:
    """Read a number; argparse makes a usage error of `ArgumentTypeError`.

    `float` takes `nan` and `inf` as well: limits that nothing reaches, and that no comparison refuses.
    """
    try:
        number = float(text)
    except ValueError:
        number = float("nan")
    if not abs(number) <= MOST:
        raise ArgumentTypeError(f"takes a number up to {MOST:,}, as in 1.5, not '{shortened(text, 200)}'")
    return number


def whole(text: str) -> int:
    """Read a whole number; argparse makes a usage error of `ArgumentTypeError`."""
    # Python reads no number of more than 4,300 digits.
    if not text.strip().lstrip("+-").isdecimal() or len(text) > 100 or abs(int(text)) > MOST:
        raise ArgumentTypeError(f"takes a whole number up to {MOST:,}, not '{shortened(text, 200)}'")
    return int(text)
