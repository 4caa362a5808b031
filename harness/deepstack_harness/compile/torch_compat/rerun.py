"""Run a region again on copies of its inputs: as it was written, and as it was traced.

Both runs use eager kernels, so that they differ where the traced graph computes something else, and not by
the rounding of a compiler. The traced run calls the bytecode that Dynamo made, with each compiled function
replaced by its graph, under the settings of the process that it was traced for, unless the backend runs the
graph itself. It does not execute compiled kernels: of an input with another dtype or stride than
the traced one they may read other memory, which this comparison does not show.

A region is run again only where nothing but the copies can change. A dispatch mode looks at each operator
before it runs, and refuses collectives, writes into a tensor that is not a copy, and operators from outside
torch (`_may_run`): they may keep state that no schema shows. Objects that are no tensors are copied too,
except what torch and Python keep for themselves (compiled functions, locks). Not seen: functions of an
extension that are no operators of torch, and effects of Python outside the inputs, such as a request that
is sent.

Read in torch 2.13: `DynamoOutput.bytecode`, `GraphCaptureOutput.bytecode`, `gm.meta["backend_id"]`, which is
the name of the compiled function in the bytecode.
"""

import ast
import copy
import math
import sys
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from types import CellType, CodeType, FunctionType
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch._ops import OpOverload
from torch.utils._device import _device_constructors
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from typing_extensions import override

from deepstack_harness.compile.distances import apart, largest
from deepstack_harness.compile.members import StatePlace, places
from deepstack_harness.compile.torch_compat.guard_sources import readable
from deepstack_harness.compile.torch_compat.process_settings import Settings, applied
from deepstack_harness.compile.torch_compat.structures import storage_of, tensors_in
from deepstack_harness.compile.watch_text import words_of
from deepstack_harness.contract.observation import NOT_FINITE
from deepstack_harness.contract.tolerances import WATCH_ROUNDINGS
from deepstack_harness.errors import NotMeasured

Locals = Mapping[str, Any]
_LARGEST = 1 << 30
"""Bytes of inputs that are copied at most."""
_OPERATORS = frozenset({"aten", "prim", "prims"})
_RESUMES = "__resume_at"
"""Dynamo's name for the rest of a function after a graph break."""


class CannotRerun(Exception):
    """A region cannot be run again without changing what the program computes; the text is the reason."""


@dataclass(frozen=True)
class OutputDifference:
    """The largest difference between the outputs of both runs.

    `distance` is absolute, infinite for outputs that cannot be compared by numbers and where the final states
    of the runs differ, for the reason `why`; `scale` is the largest absolute value of the uncompiled output,
    and `limit` is the distance that rounding explains.
    """

    distance: float
    scale: float = 0.0
    limit: float = 0.0
    why: str = ""

    @property
    def matters(self) -> bool:
        """Return whether rounding does not explain the distance."""
        return not self.distance <= self.limit


