"""A number on the command line."""

from argparse import ArgumentTypeError
from math import isfinite


def finite(text: str) -> float:
    """Read a number; argparse makes a usage error of `ArgumentTypeError`.

    `float` takes `nan` and `inf` as well: limits that nothing reaches, and that no comparison refuses.
    """
    try:
        number = float(text)
    except ValueError:
        number = float("nan")
    if not isfinite(number):
        raise ArgumentTypeError(f"takes a number, as in 1.5, not '{text}'")
    return number
