"""Settings of engines that change how a decoder is compiled, captured or scheduled: each with its arms.

`AXES` is the one table, which `list axes` prints: an axis has the arms that play it, or the reason why none
does. `engine_flags` has the settings of vLLM for an arm, so that a finding can be tried there.

Names and meanings are those of vLLM 0.33.0 (vllm/config/compilation.py, vllm/compilation/decorators.py and
wrapper.py, vllm/config/scheduler.py) and sglang 0.5.23 (sglang/srt/model_executor/cuda_graph_config.py,
sglang/srt/compilation/torch_compile_decoration.py).
"""

import json
from dataclasses import dataclass

from deepstack_harness.contract.arm import (
    ArmSpec,
    Backend,
    Capture,
    GuardPolicy,
    PayloadPolicy,
    ShapePolicy,
)

_CUDAGRAPH_MODES = {
    Capture.FULL: "FULL",
    Capture.PIECEWISE: "PIECEWISE",
    Capture.BREAKABLE: "PIECEWISE",
    Capture.FULL_DECODE_ONLY: "FULL_DECODE_ONLY",
    Capture.FULL_AND_PIECEWISE: "FULL_AND_PIECEWISE",
}
_SHAPE_TYPES = {
    ShapePolicy.MARK_UNBACKED: "unbacked",
    ShapePolicy.BACKED_SIZE_OBLIVIOUS: "backed_size_oblivious",
}


def engine_flags(arm: ArmSpec) -> str:
    """Return the flags and the environment of `vllm serve` for an arm; empty if the engine has none."""
    not_in_engine = (
        arm.payload is not PayloadPolicy.BUFFER,
        arm.guards is GuardPolicy.KEEP_TENSOR,
        arm.shapes is ShapePolicy.STATIC,
        arm.capture is Capture.REDUCE_OVERHEAD,
        arm.breaks,
        # vLLM saves what Inductor compiled in mode 3, and switches that off for backend eager.
        arm.reloaded and (arm.by_inductor, arm.guards) != (True, GuardPolicy.DROP_ALL),
        # vLLM asserts that evaluate_guards is off for unbacked sizes: they have no guards.
        arm.guards is GuardPolicy.SHAPE_ENV_ONLY and arm.shapes is ShapePolicy.MARK_UNBACKED,
    )
    if any(not_in_engine):
        return ""
    if not arm.compiled and not arm.captured and arm.ranks == 1:
        return "--enforce-eager"
    ranks = f"--tensor-parallel-size {arm.ranks} " if arm.ranks > 1 else ""
    return f"{ranks}--compilation-config '{json.dumps(_config(arm))}'{_environment(arm)}"


def _config(arm: ArmSpec) -> dict[str, object]:
    # Modes of vLLM's CompilationConfig: 0 not compiled, 1 stock torch.compile, 2 one Dynamo trace with any
    # backend, 3 vLLM's own. Modes 2 and 3 drop guards.
    config: dict[str, object] = {"mode": 0}
    if arm.compiled:
        dropping = 2 if arm.backend is Backend.AOT_EAGER else 3
        config = {
            "mode": 1 if arm.guards is GuardPolicy.STOCK else dropping, "backend": arm.backend.compiler,
        }  # fmt: skip
    shapes: dict[str, object] = {"type": _SHAPE_TYPES[arm.shapes]} if arm.shapes in _SHAPE_TYPES else {}
    if arm.guards is GuardPolicy.SHAPE_ENV_ONLY:
        # A debugging mode, whose docstring requires the two variables of `_environment`.
        shapes["evaluate_guards"] = True
    if shapes:
        config["dynamic_shapes_config"] = shapes
    if arm.captured:
        config["cudagraph_mode"] = _CUDAGRAPH_MODES[arm.capture]
    if arm.ranks > 1:
        config["pass_config"] = {"enable_sp": True}
    return config


def _environment(arm: ArmSpec) -> str:
    if arm.guards is GuardPolicy.SHAPE_ENV_ONLY:
        return " with VLLM_USE_BYTECODE_HOOK=0 VLLM_USE_AOT_COMPILE=0"
    if arm.reloaded:
        return " with VLLM_USE_AOT_COMPILE=1, started twice"
    if arm.ranks > 1:
        return " (up to 0.31: later releases have no enable_sp)"
    return " with VLLM_USE_BREAKABLE_CUDAGRAPH=1" if arm.capture is Capture.BREAKABLE else ""