@dataclass(frozen=True)
class TracedRegion:
    """The code of a region, the bytecode that Dynamo made of it, and the traced graphs by name.

    `interpreted` is True where the backend runs the traced graph itself, as the backend `eager` does, and
    `eager_kernels` where it compiles no kernels, as `aot_eager` does.
    """

    code: CodeType
    bytecode: CodeType
    graphs: Mapping[str, fx.GraphModule]
    scope: Mapping[str, Any]
    interpreted: bool
    eager_kernels: bool

    @property
    def makes_tensors(self) -> bool:
        """Return whether a graph makes tensors, of the default dtype or on the default device."""
        return any(
            node.target in _device_constructors()
            for graph in self.graphs.values()
            for node in graph.graph.nodes
        )

    @property
    def writes_inputs(self) -> bool:
        """Return whether a graph may write into a tensor that it did not make, by its operators' names."""
        return any(
            node.op in {"call_method", "call_function"} and _writes(node)
            for graph in self.graphs.values()
            for node in graph.graph.nodes
        )

    def difference(
        self, values: Locals, settings: Settings, put_back: Mapping[str, object]
    ) -> OutputDifference:
        """Return how far the traced region is from the code as written, for these local variables.

        `settings` are those of the trace. `put_back` are values by source, in place of those of the call.
        Raises `CannotRerun` where it is not safe, or where the uncompiled code raises.
        """
        self._refuse_unsafe(values)
        with _isolated():
            written = self._run(self.code, self.scope, values, put_back)
            try:
                with (
                    nullcontext() if self.interpreted else applied(settings, eager_kernels=self.eager_kernels)
                ):
                    traced = self._run(self.bytecode, {**self.scope, **self._called_graphs}, values, put_back)
            except _TracedCodeError:
                return OutputDifference(math.inf, why="the traced graph raises")
        (answers, left), (traced_answers, traced_left) = written, traced
        differs = _difference(answers, traced_answers) if answers else OutputDifference(0.0)
        for source in () if differs.matters else sorted(left.keys() | traced_left.keys()):
            one, other = left.get(source, _NOTHING), traced_left.get(source, _NOTHING)
            if one is other:  # a tensor that is no copy is one in both runs
                continue
            if isinstance(one, Tensor) and isinstance(other, Tensor):
                is_other = _difference([one.detach()], [other.detach()]).matters
            else:
                is_other = type(one) is not type(other) or repr(one) != repr(other)
            if is_other:
                return OutputDifference(math.inf, why=f"the call leaves another {readable(source)}")
        if not answers:
            raise CannotRerun("its output has no tensor")
        return differs

    def _refuse_unsafe(self, values: Locals) -> None:
        if any(name.startswith(_RESUMES) for name in self.bytecode.co_names):
            raise CannotRerun("the graph is broken, and its rest would run too")
        if not self._called_graphs:
            raise CannotRerun("the traced graph is not known")
        if torch.cuda.is_available() and torch.cuda.is_current_stream_capturing():
            raise CannotRerun("a CUDA graph is being captured")
        for graph in self.graphs.values():
            for node in graph.graph.nodes:
                if "triton_kernel_wrapper" in str(node.target):
                    raise CannotRerun("it launches a Triton kernel of its own, which may write anywhere")
        modules = (
            part for value in values.values() if isinstance(value, nn.Module) for part in value.modules()
        )
        if any(module._forward_hooks or module._forward_pre_hooks for module in modules):
            raise CannotRerun("hooks of its modules would run again")

    @property
    def _called_graphs(self) -> Mapping[str, Callable[..., Any]]:
        # A call of the module itself would print a traceback where the graph raises.
        names = self.graphs.keys() & set(self.bytecode.co_names)
        return {name: self.graphs[name].forward for name in names}

    def _run(
        self, code: CodeType, scope: Mapping[str, Any], values: Locals, put_back: Mapping[str, object]
    ) -> tuple[list[Tensor], dict[str, object]]:
        torch.manual_seed(0)
        copies, storages = _copied({**_containers(code, scope), **values})
        own = {**scope, **{name: copies[name] for name in _containers(code, scope)}}
        for source, value in put_back.items():
            _put_back(source, value, copies, own)
        cells = tuple(CellType(copies[name]) for name in code.co_freevars)
        function = FunctionType(code, own, code.co_name, None, cells)
        positional, named = _arguments(code, copies)
        try:
            with _OnCopiesAlone(storages):
                output = function(*positional, **named)
                left = dict(_left(copies))
        except CannotRerun:
            raise
        except Exception as error:  # user code may raise anything
            if code is self.bytecode:
                raise _TracedCodeError from error
            raise CannotRerun(f"the uncompiled code raises {type(error).__name__}") from error
        return [
            leaf if isinstance(leaf, Tensor) else torch.tensor(leaf) for leaf in _comparable(output)
        ], left


