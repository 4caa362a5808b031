"""Arms: the ways to run a decoder, by name.

An arm is `eager`, a control (`no-deepstack`, `zero-deepstack`: eager with the payload taken away or zeroed),
or `BACKEND/GUARDS`, such as `inductor/drop_all`. The unusual parts follow in this order: a shape policy,
options of Inductor, `breaks`, `reloaded`, how graphs are captured, and how many ranks share a step:
`eager/full`, `inductor/drop_all/no_size_asserts`, `aot_eager/drop_all/tp2`.

The settings of engines that correspond to an arm are in `deepstack_harness.contract.engine_axes`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from deepstack_harness.errors import UsageError, unknown_name


class GuardPolicy(StrEnum):
    """The guards of a compiled graph that are not dropped, and so are checked at every call."""

    NONE = "none"
    STOCK = "stock"
    DROP_ALL = "drop_all"
    SHAPE_ENV_ONLY = "shape_env_only"
    KEEP_TENSOR = "keep_tensor"


class ShapePolicy(StrEnum):
    """The mark of the arguments' token dimension before the first compile.

    STATIC marks nothing: every size is compiled for itself. MARK_UNBACKED never
    specialises, 0 and 1 included, and cannot branch on a size: it needs a family
    whose attention does not (`qwen3_vl:written_out`). BACKED_SIZE_OBLIVIOUS does not specialise 0 and 1
    either, but may branch: a plain branch follows the first size, `guard_or_false` and `guard_or_true` take
    their default (`torch.fx.experimental._config.backed_size_oblivious`).
    """

    NONE = "none"
    MARK_DYNAMIC = "mark_dynamic"
    STATIC = "static"
    MARK_UNBACKED = "mark_unbacked"
    BACKED_SIZE_OBLIVIOUS = "backed_size_oblivious"


class Backend(StrEnum):
    """The torch.compile backend, or in place of it a device whose code of Inductor is interpreted.

    H200: the Triton source that Inductor generates for an H200, which need not be here, interpreted on the
    CPU. Races, PTX, layouts and CUDA graphs are not seen, matrix products and attention are torch's.
    """

    NONE = "none"
    EAGER = "eager"
    AOT_EAGER = "aot_eager"
    INDUCTOR = "inductor"
    H200 = "h200"

    @property
    def compiler(self) -> str:
        """The name of the torch.compile backend that takes part."""
        return str(Backend.INDUCTOR if self is Backend.H200 else self)


class Capture(StrEnum):
    """The way in which graphs are captured, and so which Python does not run again at a replay.

    FULL: get, decode and clear in one graph. PIECEWISE: the decoder between its
    attention calls; get and clear stay Python. BREAKABLE: as FULL, but attention is
    run again between the pieces. FULL_DECODE_ONLY: FULL for batches that only decode; a mixed batch, to
    which a visual payload was set, runs without a graph. FULL_AND_PIECEWISE: both graphs of each size, the
    PIECEWISE one for mixed batches. REDUCE_OVERHEAD: torch's own, CUDA only.
    """

    NONE = "none"
    FULL = "full"
    PIECEWISE = "piecewise"
    BREAKABLE = "breakable"
    FULL_DECODE_ONLY = "full_decode_only"
    FULL_AND_PIECEWISE = "full_and_piecewise"
    REDUCE_OVERHEAD = "reduce_overhead"


class InductorOption(StrEnum):
    """Settings of Inductor that change what is computed or checked.

    NO_SIZE_ASSERTS: input sizes are not compared with those compiled for (engines on
    torch < 2.12). EMULATE_CASTS: half precision is rounded between operations as
    eager does (`emulate_precision_casts`).
    """

    NO_SIZE_ASSERTS = "no_size_asserts"
    EMULATE_CASTS = "emulate_casts"


class PayloadPolicy(StrEnum):
    """The payload that the decoder gets: what the buffer's `get` returns, or a control in its place."""

    BUFFER = "buffer"
    NONE = "none"
    ZERO = "zero"


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
_RANKS = re.compile(r"tp([1-9]\d*)")
_SHAPES = {
    ShapePolicy.STATIC: "sizes compiled for themselves",
    ShapePolicy.MARK_UNBACKED: "sizes unbacked",
    ShapePolicy.BACKED_SIZE_OBLIVIOUS: "0 and 1 not specialised, defaults of guard_or taken",
}
_OPTIONS = {
    InductorOption.NO_SIZE_ASSERTS: "input sizes not asserted",
    InductorOption.EMULATE_CASTS: "rounding as eager does",
}
_DEVICES = {
    Backend.H200: "Triton source for an H200, interpreted on the CPU (no races, PTX, layouts or graphs)"
}
_CAPTURES = {
    Capture.FULL: "graph of get, decode and clear",
    Capture.PIECEWISE: "graphs of the pieces between attention calls",
    Capture.BREAKABLE: "graph of get, decode and clear, broken at attention",
    Capture.FULL_DECODE_ONLY: "graph of get, decode and clear for batches that only decode",
    Capture.FULL_AND_PIECEWISE: "graph of it all for batches that only decode, piecewise for mixed ones",
    Capture.REDUCE_OVERHEAD: "CUDA graphs by torch's own mode reduce-overhead",
}
_BREAKS, _RELOADED = "breaks", "reloaded"
_GRAMMAR = "BACKEND/GUARDS[/SHAPES][/OPTION][/breaks][/reloaded][/CAPTURE][/tpN]"


