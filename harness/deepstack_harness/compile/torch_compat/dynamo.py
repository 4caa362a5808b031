"""Read and set Dynamo: graphs, recompiles with reasons, breaks, guards that are really checked, cold caches.

Read in torch 2.10 .. 2.15. Dynamo stores only 64 compilation metrics, so `start_counting` is called once for
each session.

Dynamo takes as long to import as torch itself, and Inductor too: the functions import them, so that a worker
that compiles nothing starts in half the time.
"""

import os
import re
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from importlib import import_module
from pathlib import Path
from types import CodeType, MethodType
from typing import Any

import torch
from torch import Tensor, fx

from deepstack_harness.compile.torch_compat.guard_sources import OWN_GUARD

_TORCH = f"{Path(torch.__file__).parent}{os.sep}"
_COMPILER = tuple(f"{_TORCH}{part}{os.sep}" for part in ("_dynamo", "_inductor", "_functorch"))
_ADDRESS = re.compile(r"(___check_(?:type|obj)_id\(.*?), \d+")


def load() -> None:
    """Import Dynamo now, in a process of which it is known that it compiles.

    And what its first compilation imports, which takes 0.7 s: a server that forks workers does it once.
    """
    for module in ("torch._dynamo", "torch._dynamo.backends.common", "sympy.tensor.tensor", "torch.export"):
        import_module(module)


def start_counting(*, warm: bool = False) -> None:
    """Drop every compiled graph and set all counters to zero.

    `warm` only drops the recompiles that were recorded: graphs and the counts of graphs and breaks stay.
    """
    from torch._dynamo.utils import clear_compilation_metrics, counters

    if not warm:
        torch.compiler.reset()
        counters.clear()
    clear_compilation_metrics()


_GRAPH = "do not trace Dynamo-compiled graph"
"""Why Dynamo disables itself around each graph that a backend compiled."""


@contextmanager
def counting_runs() -> Iterator[Callable[[], int]]:
    """Count the runs of compiled graphs, whoever compiled them and when; gives a function that returns them.

    A call of what torch.compile returned is none where the stance, or a function that is disabled, leaves the
    code uncompiled. Run on torch 2.10, 2.13 and 2.15: `OutputGraph.call_user_compiler` disables Dynamo around
    each graph, for a reason of its own, and each call of such a function calls `_callback_from_stance` once,
    from a frame whose `self` has that reason.
    """
    from torch._dynamo import eval_frame

    ask_stance, runs = eval_frame._callback_from_stance, 0

    def count(callback: Any) -> Any:  # noqa: ANN401  # a function, False or None, as torch passes it
        nonlocal runs
        disabled = sys._getframe(1).f_locals.get("self")
        runs += getattr(disabled, "msg", None) == _GRAPH
        return ask_stance(callback)

    eval_frame._callback_from_stance = count
    try:
        yield lambda: runs
    finally:
        eval_frame._callback_from_stance = ask_stance


def backends_used() -> tuple[str, ...]:
    """Return the names of the backends of all graphs that are compiled now, sorted.

    A callable that was given as a backend is named as it names itself. Read in torch 2.13:
    `torch._TorchCompileWrapper.compiler_name`.
    """
    from torch._dynamo.convert_frame import input_codes
    from torch._dynamo.eval_frame import _debug_get_cache_entry_list

    codes = [code for reference in input_codes.seen if (code := reference()) is not None]
    backends = [entry.backend for code in codes for entry in _debug_get_cache_entry_list(code)]
    return tuple(sorted({str(getattr(backend, "compiler_name", backend)) for backend in backends}))


def mark_dynamic(tensor: torch.Tensor, dim: int) -> None:
    """Compile with a symbol for the size of `dim` of a tensor of any shape, instead of its first value."""
    from torch._dynamo import decorators

    decorators.mark_dynamic(tensor, dim)


def mark_unbacked(tensor: torch.Tensor, dim: int) -> None:
    """Compile with a size of `dim` that nothing may look at: 0 and 1 get no graph of their own.

    The tensor may have any shape. A branch on such a size raises while compiling.
    """
    from torch._dynamo import decorators

    decorators.mark_unbacked(tensor, dim)


def size_oblivious() -> AbstractContextManager[None]:
    """While open, compile with symbols that are not specialised for 0 and 1: vLLM's `backed_size_oblivious`.

    Sizes that are marked dynamic keep their value as a hint, which a plain branch follows; `guard_or_false`
    and its kin take their default. Run on torch 2.10 .. 2.15:
    `torch.fx.experimental._config.backed_size_oblivious`.
    """
    from torch.fx.experimental import _config

    opened: AbstractContextManager[None] = _config.patch(backed_size_oblivious=True)  # type: ignore[attr-defined]
    return opened


