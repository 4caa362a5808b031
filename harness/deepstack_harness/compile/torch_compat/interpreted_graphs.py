"""Load the code that Inductor generated for a GPU, and run its Triton kernels in Triton's interpreter.

Inductor knows TRITON_INTERPRET (pytorch 123956): `AsyncCompile.triton` then loads a kernel and compiles
nothing, and `CachingAutotuner.run` calls its first configuration with the grid that a GPU would get. The
generated wrapper runs unchanged on tensors in host memory. Run on torch 2.10 .. 2.15.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from torch import Tensor
from torch._inductor.graph import GraphLowering
from torch._inductor.runtime.hints import HeuristicType
from torch._inductor.runtime.triton_heuristics import CachingAutotuner
from torch._ops import OpOverload
from torch._subclasses import FakeTensor
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from triton.runtime.errors import InterpreterError
from typing_extensions import override

from deepstack_harness.compile.torch_compat.device_memory import DeviceMemory
from deepstack_harness.compile.torch_compat.fake_gpu import HostGpu, NoDevice, always
from deepstack_harness.compile.torch_compat.inductor import NotRun
from deepstack_harness.compile.torch_compat.interpreter import interpreting
from deepstack_harness.compile.torch_compat.structures import tensors_in
from deepstack_harness.contract.facts import Disagreement
from deepstack_harness.contract.tolerances import CONFIGURATIONS
from deepstack_harness.errors import MachineError, StepUnavailable

_RAW_STREAM = "_cuda_getCurrentRawStream"
"""A function that the wrapper imports from `torch._C`, and that a CPU build does not have."""


@dataclass
class InterpretedGraphs:
    """The graphs that Inductor has generated, and the memory that their next call works on.

    `compares` runs each launch with the first configuration of autotuning too, which costs several times as
    much: the largest one has the fewest programs. `host` knows arguments on a fake `cuda:0`.
    """

    use: Callable[[DeviceMemory], None]
    compares: bool = False
    host: HostGpu = field(default_factory=HostGpu)
    memory: DeviceMemory = field(default_factory=lambda: DeviceMemory({}))

    def begin(self, known: Mapping[str, Tensor]) -> DeviceMemory:
        """Return the memory for the next call; `known` names weights and inputs of any shape."""
        self.memory = DeviceMemory(known)
        self.use(self.memory)
        return self.memory

    def allocate(self, size: Sequence[int], stride: Sequence[int], dtype: torch.dtype) -> Tensor:
        """Return a new tensor, of shape `size`, that nothing has written, in place of one on the GPU."""
        with _disable_current_modes():  # else it would count as written by torch
            return self.memory.allocate(size, stride, dtype)

    def launch(self, run: Callable[..., None], kernel: Any, args: Sequence[Any], options: Any) -> None:  # noqa: ANN401
        """Interpret one launch of a `CachingAutotuner`.

        Raises `StepUnavailable`, with the kernel's name, for code that the interpreter cannot run.
        """
        name = kernel.fn.__name__
        _check(kernel, name)
        given = zip(kernel.fn.arg_names, args, strict=False)
        parameters = [parameter for parameter, argument in given if isinstance(argument, Tensor)]
        configurations = sorted(kernel.configs, key=_block, reverse=True)

        def interpret(configuration: Any) -> None:  # noqa: ANN401
            self.memory.begin(name, parameters)
            with patch.object(kernel, "configs", [configuration]):
                run(kernel, *args, **options)

        # The interpreter itself copies and resizes tensors, which is no work of the step.
        with _disable_current_modes(), np.errstate(all="ignore"):
            try:
                if self.compares and len(configurations) > 1:
                    self._compare(name, interpret, [configurations[-1], configurations[0]], args)
                else:
                    interpret(configurations[0])
            except InterpreterError as error:
                raise StepUnavailable(
                    f"kernel {name} cannot be interpreted: {error.error_message}"
                ) from error
            self.memory.end()

    def _compare(
        self, name: str, interpret: Callable[[Any], None], configurations: Sequence[Any], args: Sequence[Any]
    ) -> None:
        """Interpret both configurations on the same memory; the second one's results stay."""
        storages = [self.memory.storage(argument) for argument in args if isinstance(argument, Tensor)]
        before = [(storage.data.copy(), storage.written.copy()) for storage in storages]
        programs = self.memory.programs
        interpret(configurations[0])
        first = [storage.data.copy() for storage in storages]
        for storage, (data, written) in zip(storages, before, strict=True):
            storage.data[:], storage.written[:] = data, written
        self.memory.programs = programs
        interpret(configurations[1])
        self.memory.compared += 1
        tensors = [argument for argument in args if isinstance(argument, Tensor)]
        names = [parameter for parameter, _ in self.memory.results()]
        both = (_block_text(configurations[0]), _block_text(configurations[1]))
        for parameter, tensor, other in zip(names, tensors, first, strict=True):
            apart = _apart(tensor, other)
            if apart > CONFIGURATIONS:
                self.memory.disagreements.append(Disagreement(name, parameter, both, apart))


