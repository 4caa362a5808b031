"""Tensors between stages."""


class IntermediateTensors:
    """Tensors by name."""

    def __init__(self, tensors: dict[str, object]) -> None:
        self.tensors = tensors
