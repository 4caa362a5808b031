"""Graph modes."""

from enum import Enum


class CUDAGraphMode(Enum):
    """Modes by name: (mode of mixed batches, mode of decodes)."""

    NONE = ("NONE", "NONE")
    PIECEWISE = ("PIECEWISE", "PIECEWISE")
    FULL = ("FULL", "FULL")
    FULL_DECODE_ONLY = ("NONE", "FULL")
    FULL_AND_PIECEWISE = ("PIECEWISE", "FULL")