def _block(configuration: Any) -> int:  # noqa: ANN401  # triton.Config
    return math.prod(value for value in configuration.kwargs.values() if isinstance(value, int))


def _block_text(configuration: Any) -> str:  # noqa: ANN401
    return " ".join(f"{name}={value}" for name, value in configuration.kwargs.items())


def _apart(tensor: Tensor, other: Any) -> float:  # noqa: ANN401  # the bytes of the same storage
    """Return the largest relative difference of a storage's elements to `other`; NaN equals only NaN."""
    own = torch.empty(0, dtype=torch.uint8).set_(tensor.untyped_storage())
    itemsize = tensor.element_size()
    whole = len(other) // itemsize * itemsize
    left, right = (data[:whole].view(tensor.dtype).double() for data in (own, torch.from_numpy(other)))
    same = (left == right) | (left.isnan() & right.isnan())
    apart = ((left - right).abs() / (1 + right.abs())).nan_to_num(nan=math.inf)
    return float(apart[~same].max().item()) if not bool(same.all()) else 0.0


def _check(kernel: Any, name: str) -> None:  # noqa: ANN401
    """Refuse what would be run wrongly, or for ever."""
    if not kernel.triton_interpret:
        raise StepUnavailable(f"kernel {name} was loaded to be compiled: TRITON_INTERPRET was not set then")
    if kernel.heuristic_type == HeuristicType.TEMPLATE:
        raise StepUnavailable(f"kernel {name} is a template, whose blocks the interpreter does not know")
    if any("RSPLIT" in chosen.kwargs for chosen in kernel.configs):
        raise StepUnavailable(
            f"kernel {name} is a cooperative reduction: its programs wait for each other, and the "
            "interpreter runs them one after the other"
        )


class _LibraryCalls(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Mode that notes what the generated code leaves to torch: matrix products, attention, copies."""

    def __init__(self, memory: DeviceMemory) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._memory = memory

    @override
    def __torch_dispatch__(
        self,
        func: OpOverload[..., Any],
        types: object,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        named = zip((argument.name for argument in func._schema.arguments), args, strict=False)
        given = {**dict(named), **(kwargs or {})}
        changed = {
            argument.name
            for argument in func._schema.arguments
            if argument.alias_info and argument.alias_info.is_write
        }
        tensors = {name: value for name, value in given.items() if isinstance(value, Tensor)}
        tensors |= {f"{name}[{at}]": part for name, value in given.items() if isinstance(value, list | tuple)
                    for at, part in enumerate(value) if isinstance(part, Tensor)}  # fmt: skip
        read = {name: tensor for name, tensor in tensors.items() if name not in changed}
        out = func(*args, **(kwargs or {}))
        if not func.is_view:
            results = list(tensors_in(out))
            written = [tensor for name, tensor in tensors.items() if name in changed]
            fresh = [result for result in results if not any(result is tensor for tensor in written)]
            self._memory.called(str(func), read, [*written, *fresh])
        return out


@contextmanager
def interpreted_graphs() -> Iterator[InterpretedGraphs]:
    """Load what Inductor generates while open, and interpret it where it is called with real tensors.

    A call with fake tensors raises `NotRun`. Raises `MachineError` where this process, its torch or its
    triton cannot do so.
    """
    run, load = CachingAutotuner.run, GraphLowering.compile_to_module
    with ExitStack() as stack:
        graphs = InterpretedGraphs(stack.enter_context(interpreting()))

        def launch(kernel: Any, *args: Any, **options: Any) -> None:  # noqa: ANN401
            graphs.launch(run, kernel, args, options)

        def compile_to_module(graph: GraphLowering) -> Any:  # noqa: ANN401
            """Let the loaded wrapper allocate in host memory."""
            module: Any = load(graph)
            generated, allocates = module.call, hasattr(module, "empty_strided_cuda")
            module.empty_strided_cuda = graphs.allocate

            def call(inputs: Sequence[Any]) -> object:
                if any(isinstance(argument, FakeTensor) for argument in inputs):
                    raise NotRun("the graph was traced, and not called with real tensors")
                if not allocates:
                    raise MachineError(
                        f"the wrapper that torch {torch.__version__} generates has no empty_strided_cuda: "
                        "look for the new name in torch/_inductor/codegen/wrapper.py, and change "
                        "deepstack_harness/compile/torch_compat/interpreted_graphs.py"
                    )
                with _LibraryCalls(graphs.memory):
                    return generated(list(map(graphs.host.on_host, inputs)))

            module.call = call
            return module

        for owner, name, value in (
            (CachingAutotuner, "run", launch),
            (GraphLowering, "compile_to_module", compile_to_module),
            (torch.cuda, "_DeviceGuard", NoDevice),
            (torch.cuda, "set_device", always(None)),
        ):
            stack.enter_context(patch.object(owner, name, value))
        stream = patch.object(torch._C, _RAW_STREAM, always(0), create=True)
        stack.enter_context(stream)
        yield graphs
