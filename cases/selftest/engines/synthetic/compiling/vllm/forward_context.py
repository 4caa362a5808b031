"""What a step is about: in some, the model runs as it is written."""

from dataclasses import dataclass


@dataclass
class ForwardContext:
    skip_compiled: bool = False


STEP: list[ForwardContext] = []


def is_forward_context_available() -> bool:
    return bool(STEP)


def get_forward_context() -> ForwardContext:
    return STEP[-1]
