"""A model class as a `BufferFactory` that drives it in the engine's own call order.

A class sets its buffer inside its `embed_input_ids`, and reads and clears it inside its `forward`.
Both run unchanged, with the functions that they import, over a language model that only records
what it is given.  This shows what an engine really reaches, and covers classes without get, set
and clear.
"""

from dataclasses import dataclass

import torch
from typing_extensions import override

from deepstack_harness.binding.bound_class import BoundClass, rehearsing
from deepstack_harness.binding.cut_model import ModelClass, ModelCut
from deepstack_harness.binding.define import define_model
from deepstack_harness.binding.forward_buffer import TOKEN_IDS, DeepstackTower, ForwardBuffer, ForwardHost
from deepstack_harness.binding.recording_model import RecordingModel
from deepstack_harness.binding.stand_ins import FORWARD_STAND_INS, Settings, Surroundings, vllm_config
from deepstack_harness.contract.protocols import Buffer
from deepstack_harness.errors import UsageError


@dataclass(frozen=True)
class ForwardModels(BoundClass[ForwardHost]):
    """A class whose objects have a language model that records, in whatever way they are driven."""

    def __call__(
        self, capacity: int, hidden: int, levels: int, *, dtype: torch.dtype, device: torch.device
    ) -> Buffer:
        """Run the class's own allocation: per level a (capacity, hidden) tensor, in most releases."""
        raise NotImplementedError

    def model(
        self, capacity: int, hidden: int, levels: int, *, dtype: torch.dtype, device: torch.device
    ) -> ForwardHost:
        """Make an object of the class.

        Raises `UsageError` that names file and line when its `__init__` cannot be run.
        """

        def prepare(host: ForwardHost) -> None:
            host.surround(Surroundings().tower, DeepstackTower(levels))
            host.accompany(RecordingModel(hidden, dtype, device, self.of.model.parts.answer))

        config = _config(self.of.model, capacity, hidden, levels, dtype, device)
        return self._instance(config, dtype, device, prepare)


@dataclass(frozen=True)
class ForwardClass(ForwardModels):
    """A class whose buffer is driven by its own `embed_input_ids` and `forward`."""

    @override
    def __call__(
        self, capacity: int, hidden: int, levels: int, *, dtype: torch.dtype, device: torch.device
    ) -> ForwardBuffer:
        """Run the class's own allocation: per level a (capacity, hidden) tensor, in most releases.

        Raises `UsageError` that names file and line when its `__init__` cannot be run.
        """
        instance = self.model(capacity, hidden, levels, dtype=dtype, device=device)
        return ForwardBuffer(instance, main_features=self.of.model.main_features)

    def rehearse(self) -> None:
        """Run a profile run, a text step and a visual step, and refuse a class that misses something.

        In the middle of a run that would look like a fault of the class.  Raises `UsageError`
        when a method needs what only the whole package has.
        """
        buffer = self(4, 5, 2, dtype=torch.float32, device=torch.device("cpu"))
        if not buffer.capacity:
            raise UsageError(f"{self.filename}: {self.model_class} keeps no list of rows per level")
        with rehearsing(self.refusal):
            buffer.get(4)
            buffer.begin_step(3, profile=False)
            buffer.get(4)
            buffer.set(torch.ones(2, 3, 5))
            buffer.get(3)


def define_forward(cut: ModelCut) -> ForwardClass:
    """Define a class that was cut by its forward, and rehearse it.

    Raises `UsageError` where the class cannot be run without the package.
    """
    stand_ins = {**FORWARD_STAND_INS, **cut.model.parts.stand_ins}
    bound = ForwardClass(cut, define_model(cut, ForwardHost, stand_ins))
    bound.rehearse()
    return bound


def _config(
    model: ModelClass, capacity: int, hidden: int, levels: int, dtype: torch.dtype, device: torch.device
) -> Settings:
    """Return the engine's settings, with what embedding and Granite's layout ask for.

    Granite adds a level before each layer in `deepstack_layer_map` (pairs of a layer of the tower
    and one of the decoder), then in `spatial_target_layers`: here level i goes to layer i, the
    last one being spatial.
    """
    last = levels - 1
    return vllm_config(
        capacity,
        hidden,
        levels,
        nested=model.nested,
        dtype=dtype,
        device=device,
        settings=model.parts.settings,
        deepstack_layer_map=[[level, level] for level in range(last)],
        spatial_target_layers=[last],
        **TOKEN_IDS,
    )