def graphs_built() -> int:
    """Count the graphs passed to the backend since `start_counting`."""
    from torch._dynamo.utils import counters

    return int(counters["stats"]["unique_graphs"])


def graph_breaks() -> int:
    """Count the graph breaks since `start_counting`, whatever their reason."""
    from torch._dynamo.utils import counters

    return sum(counters["graph_break"].values())


def recompile_reasons() -> list[str]:
    """Return, for each recompile, the guard that failed, in Dynamo's words, without the source line.

    Types and objects are guarded by their address, which no other process shares: it is left out.
    """
    from torch._dynamo.utils import get_compilation_metrics

    reasons = [metrics.recompile_reason for metrics in get_compilation_metrics()]
    lines = [reason.splitlines()[0].split("#")[0].strip() for reason in reasons if reason]
    return [_ADDRESS.sub(r"\1", line) for line in lines]


def checked_guards(code: CodeType) -> int:
    """Count the guards that torch evaluates on calls of `code`, over all its cached graphs.

    Counted in the guard trees themselves, so it shows whether a guard filter was
    really applied (`torch.compile` pops `guard_filter_fn` out of the caller's
    options: a reused dict turns every guard back on).
    """
    from torch._dynamo.eval_frame import _debug_get_cache_entry_list

    trees = (str(entry.guard_manager) for entry in _debug_get_cache_entry_list(code))
    nodes = (line.lstrip("| ") for tree in trees for line in tree.splitlines() if "+- " in line)
    return sum("GuardManager" not in node and OWN_GUARD not in node for node in nodes)


def failing_guards(code: CodeType, values: Mapping[str, object]) -> tuple[str, ...]:
    """Return the first guard of each graph of `code` that refuses a call with these arguments, as Python.

    `values` are the arguments by name, `self` included. A graph that would take the call adds none.
    Run on torch 2.10, 2.13 and 2.15: `GuardManager.check_verbose`, whose `verbose_code_parts` are all guards
    on sizes where one of them fails, as `torch._dynamo.guards.get_guard_fail_reason` reads them.
    """
    from torch._dynamo.eval_frame import _debug_get_cache_entry_list

    failing = []
    for manager in (entry.guard_manager for entry in _debug_get_cache_entry_list(code)):
        result = manager.check_verbose(dict(values))
        parts = [str(part).split("#")[0].strip() for part in result.verbose_code_parts]
        if not result.result and parts:
            scope = {"L": dict(values), **(manager.closure_vars or {})}
            fails = (
                part
                for part in parts
                if len(parts) == 1 or not _holds(part, manager.global_scope or {}, scope)
            )
            failing.append(_ADDRESS.sub(r"\1", next(fails, parts[0])))
    return tuple(failing)


def _holds(guard: str, outer: Mapping[str, object], scope: Mapping[str, object]) -> bool:
    """Evaluate a guard that Dynamo wrote; True for one that cannot be evaluated outside of its C++ guard."""
    try:
        return bool(eval(guard, dict(outer), dict(scope)))  # text of torch's own
    except Exception:  # noqa: BLE001  # a name that only the C++ guard knows
        return True


_SETTINGS = ("fail_on_recompile_limit_hit", "automatic_dynamic_shapes", "assume_static_by_default")
_SETTINGS_BEFORE: list[dict[str, object]] = []
"""The user's settings, once for each `refuse_silent_fallback` that is open."""


@contextmanager
def refuse_silent_fallback() -> Iterator[None]:
    """Raise at the recompile limit while open, instead of running eager from then on.

    Also put back the settings that `dynamic=False` changes during a call.  With `fullgraph=True`, a call
    that finds no frame to compile raises before torch puts them back (`compile_wrapper` in
    `torch/_dynamo/eval_frame.py` of 2.13): every int would be a constant from then on, in the whole process.

    Sessions are closed in any order; the settings are the user's again once the last one is closed.
    """
    from torch._dynamo import config

    before = _SETTINGS_BEFORE[0] if _SETTINGS_BEFORE else {name: getattr(config, name) for name in _SETTINGS}
    _SETTINGS_BEFORE.append(before)

    def set_all(settings: Mapping[str, object]) -> None:
        for name, value in settings.items():
            if getattr(config, name) != value:
                setattr(config, name, value)

    set_all({**before, "fail_on_recompile_limit_hit": True})
    try:
        yield
    finally:
        _SETTINGS_BEFORE.pop()
        set_all({**before, "fail_on_recompile_limit_hit": True} if _SETTINGS_BEFORE else before)