@dataclass(frozen=True)
class ArmSpec:
    """One way to run: guards, shapes, backend, capture mode, payload, ranks that share a step.

    `breaks`: fullgraph, with which engines compile, is left out. `reloaded`: what the first step compiled is
    saved, and a fresh process loads it and serves all later steps, as an engine does from a warm cache.

    >>> arm = ArmSpec.parse("inductor/drop_all/tp2")
    >>> arm.ranks, arm.compiled, arm.captured
    (2, True, False)
    """

    guards: GuardPolicy = GuardPolicy.NONE
    shapes: ShapePolicy = ShapePolicy.NONE
    backend: Backend = Backend.NONE
    capture: Capture = Capture.NONE
    payload: PayloadPolicy = PayloadPolicy.BUFFER
    options: tuple[InductorOption, ...] = ()
    ranks: int = 1
    breaks: bool = False
    reloaded: bool = False

    def __post_init__(self) -> None:
        """Refuse what does not go together."""
        if self.options and not self.by_inductor:
            raise UsageError(f"arm '{self.name}': {self.options[0]} is an option of backend inductor")
        if self.capture is Capture.REDUCE_OVERHEAD and self.backend is not Backend.INDUCTOR:
            raise UsageError(f"arm '{self.name}': reduce_overhead is a mode of backend inductor")
        if self.breaks and (not self.compiled or self.captured or self.interpreted):
            raise UsageError(f"arm '{self.name}': breaks are those of graphs of torch.compile alone")
        alone = self.captured or self.interpreted or self.breaks or self.ranks > 1
        if self.reloaded and (not self.compiled or alone):
            raise UsageError(
                f"arm '{self.name}': reloaded is a saved graph of torch.compile in another process, "
                "without captured graphs, ranks or breaks"
            )
        if self.interpreted and (self.captured or self.ranks > 1):
            raise UsageError(
                f"arm '{self.name}': the interpreter of {self.backend} code has no graphs to capture, "
                "and no ranks"
            )

    @property
    def name(self) -> str:
        """The public name; `parse` reads it back."""
        control = next(name for name, (payload, _) in _CONTROLS.items() if payload is self.payload)
        parts = [f"{self.backend}/{self.guards}" if self.compiled else control]
        parts += [str(self.shapes)] if self.shapes in _SHAPES else []
        parts += map(str, self.options)
        parts += [_BREAKS] if self.breaks else []
        parts += [_RELOADED] if self.reloaded else []
        parts += [str(self.capture)] if self.captured else []
        parts += [f"tp{self.ranks}"] if self.ranks > 1 else []
        return "/".join(parts)

    @property
    def columns(self) -> dict[str, Any]:
        """The fields of a `contract.verdicts.Row` that come from its arm, by name."""
        return {
            "arm": self.name, "guard_policy": self.guards, "shape_policy": self.shapes,
            "backend": self.backend, "capture": self.capture,
        }  # fmt: skip

    @property
    def compiled(self) -> bool:
        """Return whether torch.compile takes part."""
        return self.backend is not Backend.NONE

    @property
    def by_inductor(self) -> bool:
        """Return whether Inductor generates the code."""
        return self.backend in {Backend.INDUCTOR, Backend.H200}

    @property
    def interpreted(self) -> bool:
        """Return whether code for a GPU is interpreted on the CPU, and its accesses are recorded."""
        return self.backend is Backend.H200

    @property
    def captured(self) -> bool:
        """Return whether graphs are captured and replayed."""
        return self.capture is not Capture.NONE

    @property
    def summary(self) -> str:
        """One line for `list arms`."""
        if not self.compiled and not self.captured and self.ranks == 1:
            return _CONTROLS[self.name][1]
        how = (
            f"{_DEVICES.get(self.backend, f'torch.compile, backend {self.backend}')}, {_GUARDS[self.guards]}"
            if self.compiled
            else "not compiled"
        )
        parts = [how, _SHAPES.get(self.shapes), *map(_OPTIONS.get, self.options), _CAPTURES.get(self.capture)]
        parts += ["graph breaks allowed"] if self.breaks else []
        parts += ["saved after the first step and loaded by a fresh process"] if self.reloaded else []
        parts += [f"{self.ranks} ranks share a step"] if self.ranks > 1 else []
        return ", ".join(part for part in parts if part)

    @classmethod
    def parse(cls, name: str) -> ArmSpec:
        """Read an arm's name, or raise `UsageError` with the nearest ones and how others are made."""
        first, *rest = name.split("/")
        if first in _CONTROLS and first != "eager" and not rest:
            return cls(payload=_CONTROLS[first][0])
        parts = [meaning for part in rest for meaning in _meanings(part)]
        guards = next((part for part in parts if isinstance(part, GuardPolicy)), GuardPolicy.NONE)
        compiled = guards is not GuardPolicy.NONE
        if len(parts) == len(rest) and first in set(Backend) and (first == "eager" or compiled):
            shapes = ShapePolicy.MARK_DYNAMIC if compiled else ShapePolicy.NONE
            spec = cls(
                guards,
                next((part for part in parts if isinstance(part, ShapePolicy)), shapes),
                Backend(first) if compiled else Backend.NONE,
                next((part for part in parts if isinstance(part, Capture)), Capture.NONE),
                options=tuple(part for part in parts if isinstance(part, InductorOption)),
                ranks=next((part for part in parts if isinstance(part, int)), 1),
                breaks=_BREAKS in parts,
                reloaded=_RELOADED in parts,
            )
            if spec.name == name:
                return spec
        known = [arm.name for arm in every_arm()]
        others = f"'list arms' has the usual ones, and others are made as {_GRAMMAR}"
        raise unknown_name("arm", name, known, elsewhere=others)


