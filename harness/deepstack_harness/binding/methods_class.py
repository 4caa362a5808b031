"""A model class as a `BufferFactory` that drives its own get, set, clear and resize."""

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch import nn

from deepstack_harness.binding.bound_class import BoundClass, misses_package, rehearsing
from deepstack_harness.binding.cut_class import STORAGE
from deepstack_harness.binding.cut_model import ModelCut
from deepstack_harness.binding.define import define_model
from deepstack_harness.binding.methods_buffer import MethodsBuffer
from deepstack_harness.binding.stand_ins import (
    METHODS_STAND_INS,
    Host,
    Settings,
    StageMissingLayer,
    Surroundings,
    VisionTower,
    vllm_config,
)
from deepstack_harness.errors import UsageError


@dataclass(frozen=True)
class MethodsClass(BoundClass[Host]):
    """A class whose buffer is driven by its methods.

    `dataclasses.replace(bound, surroundings=...)` builds the model in another way.
    """

    surroundings: Surroundings = field(default_factory=Surroundings)
    listed = False
    """Levels without names, in the order of a list."""

    def __call__(
        self, capacity: int, hidden: int, levels: int, *, dtype: torch.dtype, device: torch.device
    ) -> MethodsBuffer:
        """Run the class's own allocation: per level a (capacity, hidden) tensor, in most releases.

        Raises `UsageError` that names file and line when its `__init__` cannot be run.
        """
        instance = self._instance(
            self._config(capacity, hidden, levels, dtype, device),
            dtype,
            device,
            lambda host: host.surround(self.surroundings.tower, self._visual()),
        )
        return MethodsBuffer(instance, self.of.cut, vision=self.surroundings.vision, listed=self.listed)

    def rehearse(self) -> None:
        """Call each method once, and refuse a class that misses something.

        In the middle of a run that would look like a fault of the buffer.  Raises `UsageError`
        when a method needs what only the whole package has.
        """
        buffer = self(4, 5, 2, dtype=torch.float32, device=torch.device("cpu"))
        with rehearsing(self.refused, self._misses):
            buffer.set(torch.ones(2, 3, 5))
            self._check_storage(buffer)
            buffer.get(3)
            buffer.clear(3)

    def _config(
        self, capacity: int, hidden: int, levels: int, dtype: torch.dtype, device: torch.device
    ) -> Settings:
        """Return the settings that the engine passes to the class."""
        model = self.of.model
        return vllm_config(
            capacity, hidden, levels, nested=model.nested, dtype=dtype, device=device,
            settings=model.parts.settings,
        )  # fmt: skip

    def _misses(self, error: Exception) -> bool:
        """Tell whether a method missed something that only the whole package would have."""
        return misses_package(error)

    def _check_storage(self, buffer: MethodsBuffer) -> None:
        try:
            found = buffer.capacity
        except (AttributeError, LookupError, TypeError):
            found = 0
        if not found:
            raise UsageError(f"{self.filename}: {self.model_class} keeps no rows per level in self.{STORAGE}")

    def _visual(self) -> nn.Module | None:
        """Return the vision tower, or what this release has in the place of a tower that is skipped."""
        if self.surroundings.vision:
            return VisionTower()
        return StageMissingLayer() if "StageMissingLayer" in self.of.cut.replaced.values() else None


def define_methods(
    cut: ModelCut,
    kind: type[MethodsClass] = MethodsClass,
    host: type[Host] = Host,
    stand_ins: Mapping[str, object] = METHODS_STAND_INS,
) -> MethodsClass:
    """Define a class that was cut by its methods, over `host`, and rehearse it.

    `kind` knows the settings of the engine.  Raises `UsageError` for a class that cannot be run without its
    package.
    """
    bound = kind(cut, define_model(cut, host, {**stand_ins, **cut.model.parts.stand_ins}))
    bound.rehearse()
    return bound