def _writes(node: fx.Node) -> bool:
    if isinstance(node.target, OpOverload):
        return node.target._schema.is_mutable
    name = node.target if isinstance(node.target, str) else getattr(node.target, "__name__", "")
    in_place = name.endswith("_") and not name.endswith("__")
    return in_place or name in {"setitem", "__setitem__"} or name.startswith("__i") or "out" in node.kwargs


def _put_back(source: str, value: object, local_variables: dict[str, Any], scope: dict[str, Any]) -> None:
    """Write a value where a source expression reads, in copies only; raises `CannotRerun` where it cannot."""
    try:
        match ast.parse(source, mode="eval").body:
            case ast.Attribute(of, name) if source.startswith("L["):
                setattr(eval(ast.unparse(of), {"L": local_variables}), name, value)
            case ast.Subscript(of, key) if source.startswith("L[") or ast.unparse(of) == "G":
                owner = eval(ast.unparse(of), {"L": local_variables, "G": scope})
                owner[ast.literal_eval(key)] = value
            case _:
                raise TypeError("it is no copy")  # noqa: TRY301  # one sentence for all that cannot be written
    except Exception as error:  # objects of the program may raise anything
        raise CannotRerun(f"{source} cannot be put back: {type(error).__name__}") from error


class _TracedCodeError(Exception):
    """The traced code raised, where the code as written did not."""


@contextmanager
def _isolated() -> Iterator[None]:
    """Compile nothing, draw the same random numbers in both runs, and leave the generators as they were."""
    compiling = torch.compiler._is_compiling_flag
    with ExitStack() as stack:
        stack.enter_context(torch._C._EnableTorchFunction())  # off while guards are checked
        stack.enter_context(torch.compiler.set_stance("force_eager"))
        devices = [torch.cuda.current_device()] if torch.cuda.is_initialized() else []  # type: ignore[no-untyped-call]
        stack.enter_context(torch.random.fork_rng(devices=devices))
        torch.compiler._is_compiling_flag = True  # code may read it, and it was True in the trace
        try:
            yield
        finally:
            torch.compiler._is_compiling_flag = compiling


def _containers(code: CodeType, scope: Mapping[str, Any]) -> dict[str, Any]:
    """Return the mutable containers among the globals that a code names: it may write into them."""
    return {
        name: scope[name]
        for name in code.co_names
        if isinstance(scope.get(name), dict | list | set) and not name.startswith("__")
    }


def _arguments(code: CodeType, values: Locals) -> tuple[list[Any], dict[str, Any]]:
    """Return the arguments of a call, from the local variables at its start."""
    count, keywords = code.co_argcount, code.co_kwonlyargcount
    names, flags = code.co_varnames, code.co_flags
    try:
        positional = [values[name] for name in names[:count]]
        named = {name: values[name] for name in names[count : count + keywords]}
        rest = count + keywords
        if flags & 0x04:  # CO_VARARGS
            positional += values[names[rest]]
            rest += 1
        if flags & 0x08:  # CO_VARKEYWORDS
            named |= values[names[rest]]
    except KeyError as error:
        raise CannotRerun(f"the argument {error} is not known") from None
    return positional, named


def _copied(values: Locals) -> tuple[dict[str, Any], set[int]]:
    """Return copies of the values, with the tensors of modules shared, and the storages that are copies."""
    shared: dict[int, Any] = {}
    clones = _Clones()
    try:
        # Every tensor that a module has in any attribute, and every object that is not copied.
        for value in values.values():
            for module in value.modules() if isinstance(value, nn.Module) else ():
                shared |= {id(item): item for item in _loose(vars(module), ())}
        memo: dict[int, Any] = dict(shared)
        for item in _loose(values, set(shared)):
            memo[id(item)] = clones.clone_tensor(item) if isinstance(item, Tensor) else item
        return copy.deepcopy(dict(values), memo), clones.storages
    except CannotRerun:
        raise
    except Exception as error:  # an object of the program that cannot be walked or copied
        text = words_of(f"{type(error).__name__}: {error}", 170)
        raise CannotRerun(f"its inputs cannot be copied: {text}") from error