def uncompiled(region: Callable[..., object]) -> Callable[..., object]:
    """Return what a function, a bound method or a module that torch.compile made was made of.

    Anything else is returned as it is. Both names are private, and the same in torch 2.10 .. 2.15.
    """
    if isinstance(region, MethodType):
        function = uncompiled(region.__func__)
        return region if function is region.__func__ else MethodType(function, region.__self__)
    name = "_orig_mod" if isinstance(region, torch.nn.Module) else "_torchdynamo_orig_callable"
    made_of: Callable[..., object] = getattr(region, name, region)
    return made_of


def is_recompile_limit(error: BaseException) -> bool:
    """Return whether Dynamo gave up compiling; with its default setting it would run eager silently."""
    return "RecompileLimit" in type(error).__name__


_REFUSING = ("torch._dynamo", "torch._inductor", "torch._subclasses", "torch.fx")


def is_refusal(error: BaseException) -> bool:
    """Return whether the compiler raised instead of using a graph for what it was not made for.

    An exception of the compiler's own, a recompile under a stance that forbids it, or an assertion of sizes
    and strides at the head of Inductor's code ("expected size 4==3"; C++, so that it has no class of its
    own).
    """
    if type(error).__module__.startswith(_REFUSING):
        return True
    text = str(error) if isinstance(error, RuntimeError | AssertionError) else ""
    return "Detected recompile" in text or text.startswith(("expected size", "wrong number of dimensions"))


_INTERNAL = frozenset({"InternalTorchDynamoError", "BackendCompilerFailed"})
"""Exceptions of `torch._dynamo.exc` for what went wrong in Dynamo or a backend itself; Inductor's are
subclasses of the second. What the traced code did wrong is another one (`TorchRuntimeError`)."""


def is_compiler_fault(error: BaseException) -> bool:
    """Return whether Dynamo or Inductor failed in code of its own, and not in the code that it compiles.

    So it is where no C++ compiler is installed (`InvalidCxxCompiler`), where Dynamo meets what it does not
    know, and where a warning of Dynamo is an error (`-W error`). Where the innermost frame is not torch's,
    code under test raised, and Dynamo has wrapped it.
    """
    kinds = {kind.__name__ for kind in type(error).__mro__ if kind.__module__ == "torch._dynamo.exc"}
    frames = traceback.extract_tb(error.__traceback__)
    compiling = any(frame.filename.startswith(_COMPILER) for frame in frames)
    raised = bool(kinds & _INTERNAL) or (isinstance(error, Warning) and compiling)
    return raised and bool(frames) and frames[-1].filename.startswith(_TORCH)


def compile_piece(piece: fx.GraphModule, inputs: Sequence[Tensor], backend: str) -> Callable[..., Any]:
    """Compile a piece of a graph that Dynamo has traced, with a backend (`aot_eager`, `inductor`).

    `inputs` are examples: the compiled code is for their shapes and dtypes.
    `torch.compile` of a piece does nothing inside a graph that is compiled already.
    """
    from torch._dynamo.backends.registry import lookup_backend

    (output,) = piece.graph.find_nodes(op="output")
    alone = not isinstance(output.args[0], tuple)
    if alone:  # AOTAutograd wants a tuple
        output.args = ((output.args[0],),)
        piece.recompile()
    compiled: Callable[..., Any] = lookup_backend(backend)(piece, list(inputs))
    return (lambda *args: compiled(*args)[0]) if alone else compiled


def pieces_compiled() -> int:
    """Count the graphs that went through AOTAutograd since the counters were set to zero.

    Dynamo's own do not count.
    """
    from torch._dynamo.utils import counters

    return int(counters["aot_autograd"]["total"])


def cold_caches() -> AbstractContextManager[None]:
    """Start with empty caches of Inductor on disk and in memory, while open, and bring the others back."""
    from torch._inductor.utils import fresh_cache

    opened: AbstractContextManager[None] = fresh_cache()
    return opened


def graphs_skipped() -> int:
    """Count the graphs that Inductor runs without a CUDA graph, since `dynamo.start_counting`."""
    from torch._dynamo.utils import counters

    return int(counters["inductor"]["cudagraph_skips"])
