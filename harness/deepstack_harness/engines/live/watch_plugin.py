"""Watch a vLLM: the entry point `deepstack_harness` of its group `vllm.general_plugins`.

vLLM calls `watch_vllm` in each of its processes before it loads a model. Without the variable of a watch it
returns at once, and nothing is imported. Otherwise this process is watched from here on, and four things of
vLLM are seen that a watch of only torch does not see (read in 0.22.1 .. 0.33.0):

- replays of CUDA graphs, by the wrappers that capture them (`compilation/cuda_graph.py` and
  `compilation/breakable_cudagraph.py`): of the whole model, of each piece, and of each partition by
  Inductor, which they wrap too;
- calls of a graph whose bytecode was put in place of the model's own (`VLLM_USE_BYTECODE_HOOK`), in which
  Dynamo evaluates no guard;
- calls of a model that is not compiled at all, or not in this call (`watch_uncompiled`);
- compiled graphs in vLLM's cache, which have no guards: that cache is not used in a process that is watched,
  unless `VLLM_DISABLE_COMPILE_CACHE` is set otherwise. `VLLM_USE_AOT_COMPILE` would follow it, and stays
  what it would have been.

What cannot be watched is reported, and ends nothing.
"""

import inspect
import json
import os
from collections.abc import Callable, MutableMapping
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from deepstack_harness.compile import watch_process
from deepstack_harness.engines.live.watch_uncompiled import patch_once, watch_uncompiled

CACHE, AOT = "VLLM_DISABLE_COMPILE_CACHE", "VLLM_USE_AOT_COMPILE"
"""Variables of vLLM (vllm/envs.py): no cache of compiled graphs; graphs are compiled ahead of time."""
BYTECODE = "VLLM_USE_BYTECODE_HOOK"
"""Variable of vLLM: the bytecode of the first graph is run in place of the model's, without its guards."""
SET = "DEEPSTACK_HARNESS_WATCH_SET"
"""Variable of this plugin: what it set in a process, as JSON, for the processes that the engine starts."""
_WRAPPERS = (("cuda_graph", "CUDAGraphWrapper"), ("breakable_cudagraph", "BreakableCUDAGraphWrapper"))


def watch_vllm() -> None:
    """Watch this process, where the variable of a watch is set; may be called several times."""
    watch_process.watch_engine("vllm", _prepare)


def _prepare() -> str:
    """Mark what captures and replays; return the line of the report about this engine."""
    envs = import_module("vllm.envs")
    cache = without_cache(os.environ, lambda: bool(envs.VLLM_USE_AOT_COMPILE))
    compilation = "vllm.compilation"
    patch_once(import_module(f"{compilation}.wrapper").TorchCompileWithNoGuardsWrapper, "__call__", _asking)
    for name, wrapper in _WRAPPERS:
        if find_spec(f"{compilation}.{name}") is not None:
            patch_once(getattr(import_module(f"{compilation}.{name}"), wrapper), "__call__", _marked)
    watch_uncompiled()
    return f"vllm {import_module('vllm').__version__}: {cache}"


def without_cache(environment: MutableMapping[str, str], compiles_ahead: Callable[[], bool]) -> str:
    """Turn the cache of compiled graphs off; return the line of the report about it.

    What the user has set is left, and with the cache on a graph from it is reported as one without guards.
    Where guards are put back, graphs are not compiled ahead, nor run by their bytecode, whatever is set: the
    one ends the engine where a guard fails, the other evaluates none. A setting that the watch of a
    parent process made is not the user's.
    """
    inherited = json.loads(environment.get(SET, "{}"))
    users = {name for name in (CACHE, AOT) if name in environment} - {
        name for name, value in inherited.items() if environment.get(name) == value
    }
    wanted = {} if CACHE in users else {CACHE: "1"}
    why = "a graph of a cache has no guards"
    if json.loads(environment.get(watch_process.RESTORED, "[]")):
        wanted |= {AOT: "0", BYTECODE: "0"}
        why = "torch can compile again only then"
    elif wanted and AOT not in users:
        wanted[AOT] = environment.get(AOT) or ("1" if compiles_ahead() else "0")
    if wanted:
        environment.update({**wanted, SET: json.dumps(wanted)})
    made = " and ".join(f"{name}={value}" for name, value in wanted.items())
    texts = [f"{made}, set by the watch: {why}"] if wanted else []
    texts += [f"{name}={environment[name]}, as it was set" for name in sorted(users - wanted.keys())]
    return "; ".join(texts)


def _asking(call: Callable[..., Any]) -> Callable[..., Any]:
    """Evaluate the guards of a graph whose bytecode is run in place of the model's `forward`."""
    from deepstack_harness.compile.torch_compat.guards import call_own_guards

    def asked(self: Any, *args: Any, **kwargs: Any) -> object:  # noqa: ANN401
        if getattr(self, "_compiled_bytecode", None) is not None:
            bound = inspect.signature(type(self).forward).bind(self, *args, **kwargs)
            bound.apply_defaults()
            call_own_guards(self.original_code_object(), bound.arguments)
        return call(self, *args, **kwargs)

    return asked


def _marked(call: Callable[..., Any]) -> Callable[..., Any]:
    """Mark the call of a wrapper as one around the graphs that it captures and replays."""
    from torch import nn

    from deepstack_harness.compile.captured_inputs import CapturedCode
    from deepstack_harness.compile.watch_captured import calling

    def marked(self: Any, *args: Any, **kwargs: Any) -> object:  # noqa: ANN401
        code = self.unwrap()
        if not isinstance(code, nn.Module):  # a piece of a graph: its arguments have no names
            piece = getattr(code, "submod_name", None) or getattr(code, "__name__", type(code).__name__)
            code = CapturedCode(f"piece {piece}", id(self))
        with calling(code, args, kwargs):
            return call(self, *args, **kwargs)

    return marked
