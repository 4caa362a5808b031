"""Tensors without storage, for compiling a decoder that would not fit, or that runs nowhere here.

`torch._subclasses.FakeTensorMode` with a shape environment of its own, which
Dynamo takes over when it compiles what was made under it.
"""

from contextlib import AbstractContextManager

from torch._subclasses import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import ShapeEnv


def without_storage() -> AbstractContextManager[object]:
    """Give every new tensor a shape, a dtype and a device, and no storage, while open.

    Small constants that a model was built with may stay real.
    """
    mode: AbstractContextManager[object] = FakeTensorMode(shape_env=ShapeEnv(), allow_non_fake_inputs=True)
    return mode
