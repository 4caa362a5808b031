"""Tensors between stages."""


class IntermediateTensors:
    """Tensors by name."""

    def __init__(self, tensors: dict[str, object]) -> None:
        self.tensors = tensors

    def __getitem__(self, name: str) -> object:
        return self.tensors[name]