_MOST_OBJECTS = 20_000
"""With more, a whole engine hangs on the inputs: the call is not compared, and reported as such."""
_NOT_COPIED = (
    "torch._C", "torch._dynamo", "torch._inductor", "torch._functorch", "torch.distributed", "_thread",
    "threading", "logging",
)  # fmt: skip
"""Modules whose objects hold no input of a region, and of which many cannot be copied."""


def _is_not_copied(value: object) -> bool:
    """Return whether the value is a compiled function, its guards, a lock, a process group or a logger."""
    name = type(value).__module__
    return any(name == module or name.startswith(f"{module}.") for module in _NOT_COPIED)


def _loose(value: object, known: Container[int]) -> Iterator[Any]:
    """Yield the tensors, and the objects that are not copied, in containers and in attributes, each once.

    What is known already, by id, and what modules hold is not among them.
    """
    entered: set[int] = set()

    def enters(place: StatePlace) -> bool:
        item = place.value
        if id(item) in known or id(item) in entered or _is_end(item):
            return False
        entered.add(id(item))
        if len(entered) > _MOST_OBJECTS:  # an engine hangs on it: its configuration, caches and communicators
            raise CannotRerun(f"its inputs lead to more than {_MOST_OBJECTS} objects")
        return True

    found = {
        id(item): item
        for _, item, *_ in places([StatePlace("", value)], enters, whole=False)
        if isinstance(item, Tensor) or (_is_end(item) and not isinstance(item, nn.Module))
    }
    yield from (item for key, item in found.items() if key not in known)


def _is_end(value: object) -> bool:
    return isinstance(value, nn.Module) or _is_not_copied(value)


class _Clones:
    """Copies of tensors. Those that share a storage have copies that share one."""

    def __init__(self) -> None:
        self.storages: set[int] = set()
        self._copies: dict[int, torch.UntypedStorage] = {}
        self._bytes = 0

    def clone_tensor(self, tensor: Tensor) -> Tensor:
        """Return a tensor of the same class, values, shape, dtype, device and strides."""
        if type(tensor) is not nn.Parameter and hasattr(tensor, "__tensor_flatten__"):
            raise CannotRerun(f"its input of class {type(tensor).__name__} has tensors inside")
        if tensor.layout is not torch.strided or tensor.is_quantized:
            raise CannotRerun(f"its input is a tensor of layout {tensor.layout}")
        storage = tensor.untyped_storage()
        if storage._cdata not in self._copies:
            self._bytes += storage.nbytes()
            if self._bytes > _LARGEST:
                raise CannotRerun(f"its inputs have more than {_LARGEST >> 30} GiB")
            self._copies[storage._cdata] = storage.clone()  # type: ignore[no-untyped-call]
        made = self._copies[storage._cdata]
        self.storages.add(made._cdata)
        inference = tensor.is_inference()
        with torch.inference_mode(inference), torch.no_grad():
            clone = torch.empty(0, dtype=tensor.dtype, device=tensor.device)
            clone.set_(made, tensor.storage_offset(), tensor.shape, tensor.stride())
            if type(tensor) is nn.Parameter:
                return nn.Parameter(clone, requires_grad=tensor.requires_grad)
            if type(tensor) is not Tensor:
                clone = clone.as_subclass(type(tensor))
        return clone if inference else clone.requires_grad_(tensor.requires_grad)


