"""Fake tensors on `cuda` in place of real ones: for tracing a decoder whose weights lie in host memory."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from deepstack_harness.torch_compat.fake_tensors import without_storage


class FakeCopies:
    """Copies without storage, with the shapes and strides of real tensors.

    Tensors that share a storage have copies that share one, because the compiler looks at that.
    """

    def __init__(self) -> None:
        self._bases: dict[tuple[int, torch.dtype], Tensor] = {}

    def of(self, tensor: Tensor) -> Tensor:
        """Return the copy of a tensor of any shape, which shares storage and is no view.

        Dynamo would trace a view by way of its base, whose size no mark makes symbolic.
        """
        storage = tensor.untyped_storage()
        key = (storage.data_ptr(), tensor.dtype)
        if key not in self._bases:
            elements = storage.nbytes() // tensor.element_size()
            self._bases[key] = torch.empty(elements, dtype=tensor.dtype, device="cuda")
        copy = self._bases[key].as_strided(tensor.shape, tensor.stride(), tensor.storage_offset())
        return copy.data


@contextmanager
def on_fake_gpu(module: nn.Module) -> Iterator[FakeCopies]:
    """Give a module fake parameters and buffers on `cuda` while open; yield the maker of further copies.

    The module is the same object, so that what is compiled of it can be called with its own tensors later.
    """
    with without_storage():
        copies = FakeCopies()
        taken = [(one, dict(one._parameters), dict(one._buffers)) for one in module.modules()]
        fakes: dict[int, nn.Parameter] = {}
        try:
            for one, parameters, buffers in taken:
                for name, parameter in parameters.items():
                    if parameter is not None:
                        fake = nn.Parameter(copies.of(parameter), requires_grad=parameter.requires_grad)
                        one._parameters[name] = fakes.setdefault(id(parameter), fake)
                for name, buffer in buffers.items():
                    one._buffers[name] = None if buffer is None else copies.of(buffer)
            yield copies
        finally:
            for one, parameters, buffers in taken:
                one._parameters.update(parameters)
                one._buffers.update(buffers)