@dataclass(frozen=True)
class EngineAxis:
    """One setting of engines, with the arms that play it.

    `vllm` and `sglang` are the setting as the engine writes it, "" where it has none. `missing` names the
    part that no arm plays, and the reason; an axis without arms has only that.
    """

    name: str
    vllm: str
    sglang: str = ""
    arms: tuple[str, ...] = ()
    missing: str = ""


_NO_TRACE = "no trace of a buffer has draft tokens"
AXES = (
    EngineAxis(
        "guards dropped", "mode 2 or 3 (default 3)", "",
        ("eager/drop_all", "aot_eager/drop_all", "inductor/drop_all", "h200/drop_all"),
    ),
    EngineAxis(
        "guards kept", "mode 1", "--enable-torch-compile, each size for itself",
        ("eager/stock", "inductor/stock", "eager/stock/static"),
    ),
    EngineAxis(
        "evaluate_guards", "dynamic_shapes_config.evaluate_guards", "",
        ("eager/shape_env_only", "aot_eager/shape_env_only", "inductor/shape_env_only"),
        "guards on None, types and values stay dropped there too, as in the engine",
    ),
    EngineAxis(
        "unbacked sizes", "dynamic_shapes_config.type unbacked", "",
        ("eager/drop_all/mark_unbacked", "inductor/drop_all/mark_unbacked", "h200/drop_all/mark_unbacked"),
    ),
    EngineAxis(
        "backed_size_oblivious", "dynamic_shapes_config.type backed_size_oblivious", "",
        ("eager/drop_all/backed_size_oblivious", "inductor/drop_all/backed_size_oblivious"),
    ),
    EngineAxis(
        "saved artifacts", "VLLM_USE_AOT_COMPILE (default 1 from torch 2.10 on), second start", "",
        ("eager/drop_all/reloaded", "eager/stock/reloaded", "inductor/drop_all/reloaded"),
        "the cache key of the engine; `torch.compiler.save_cache_artifacts`, which saves compiled code "
        "without guards or the structure of arguments",
    ),
    EngineAxis(
        "graph partition", "use_inductor_graph_partition", "", (),
        "on a CPU Inductor hands no partition to a graph (run on torch 2.13), as no node there may be in a "
        "CUDA graph; with interpreted code for a GPU it was not tried",
    ),
    EngineAxis(
        "full graphs", "cudagraph_mode FULL", "--cuda-graph-backend-decode full",
        ("eager/full", "eager/drop_all/full", "inductor/drop_all/full"),
    ),
    EngineAxis(
        "piecewise graphs", "cudagraph_mode PIECEWISE", "",
        ("eager/piecewise", "eager/drop_all/piecewise", "inductor/drop_all/piecewise"),
    ),
    EngineAxis(
        "breakable graphs", "VLLM_USE_BREAKABLE_CUDAGRAPH", "--cuda-graph-backend-prefill breakable",
        ("eager/breakable", "eager/drop_all/breakable", "inductor/drop_all/breakable"),
    ),
    EngineAxis(
        "full graphs to decode", "cudagraph_mode FULL_DECODE_ONLY",
        "--cuda-graph-backend-decode full --cuda-graph-backend-prefill disabled",
        ("eager/full_decode_only", "eager/drop_all/full_decode_only"),
    ),
    EngineAxis(
        "full and piecewise graphs", "cudagraph_mode FULL_AND_PIECEWISE (default)", "",
        ("eager/full_and_piecewise", "eager/drop_all/full_and_piecewise"),
    ),
    EngineAxis(
        "async scheduling", "--async-scheduling (default)", "on unless --disable-overlap-schedule", (),
        "a stream keeps the set of the next step behind the reads of this one; what overtakes is host memory "
        "that a copy still reads, which a CPU does not show. That set copies is judged under every arm, on a "
        "caller's tensor that is overwritten behind it",
    ),
    EngineAxis(
        "sequence parallelism", "pass_config.enable_sp, up to 0.31", "",
        ("eager/tp2", "aot_eager/drop_all/tp2"),
    ),
    EngineAxis(
        "speculative decoding", "--speculative-config", "--speculative-algorithm", (), _NO_TRACE,
    ),
)  # fmt: skip
"""Every axis, in the order of `list axes`; each arm is one of `deepstack_harness.contract.arm.every_arm`."""