class _OnCopiesAlone(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Mode that refuses each operator that could change something outside the copies, before it runs."""

    def __init__(self, storages: set[int]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._writable = set(storages)

    @override
    def __torch_dispatch__(
        self,
        func: OpOverload[..., Any],
        types: object,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        named = dict(kwargs or {})
        if "c10d" in func.namespace:
            raise CannotRerun(f"it runs a collective, {func}")
        if not _may_run(func):
            raise CannotRerun(f"it runs {func}, which is not torch's own and may keep state")
        inside = set(map(storage_of, tensors_in((args, named))))
        for tensor in _written(func, args, named):
            if storage_of(tensor) not in self._writable:
                raise CannotRerun(f"it writes into a tensor that is no argument ({func})")
        out = func(*args, **named)
        self._writable.update(key for key in map(storage_of, tensors_in(out)) if key not in inside)
        return out


_WITHOUT_STATE = frozenset({
    # Of vLLM's extensions (csrc/torch_bindings.cpp, csrc/cpu/torch_bindings.cpp, 0.32): what they write is in
    # their schemas. A handler of oneDNN holds weights and scratch memory. With `skip_weighted`, cpu_fused_moe
    # (csrc/cpu/cpu_fused_moe.cpp) also sets its weights of experts to 1, as each call of it does.
    *(f"_C.{name}" for name in (
        "onednn_mm", "onednn_scaled_mm", "weight_packed_linear", "int8_scaled_mm_with_quant",
        "fp8_scaled_mm_with_quant", "bmm_cpu", "cpu_fused_moe", "rms_norm", "fused_add_rms_norm",
        "rotary_embedding", "silu_and_mul", "gelu_and_mul", "gelu_tanh_and_mul", "gelu_tanh", "gelu_new",
        "gelu_fast", "gelu_quick", "static_scaled_int8_quant", "dynamic_scaled_int8_quant",
    )),
})  # fmt: skip
"""Operators of engines that were read, by name: no state but the tensors that they name as written."""
_WRITTEN_AGAIN = frozenset(
    f"vllm.{name}"
    for name in ("unified_kv_cache_update", "unified_attention", "unified_attention_with_output")
)
"""Operators that write a KV cache in the slots of this call's tokens (vllm 0.32,
model_executor/layers/attention/attention.py): the call itself, which comes after, writes these slots again.
Seen in vllm 0.32.0 on a CPU (OPT, GPT-2): tokens are the same where regions are run again and where none is.
States that are updated from what they were, as those of Mamba, are not of this kind."""


def _may_run(func: OpOverload[..., Any]) -> bool:
    """Return whether an operator changes nothing but the tensors that its schema names as written.

    True of torch's own operators, of those with the tag `pointwise`, and of those that are listed. A schema
    without writes proves nothing: that of `vllm.unified_kv_cache_update` has none.
    """
    name = f"{func.namespace}.{func._schema.name.partition('::')[2]}"
    # A vLLM in this process may send its KV cache elsewhere in each attention.
    transfer = sys.modules.get("vllm.distributed.kv_transfer")
    has_group = getattr(transfer, "has_kv_transfer_group", None)
    sends_cache = has_group is not None and bool(has_group())
    return (
        func.namespace in _OPERATORS
        or torch.Tag.pointwise in func.tags
        or name in _WITHOUT_STATE
        or (name in _WRITTEN_AGAIN and not sends_cache)
    )


def _written(func: OpOverload[..., Any], args: Sequence[Any], named: Mapping[str, Any]) -> Iterator[Tensor]:
    """Yield the tensors that an operator writes into."""
    arguments = func._schema.arguments
    bound = {argument.name: value for argument, value in zip(arguments, args, strict=False)} | dict(named)
    # Batch norm in training writes its running statistics, which its schema does not declare.
    if "batch_norm" in str(func) and bound.get("training", bound.get("train")):
        yield from tensors_in([bound.get("running_mean"), bound.get("running_var")])
    for argument in arguments:
        if argument.alias_info is not None and argument.alias_info.is_write:
            yield from tensors_in(bound.get(argument.name))


def _left(copies: Locals) -> Iterator[tuple[str, object]]:
    """Yield by source the tensors, numbers and texts that a run left in its inputs and their state."""

    def enters(place: StatePlace) -> bool:
        return isinstance(place.value, nn.Module) or not _is_not_copied(place.value)

    for name, value in copies.items():
        for place in places([StatePlace(f"L[{name!r}]", value)], enters, whole=False):
            if isinstance(place.value, Tensor | str | bytes | int | float | None):
                yield place.path, place.value


_NOTHING = object()


def _comparable(output: object) -> Iterator[Any]:
    """Yield tensors and numbers of an output, also inside objects such as a model's output class."""
    for leaf in tree_leaves(output):
        if isinstance(leaf, Tensor | bool | int | float):
            yield leaf
        elif hasattr(leaf, "__dict__") and not isinstance(leaf, nn.Module):
            yield from (item for item in _loose(vars(leaf), ()) if isinstance(item, Tensor))


