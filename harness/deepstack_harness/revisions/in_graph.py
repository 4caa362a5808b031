"""What a revision has done inside the compiled graph, beside the decoder's own work."""

from torch import nn

from deepstack_harness.contract.protocols import BufferFactory


def in_graph(make: BufferFactory, decoder: nn.Module) -> nn.Module:
    """The module that is run, or compiled, for buffers that `make` makes: mostly `decoder` itself.

    A factory with something to do there has a function `in_graph(decoder)` of its own;
    what it gives is a `deepstack_harness.contract.protocols.Decoder` with the same output.
    """
    wrapped = getattr(make, "in_graph", None)
    if wrapped is None:
        return decoder
    module: nn.Module = wrapped(decoder)
    return module