_Part = GuardPolicy | ShapePolicy | InductorOption | Capture | int | str


def _meanings(part: str) -> Iterator[_Part]:
    """Iterate over the meanings of one part of a name: one, or none for an unknown part."""
    for kind in (GuardPolicy, ShapePolicy, InductorOption, Capture):
        if part in set(kind) and part != "none":
            yield kind(part)
    if ranks := _RANKS.fullmatch(part):
        yield int(ranks[1])
    if part in (_BREAKS, _RELOADED):
        yield part


def arm_names(written: Sequence[str] | str) -> tuple[str, ...]:
    """Return the names of arms, written one by one or in one text with commas."""
    return tuple(name.strip() for name in written.split(",")) if isinstance(written, str) else tuple(written)


def every_arm() -> Sequence[ArmSpec]:
    """Return the usual arms: controls, compiled arms by backend (fastest first), then unusual arms."""
    controls = [ArmSpec(payload=payload) for payload, _ in _CONTROLS.values()]
    compiled = [
        ArmSpec(guards, ShapePolicy.MARK_DYNAMIC, backend)
        for backend in (Backend.EAGER, Backend.AOT_EAGER, Backend.INDUCTOR)
        for guards in _GUARDS
    ]
    return [*controls, *compiled, *map(ArmSpec.parse, _UNUSUAL)]


_UNUSUAL = (
    "eager/stock/static", "eager/stock/static/breaks",
    "eager/drop_all/mark_unbacked", "inductor/drop_all/mark_unbacked",
    "eager/drop_all/backed_size_oblivious", "inductor/drop_all/backed_size_oblivious",
    "inductor/drop_all/no_size_asserts", "inductor/drop_all/emulate_casts",
    "eager/drop_all/reloaded", "eager/stock/reloaded", "inductor/drop_all/reloaded",
    "h200/drop_all", "h200/drop_all/no_size_asserts", "h200/drop_all/mark_unbacked", "h200/stock",
    "h200/shape_env_only",
    "eager/full", "eager/piecewise", "eager/breakable",
    "eager/full_decode_only", "eager/full_and_piecewise",
    "eager/drop_all/full", "eager/drop_all/piecewise", "eager/drop_all/breakable",
    "eager/drop_all/full_decode_only", "eager/drop_all/full_and_piecewise",
    "inductor/drop_all/full", "inductor/drop_all/piecewise", "inductor/drop_all/breakable",
    "inductor/drop_all/reduce_overhead", "eager/tp2", "aot_eager/drop_all/tp2",
)  # fmt: skip


EAGER = ArmSpec()
