"""Names of dtypes and devices as users write them, refused without torch where they are misspelt."""

import re

from deepstack_harness.contract.trace import DTYPES
from deepstack_harness.errors import UsageError, unknown_name

_KNOWN_DEVICES = "known are cpu, cuda and cuda:N"


def check_dtype(name: str) -> None:
    """Raise `UsageError` for a name that is no dtype of a decoder."""
    if name not in DTYPES:
        raise unknown_name("dtype", name, DTYPES)


def check_device(name: str) -> None:
    """Raise `UsageError` for a name other than `cpu`, `cuda` and `cuda:1`."""
    if not re.fullmatch(r"cpu|cuda(:\d{1,4})?", name):
        raise UsageError(f"unknown device '{name}'; {_KNOWN_DEVICES}")
