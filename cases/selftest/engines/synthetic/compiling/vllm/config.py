"""The settings of an engine, and the mode in which its models are compiled."""

from dataclasses import dataclass, field
from enum import IntEnum


class CompilationMode(IntEnum):
    """Of a model: not at all, or once."""

    NONE = 0
    DYNAMO_TRACE_ONCE = 2


@dataclass
class CompilationConfig:
    mode: CompilationMode | None = None


@dataclass
class VllmConfig:
    """Settings of a user; what they mean for the mode is decided here, and last by the platform."""

    enforce_eager: bool = False
    lora: bool = False
    compilation_config: CompilationConfig = field(default_factory=CompilationConfig)

    def __post_init__(self) -> None:
        if self.enforce_eager:
            self.compilation_config.mode = CompilationMode.NONE
        if self.compilation_config.mode is None:
            self.compilation_config.mode = CompilationMode.DYNAMO_TRACE_ONCE
        if self.lora:
            self.compilation_config.mode = CompilationMode.NONE
