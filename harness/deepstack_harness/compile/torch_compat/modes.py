"""Change what torch's operations do in a block: record them, fail an allocation, fake tensors or ranks.

`OpRecorder` records the operations of a call on their very tensors and replays them, as a CUDA graph would.
`OtherLastBits` rounds results in another way.
`FailingAllocation` raises as a GPU without memory does. `filled_with_nan` shows reads of memory that nobody
has written: a fresh page is zero by accident, which hides a `torch.empty` that should be a `torch.zeros`.
`without_storage` and `on_fake_gpu` are for compiling a decoder that would not fit, or that has no GPU here.
`fake_world` makes this process one rank of several.

Uses `torch.utils._python_dispatch.TorchDispatchMode` and operator tags, `torch._subclasses.FakeTensorMode`,
`torch.utils.deterministic.fill_uninitialized_memory` by its private setter, and
`torch.testing._internal.distributed.fake_pg`, whose import registers the backend `fake`. Read in torch 2.10
.. 2.15.
"""

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import partial
from typing import Any
from unittest.mock import patch

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch._ops import OpOverload
from torch._subclasses import FakeTensor, FakeTensorMode
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.utils._python_dispatch import TorchDispatchMode
from typing_extensions import override

from deepstack_harness.compile.torch_compat.moved import MOVED
from deepstack_harness.compile.torch_compat.structures import storage_of, tensors_in


def _allocated(arguments: object, results: object) -> Iterator[bool]:
    """Yield for each tensor of `results` True if no tensor of `arguments` has its storage."""
    storages = set(map(storage_of, tensors_in(arguments)))
    return (storage_of(result) not in storages for result in tensors_in(results))


_NEEDS_DATA = {torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape}


