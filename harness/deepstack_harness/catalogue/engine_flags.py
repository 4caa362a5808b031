"""vLLM settings that correspond to an arm, so that a finding can be tried in the engine."""

import json

from deepstack_harness.contract.arm_spec import (
    ArmSpec,
    Backend,
    Capture,
    GuardPolicy,
    PayloadPolicy,
    ShapePolicy,
)

# Modes of vLLM's CompilationConfig (vllm/config/compilation.py, 0.33.0): 0 not compiled, 1 stock
# torch.compile, 2 one Dynamo trace with any backend, 3 vLLM's own.  Modes 2 and 3 drop guards.
_NOT_COMPILED, _STOCK, _TRACE_ONCE, _ENGINE = 0, 1, 2, 3
_CUDAGRAPH_MODES = {Capture.FULL: "FULL", Capture.PIECEWISE: "PIECEWISE", Capture.BREAKABLE: "PIECEWISE"}


def engine_flags(arm: ArmSpec) -> str:
    """Return the flags and the environment of `vllm serve` for an arm; empty if the engine has none."""
    if arm.payload is not PayloadPolicy.BUFFER or not _engine_has(arm):
        return ""
    if not arm.compiled and not arm.captured and arm.ranks == 1:
        return "--enforce-eager"
    ranks = f"--tensor-parallel-size {arm.ranks} " if arm.ranks > 1 else ""
    return f"{ranks}--compilation-config '{json.dumps(_config(arm))}'{_environment(arm)}"


def _engine_has(arm: ArmSpec) -> bool:
    unknown = (
        arm.guards is GuardPolicy.KEEP_TENSOR,
        arm.shapes is ShapePolicy.STATIC,
        arm.capture is Capture.REDUCE_OVERHEAD,
        arm.breaks,
    )
    return not any(unknown)


def _config(arm: ArmSpec) -> dict[str, object]:
    config: dict[str, object] = {"mode": _mode(arm)}
    if arm.compiled:
        config["backend"] = arm.backend.compiler
    if arm.guards is GuardPolicy.SHAPE_ENV_ONLY:
        # A debugging mode, whose docstring asks for the two variables of `_environment`.
        config["dynamic_shapes_config"] = {"evaluate_guards": True}
    if arm.shapes is ShapePolicy.MARK_UNBACKED:
        config["dynamic_shapes_config"] = {"type": "unbacked"}
    if arm.captured:
        config["cudagraph_mode"] = _CUDAGRAPH_MODES[arm.capture]
    if arm.ranks > 1:
        config["pass_config"] = {"enable_sp": True}
    return config


def _environment(arm: ArmSpec) -> str:
    if arm.guards is GuardPolicy.SHAPE_ENV_ONLY:
        return " with VLLM_USE_BYTECODE_HOOK=0 VLLM_USE_AOT_COMPILE=0"
    if arm.ranks > 1:
        return " (up to 0.31: later releases have no enable_sp)"
    return " with VLLM_USE_BREAKABLE_CUDAGRAPH=1" if arm.capture is Capture.BREAKABLE else ""


def _mode(arm: ArmSpec) -> int:
    if not arm.compiled:
        return _NOT_COMPILED
    if arm.guards is GuardPolicy.STOCK:
        return _STOCK
    return _TRACE_ONCE if arm.backend is Backend.AOT_EAGER else _ENGINE
