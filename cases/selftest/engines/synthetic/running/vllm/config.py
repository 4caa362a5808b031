"""Graph modes, and the settings of a compiled model."""

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from enum import Enum, IntEnum


class CUDAGraphMode(Enum):
    """Modes by name: (mode of mixed batches, mode of decodes)."""

    NONE = ("NONE", "NONE")
    PIECEWISE = ("PIECEWISE", "PIECEWISE")
    FULL = ("FULL", "FULL")
    FULL_DECODE_ONLY = ("NONE", "FULL")
    FULL_AND_PIECEWISE = ("PIECEWISE", "FULL")


class CompilationMode(IntEnum):
    """How a model is compiled."""

    NONE = 0
    DYNAMO_TRACE_ONCE = 2


@dataclass
class CompilationConfig:
    """The mode and the backend of `torch.compile`."""

    mode: CompilationMode
    backend: str


@dataclass
class DeviceConfig:
    """The device of a model."""

    device: str


@dataclass
class VllmConfig:
    """All settings that a model reads."""

    compilation_config: CompilationConfig
    device_config: DeviceConfig


def set_current_vllm_config(config: VllmConfig) -> AbstractContextManager[None]:
    """Set nothing: a model is given its settings."""
    return nullcontext()