def _difference(written: Sequence[Tensor], traced: Sequence[Tensor]) -> OutputDifference:
    for aspect in ("shape", "dtype"):
        if [getattr(out, aspect) for out in written] != [getattr(out, aspect) for out in traced]:
            return OutputDifference(math.inf, why=f"answers have another {aspect}")
    pairs = list(zip(written, traced, strict=True))
    if any(out.requires_grad and not other.requires_grad for out, other in pairs):
        return OutputDifference(math.inf, why="answers carry no gradient")
    worst = OutputDifference(0.0)
    for out, other in pairs:
        if not out.numel():
            continue
        try:
            distance, scale, eps = apart(out, other), largest(out), 0.0
        except NotMeasured as error:
            raise CannotRerun(str(error)) from None
        if out.dtype.is_floating_point or out.dtype.is_complex:
            eps = torch.finfo(out.dtype).eps
        why = "" if distance < NOT_FINITE else "outputs are not finite, or not in the same places"
        found = OutputDifference(math.inf if why else distance, scale, WATCH_ROUNDINGS * eps * scale, why)
        if found.distance - found.limit > worst.distance - worst.limit or not worst.scale:
            worst = found
    return worst


class GraphCopies:
    """Copies of the graphs that are passed to a backend, until the bytecode that calls them is known."""

    def __init__(self) -> None:
        self._graphs: dict[str, tuple[fx.GraphModule, bool, bool]] = {}

    def around(self, call_backend: Callable[..., Any]) -> Callable[..., Any]:
        """Return `OutputGraph.call_user_compiler` with a copy made before."""

        def call_and_copy(output_graph: Any, module: fx.GraphModule, inputs: list[Tensor]) -> object:  # noqa: ANN401
            name = str(module.meta.get("backend_id"))
            # A backend may change the graph. Its examples are not held.
            traced = copy.deepcopy(module.graph)
            for node in traced.nodes:
                node.meta.clear()
            graph = fx.GraphModule(module, traced)
            compiled = call_backend(output_graph, module, inputs)
            is_run = getattr(compiled, "__self__", None) is module
            backend = getattr(output_graph.compiler_fn, "compiler_name", "")
            self._graphs[name] = graph, is_run, is_run or backend == "aot_eager"
            return compiled

        return call_and_copy

    def take(self, code: CodeType, owner: object, scope: Mapping[str, Any]) -> TracedRegion | None:
        """Return the region of a code; `owner` is the caller that has its bytecode, if this torch has one."""
        bytecode = getattr(owner, "bytecode", None)
        if not isinstance(bytecode, CodeType):
            return None
        taken = {name: self._graphs.pop(name) for name in bytecode.co_names if name in self._graphs}
        # A capture for a saved artifact passes its graph to the backend later.
        later = type(owner).__name__ == "GraphCaptureOutput"
        interpreted, eager_kernels = (
            not later and all(entry[place] for entry in taken.values()) for place in (1, 2)
        )
        graphs = {name: graph for name, (graph, *_) in taken.items()}
        return TracedRegion(code, bytecode, graphs, scope, interpreted, eager_kernels)
