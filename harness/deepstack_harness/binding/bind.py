"""Bind the buffer of a vLLM source to the `Buffer` interface."""

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch import nn

from deepstack_harness.binding.ambient import ambient, show_in_tracebacks
from deepstack_harness.binding.buffer import UpstreamBuffer
from deepstack_harness.binding.cut import STORAGE, NoBuffer, cut
from deepstack_harness.binding.cut_class import CutClass, Model, define
from deepstack_harness.binding.stand_ins import (
    STAND_INS,
    Host,
    IntermediateTensors,
    Settings,
    StageMissingLayer,
    Surroundings,
    VisionTower,
    vllm_config,
)
from deepstack_harness.errors import UsageError
from deepstack_harness.sources.source import NoSuchMember, Source, SourceFile

MODELS: Mapping[str, Model] = {
    "qwen3_vl": Model(
        "vllm/model_executor/models/qwen3_vl.py",
        "Qwen3VLForConditionalGeneration",
        since="0.11.0",
    ),
    "qwen3_omni_moe_thinker": Model(
        "vllm/model_executor/models/qwen3_omni_moe_thinker.py",
        "Qwen3OmniMoeThinkerForConditionalGeneration",
        since="0.11.1",
        nested="thinker_config",
    ),
}


@dataclass(frozen=True)
class BoundClass(CutClass[Host]):
    """A model class of one source, as a `BufferFactory`.

    `dataclasses.replace(bound, surroundings=...)` builds the model in another way.
    """

    surroundings: Surroundings = field(default_factory=Surroundings)

    def __call__(
        self, capacity: int, hidden: int, levels: int, *, dtype: torch.dtype, device: torch.device
    ) -> UpstreamBuffer:
        """Run the class's own allocation.

        dtype and device are the ambient ones, since the class names none.  Raises
        `UsageError` that names file and line when its `__init__` cannot be run.
        """
        config = vllm_config(capacity, hidden, levels, nested=self.model.nested, dtype=dtype, device=device)
        instance = self.host.__new__(self.host)
        try:
            with ambient(dtype, device):
                instance.surround(self.surroundings.tower, self._visual())
                type(instance).__init__(instance, **self.arguments(config))
        except Exception as error:
            raise self.refusal(error, ".__init__") from error
        return UpstreamBuffer(instance, self.cut, vision=self.surroundings.vision)

    def rehearse(self) -> None:
        """Refuse what would otherwise look like a fault of the buffer in the middle of a run.

        Raises `UsageError` when a method needs what only the whole vLLM has.
        """
        buffer = self(4, 5, 2, dtype=torch.float32, device=torch.device("cpu"))
        try:
            buffer.set(torch.ones(2, 3, 5))
            self._check_storage(buffer)
            buffer.get(3)
            buffer.clear(3)
        except UsageError:
            raise
        except Exception as error:
            # Anything else is the buffer's own fault, and for the run to report.
            if _is_ours(error):
                raise self.refusal(error) from error

    def _check_storage(self, buffer: UpstreamBuffer) -> None:
        try:
            found = buffer.capacity
        except (AttributeError, LookupError, TypeError):
            found = 0
        if not found:
            raise UsageError(f"{self.filename}: {self.model_class} keeps no rows per level in self.{STORAGE}")

    def _visual(self) -> nn.Module | None:
        """The vision tower, or what this release has in its place."""
        if self.surroundings.vision:
            return VisionTower()
        return StageMissingLayer() if "StageMissingLayer" in self.cut.replaced.values() else None


def bind(source: Source, model: str = "qwen3_vl") -> BoundClass:
    """Cut the buffer of `model` (a key of `MODELS`) out of `source`.

    Raises `UsageError` that says what is missing when this source has no such
    buffer, or one that cannot be run without vLLM; `MachineError` when the source
    cannot be fetched.
    """
    if model not in MODELS:
        raise UsageError(f"unknown model '{model}'; known are {', '.join(MODELS)}")
    chosen = MODELS[model]
    try:
        return bind_class(source, source.read(chosen.member), chosen)
    except (NoSuchMember, NoBuffer) as error:
        raise UsageError(
            f"{error}; {chosen.class_name} has its buffer from vLLM {chosen.since} on"
        ) from error


def bind_class(source: Source, file: SourceFile, model: Model, base: BoundClass | None = None) -> BoundClass:
    """Cut one class out of a file of `source`; `base` is its base class from another file, already bound.

    Raises `NoBuffer` for a class without one, and what `bind` raises.
    """
    stand_ins = {**STAND_INS, **({base.model_class: base.host} if base else {})}
    done = cut(
        file,
        model.class_name,
        host=base.host if base else Host,
        given=Host.GIVEN,
        stand_ins=stand_ins,
        inherited=base.inherited() if base else None,
    )
    show_in_tracebacks(file)
    given = {name: stand_ins[real] for name, real in done.replaced.items()}
    bound = BoundClass(source, model, done, define(done, given, base.host if base else Host))
    bound.rehearse()
    return bound


def where_returned(buffer: UpstreamBuffer, tokens: int) -> str:
    """Run get(`tokens`) once more and tell at which `return` it answered: `FILE:LINE`.

    For a diagnosis only: a get that resizes does so here too, and what a get
    raises comes through.
    """
    return buffer.where_returned(tokens)


def _is_ours(error: Exception) -> bool:
    """Whether cut code missed something that only the whole vLLM would have."""
    stand_ins = (Host, Settings, VisionTower, StageMissingLayer, IntermediateTensors)
    return type(error) is NameError or (
        isinstance(error, AttributeError) and isinstance(error.obj, stand_ins)
    )