class _WithoutDynamo(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Mode whose first operation does not import Dynamo, which takes 1.6 s; it never runs in a compiled call.

    torch (2.11 and later) marks the `__torch_dispatch__` of each mode as one that Dynamo must not trace.
    """

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False


class OpRecorder(_WithoutDynamo):
    """Mode that records operations; `replay` repeats them, without any Python of the call.

    Operations that write run again on the tensors they wrote. Results of the others are copied into the
    tensors that the first run gave out; for a view torch leaves that out, because it is the same data. The
    mode may be entered several times. Raises RuntimeError in an operation that returns Python values or a
    shape that depends on data, which CUDA refuses while a stream is capturing.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._tape: list[Callable[[], object]] = []
        self.allocated = 0
        """Results so far that came in storage of their own."""

    @override
    def __torch_dispatch__(
        self,
        func: OpOverload[..., Any],
        types: object,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        # Sizes are those of the indices where these are integers, which CUDA captures. A mask of truth values
        # is counted first, and that waits for the device.
        by_integers = func is torch.ops.aten.index.Tensor and not any(
            index.dtype in (torch.bool, torch.uint8) for index in tensors_in(args[1])
        )
        if _NEEDS_DATA & set(func.tags) and not by_integers:
            raise RuntimeError(f"{func} is not permitted while a graph is captured: it depends on data")
        out = func(*args, **(kwargs or {}))
        self._tape.append(partial(_repeat, func, args, kwargs or {}, out))
        self.allocated += sum(_allocated((args, kwargs), out))
        return out

    def append(self, work: Callable[[], object]) -> None:
        """Have `work` called at this place of every replay, Python and all."""
        self._tape.append(work)

    def replay(self) -> None:
        """Do everything again, in order."""
        for entry in self._tape:
            entry()


def _repeat(func: OpOverload[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any], out: object) -> None:
    repeated = func(*args, **kwargs)
    for first, now in zip(tensors_in(out), tensors_in(repeated), strict=True):
        first.copy_(now)


class FailingAllocation(_WithoutDynamo):
    """Mode in which the `number`-th allocation (from 1) raises `torch.OutOfMemoryError`.

    An operation allocates if a result comes in storage that none of its arguments has.
    """

    def __init__(self, number: int) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._left = number
        self.failed = False
        """True once it has."""

    @override
    def __torch_dispatch__(
        self,
        func: OpOverload[..., Any],
        types: object,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        out = func(*args, **(kwargs or {}))
        for is_new in _allocated((args, kwargs), out):
            self._left -= is_new
            if self._left <= 0 and not self.failed:
                self.failed = True
                raise torch.OutOfMemoryError(f"{func} found no memory: this allocation was made to fail")
        return out


class OtherLastBits(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Mode that moves each floating result by up to a unit in its last place: the one measure of rounding.

    As far as this moves an output, another order of additions, or a compiler that rounds elsewhere, may move
    it too. `moves` returns for a shape by how many units each element moves, -1 to 1. Views and what is made
    of no floating tensor (masks, positions) are left as they are.
    """

    def __init__(self, moves: Callable[[torch.Size], Tensor]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._moves = moves
        self.coarsest = 0.0
        """The eps of the narrowest dtype that was moved; 0 for none."""

    @override
    def __torch_dispatch__(
        self,
        func: OpOverload[..., Any],
        types: object,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        out = func(*args, **(kwargs or {}))
        if any(map(_is_float, tensors_in((args, kwargs)))):
            for result, is_new in zip(tensors_in(out), _allocated((args, kwargs), out), strict=True):
                written = is_new or func._schema.is_mutable
                if written and _is_float(result) and result.layout is torch.strided and all(result.stride()):
                    eps = torch.finfo(result.dtype).eps
                    self.coarsest = max(self.coarsest, eps)
                    moves = self._moves(result.shape).to(result.device)
                    # Nothing calculates in 8 bits.
                    wide = result.to(torch.promote_types(result.dtype, torch.float64))
                    result.copy_((wide * (1 + moves * eps)).to(result.dtype))
        return out


def _is_float(tensor: Tensor) -> bool:
    return tensor.is_floating_point() or tensor.is_complex()


def by_turns(shape: torch.Size) -> Tensor:
    """Return moves up and down by turns."""
    moves = torch.ones(shape)
    moves.view(-1)[1::2] = -1
    return moves


def at_random(generator: torch.Generator, shape: torch.Size) -> Tensor:
    """Return moves that are drawn."""
    return 2 * torch.rand(shape, generator=generator) - 1


@contextmanager
def filled_with_nan() -> Iterator[None]:
    """Fill new memory with NaN (integers: the largest value) while open; threads of this process share it."""
    enabled = torch.are_deterministic_algorithms_enabled()
    warn_only = torch.is_deterministic_algorithms_warn_only_enabled()
    fills = torch._C._get_deterministic_fill_uninitialized_memory()
    # `torch.use_deterministic_algorithms` would import Inductor's settings, and change them.
    torch._C._set_deterministic_algorithms(True, warn_only=True)
    torch._C._set_deterministic_fill_uninitialized_memory(True)
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message=".*deterministic")
            yield
    finally:
        torch._C._set_deterministic_fill_uninitialized_memory(fills)
        torch._C._set_deterministic_algorithms(enabled, warn_only=warn_only)


def spin(cycles: int) -> None:
    """Keep the current CUDA stream busy for as many clock cycles."""
    torch.cuda._sleep(cycles)  # type: ignore[no-untyped-call]


@contextmanager
def without_storage() -> Iterator[None]:
    """Give every new tensor a shape, a dtype and a device, and no storage, while open.

    Small constants that a model was built with may stay real.
    """
    with ExitStack() as stack:
        if not MOVED["process_inputs"].reached:
            stack.enter_context(_inputs_of_own_mode())
        from torch.fx.experimental.symbolic_shapes import ShapeEnv  # sympy: 0.5 processor seconds

        stack.enter_context(FakeTensorMode(shape_env=ShapeEnv(), allow_non_fake_inputs=True))
        yield


def _inputs_of_own_mode() -> AbstractContextManager[object]:
    """Have Dynamo give fake inputs to a backend that the mode of its compilation has made, while open."""
    from torch._dynamo.output_graph import OutputGraph  # takes seconds, and other modes need none of it

    original: Callable[[OutputGraph], list[Any]] = OutputGraph.example_inputs

    def example_inputs(graph: OutputGraph) -> list[Any]:
        mode: Any = graph.tracing_context.fake_mode
        contexts: Any = graph.tracing_context.tensor_to_context

        def own(given: object) -> object:
            if mode is None or not isinstance(given, FakeTensor) or given.fake_mode is mode:
                return given
            symbolic = contexts.get(given)
            source = symbolic.tensor_source if symbolic else None
            return mode.from_tensor(given, symbolic_context=symbolic, source=source)

        return [own(given) for given in original(graph)]

    return patch.object(OutputGraph, "example_inputs", example_inputs)


@contextmanager
def on_fake_gpu(module: nn.Module) -> Iterator[Callable[[Tensor], Tensor]]:
    """Give a module fake parameters and buffers on `cuda` while open; yield the function for further copies.

    Copies have the shapes and strides of real tensors and no storage. Those of tensors that share a storage
    share one, because the compiler looks at that. The module is the same object, so that what is compiled of
    it can be called with its own tensors later.
    """
    bases: dict[tuple[int, torch.dtype], Tensor] = {}
    fakes: dict[int, nn.Parameter] = {}

    def copy_tensor(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        key = (storage.data_ptr(), tensor.dtype)
        if key not in bases:
            elements = storage.nbytes() // tensor.element_size()
            bases[key] = torch.empty(elements, dtype=tensor.dtype, device="cuda")
        copied = bases[key].as_strided(tensor.shape, tensor.stride(), tensor.storage_offset())
        # It is no view: Dynamo would trace one by way of its base, whose size no mark makes symbolic.
        return copied.data

    def copy_parameter(parameter: nn.Parameter) -> nn.Parameter:
        fake = nn.Parameter(copy_tensor(parameter), requires_grad=parameter.requires_grad)
        return fakes.setdefault(id(parameter), fake)

    with without_storage(), holding(module, copy_parameter, copy_tensor):
        yield copy_tensor


@contextmanager
def holding(
    module: nn.Module,
    parameter_for: Callable[[nn.Parameter], nn.Parameter],
    buffer_for: Callable[[Tensor], Tensor],
) -> Iterator[None]:
    """Replace each parameter and buffer of a module, of any shape, by what is returned for it, while open."""
    saved = [(part, dict(part._parameters), dict(part._buffers)) for part in module.modules()]
    try:
        for part, parameters, buffers in saved:
            for name, parameter in parameters.items():
                part._parameters[name] = None if parameter is None else parameter_for(parameter)
            for name, buffer in buffers.items():
                part._buffers[name] = None if buffer is None else buffer_for(buffer)
        yield
    finally:
        for part, parameters, buffers in saved:
            part._parameters.update(parameters)
            part._buffers.update(buffers)


@contextmanager
def fake_world(rank: int, ranks: int) -> Iterator[None]:
    """Make this process `rank` of `ranks` in the default process group, while open.

    Collectives come back at once, with the own rows in the place of every rank's:
    shapes are real, values are not.
    """
    dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=ranks)
    try:
        yield
    finally:
        dist.destroy_process_group()
