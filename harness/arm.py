"""Arms: the ways to run a decoder, by name.

An arm is `eager`, a control (`no-deepstack`, `zero-deepstack`: eager with the
payload taken away or zeroed), or `BACKEND/GUARDS[/SHAPES]`, such as
`inductor/drop_all`.
"""

from __future__ import annotations

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


# The engine's own settings for the same thing, from vLLM's CompilationConfig
# (vllm/config/compilation.py): mode 1 is stock torch.compile, mode 3 the engine's
# own, which drops guards; evaluate_guards keeps the SHAPE_ENV guards.
_ENGINE_FLAGS = {
    GuardPolicy.NONE: "--enforce-eager",
    GuardPolicy.STOCK: '--compilation-config \'{"mode": 1}\'',
    GuardPolicy.DROP_ALL: '--compilation-config \'{"mode": 3}\'',
    GuardPolicy.SHAPE_ENV_ONLY: (
        '--compilation-config \'{"mode": 3, "dynamic_shapes_config": {"evaluate_guards": true}}\''
    ),
    GuardPolicy.KEEP_TENSOR: "",
}
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
        """The vLLM flags that correspond, empty where the engine has none."""
        return _ENGINE_FLAGS[self.guards] if self.payload is PayloadPolicy.BUFFER else ""

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
