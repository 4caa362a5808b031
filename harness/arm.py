"""Arms: the ways to run a decoder, by name.

An arm is `eager`, a control (`no-deepstack`, `zero-deepstack`: eager with the
payload taken away or zeroed), or `BACKEND/GUARDS[/SHAPES]`, such as
`inductor/drop_all`.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from harness.errors import UsageError

if TYPE_CHECKING:
    from harness.protocols import Decoder, Profile, Session


class GuardPolicy(StrEnum):
    """Which guards of a compiled graph are kept, and so checked at every call."""

    NONE = "none"
    STOCK = "stock"
    DROP_ALL = "drop_all"
    SHAPE_ENV_ONLY = "shape_env_only"
    KEEP_TENSOR = "keep_tensor"


class ShapePolicy(StrEnum):
    """How the token dimension of the arguments is marked before the first compile."""

    NONE = "none"
    MARK_DYNAMIC = "mark_dynamic"


class Backend(StrEnum):
    """The torch.compile backend."""

    NONE = "none"
    EAGER = "eager"
    AOT_EAGER = "aot_eager"
    INDUCTOR = "inductor"


class Capture(StrEnum):
    """How graphs are captured and replayed."""

    NONE = "none"


class PayloadPolicy(StrEnum):
    """What the decoder is given: the buffer's answer, or a control in its place."""

    BUFFER = "buffer"
    NONE = "none"
    ZERO = "zero"


# The engine's modes, from vLLM's CompilationConfig (vllm/config/compilation.py, 0.33.0):
# 1 stock torch.compile, 2 one Dynamo trace with any backend, 3 its own; 2 and 3 drop guards.
_STOCK, _TRACE_ONCE, _ENGINE = 1, 2, 3
_GUARDS = {
    GuardPolicy.STOCK: "guards kept",
    GuardPolicy.DROP_ALL: "guards dropped, as the engine does",
    GuardPolicy.SHAPE_ENV_ONLY: "only SHAPE_ENV guards kept, recompiles refused",
    GuardPolicy.KEEP_TENSOR: "only tensor guards kept",
}
_CONTROLS = {
    "eager": (PayloadPolicy.BUFFER, "not compiled: what the others are compared with"),
    "no-deepstack": (PayloadPolicy.NONE, "control: not compiled, payload None"),
    "zero-deepstack": (PayloadPolicy.ZERO, "control: not compiled, payload all zeros"),
}


@dataclass(frozen=True)
class ArmSpec:
    """One way to run: guard policy, shape policy, backend, capture mode, payload."""

    guards: GuardPolicy = GuardPolicy.NONE
    shapes: ShapePolicy = ShapePolicy.NONE
    backend: Backend = Backend.NONE
    capture: Capture = Capture.NONE
    payload: PayloadPolicy = PayloadPolicy.BUFFER

    @property
    def name(self) -> str:
        """The public name; `parse` reads it back."""
        if self.backend is Backend.NONE:
            return next(name for name, (payload, _) in _CONTROLS.items() if payload is self.payload)
        return f"{self.backend}/{self.guards}"

    @property
    def compiled(self) -> bool:
        """Whether torch.compile takes part."""
        return self.backend is not Backend.NONE

    @property
    def summary(self) -> str:
        """One line for `list arms`."""
        if not self.compiled:
            return _CONTROLS[self.name][1]
        return f"torch.compile, backend {self.backend}, {_GUARDS[self.guards]}"

    @property
    def engine_flags(self) -> str:
        """The vLLM flags (and environment) that correspond, empty where the engine has none."""
        if self.payload is not PayloadPolicy.BUFFER or self.guards is GuardPolicy.KEEP_TENSOR:
            return ""
        if not self.compiled:
            return "--enforce-eager"
        config: dict[str, object] = {"mode": self._engine_mode, "backend": str(self.backend)}
        if self.guards is not GuardPolicy.SHAPE_ENV_ONLY:
            return _flag(config)
        # evaluate_guards is a debugging mode; its docstring asks for these two variables.
        config["dynamic_shapes_config"] = {"evaluate_guards": True}
        return f"{_flag(config)} with VLLM_USE_BYTECODE_HOOK=0 VLLM_USE_AOT_COMPILE=0"

    @property
    def _engine_mode(self) -> int:
        if self.guards is GuardPolicy.STOCK:
            return _STOCK
        return _TRACE_ONCE if self.backend is Backend.AOT_EAGER else _ENGINE

    @classmethod
    def parse(cls, name: str) -> ArmSpec:
        """Find an arm by name, or raise `UsageError` that lists all of them."""
        known = {arm.name: arm for arm in every_arm()}
        if name not in known:
            raise UsageError(f"unknown arm '{name}'; known are {', '.join(known)}")
        return known[name]

    def open(self, decoder: Decoder, profile: Profile) -> Session:
        """Start running `decoder` this way; nothing is compiled before the first forward."""
        from harness.registry import SESSIONS, resolve

        opener = resolve("session", SESSIONS, "compiled" if self.compiled else "eager")
        return opener(self, decoder, profile)  # type: ignore[operator, no-any-return]


def _flag(config: dict[str, object]) -> str:
    return f"--compilation-config '{json.dumps(config)}'"


def every_arm() -> Sequence[ArmSpec]:
    """All arms, controls first, then the cheap backends before the dear ones."""
    controls = [ArmSpec(payload=payload) for payload, _ in _CONTROLS.values()]
    compiled = [
        ArmSpec(guards, ShapePolicy.MARK_DYNAMIC, backend)
        for backend in (Backend.EAGER, Backend.AOT_EAGER, Backend.INDUCTOR)
        for guards in _GUARDS
    ]
    return [*controls, *compiled]


EAGER = ArmSpec()
