"""Drive a model class of a vLLM source in the engine's own call order.

A class sets its buffer inside its own `embed_input_ids` and reads and clears it
inside its own `forward`.  Both are cut out unchanged, with the helpers they name,
and run over a language model that only records what it is given.  This shows
what the engine really reaches, and covers classes without get, set and clear.
"""

import ast
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace

import torch

from deepstack_harness.binding.ambient import ambient, show_in_tracebacks
from deepstack_harness.binding.bind import MODELS
from deepstack_harness.binding.cut import NoBuffer, class_named, cut, members_of
from deepstack_harness.binding.cut_class import CutClass, Model, define
from deepstack_harness.binding.forward_buffer import (
    TOKEN_IDS,
    DeepstackTower,
    DrivenBuffer,
    DrivenHost,
    FirstRank,
    get_pp_group,
)
from deepstack_harness.binding.imported_functions import Helpers, imports
from deepstack_harness.binding.module_names import parse
from deepstack_harness.binding.recording_model import RecordingModel
from deepstack_harness.binding.stand_ins import (
    STAND_INS,
    Host,
    Settings,
    Surroundings,
    VisionTower,
    vllm_config,
)
from deepstack_harness.errors import UsageError
from deepstack_harness.sources.source import NoSuchMember, Source, SourceFile

GRANITE = Model(
    "vllm/model_executor/models/granite4_vision.py",
    "Granite4VisionForConditionalGeneration",
    since="0.20.0",
)
DRIVEN: Mapping[str, Model] = {**MODELS, "granite4_vision": GRANITE}

_OWN_METHODS = {"set": "embed_input_ids", "get": "forward"}
_WITHOUT_MAIN_FEATURES = frozenset({GRANITE.class_name})
_STAND_INS: Mapping[str, object] = {**STAND_INS, "get_pp_group": get_pp_group}


@dataclass(frozen=True)
class DrivenClass(CutClass[DrivenHost]):
    """A model class of one source, as a `BufferFactory` whose buffers the class itself moves."""

    def __call__(
        self, capacity: int, hidden: int, levels: int, *, dtype: torch.dtype, device: torch.device
    ) -> DrivenBuffer:
        """Run the class's own allocation, with dtype and device as the ambient ones.

        Raises `UsageError` that names file and line when its `__init__` cannot be run.
        """
        config = _config(self.model, capacity, hidden, levels, dtype, device)
        instance = self.host.__new__(self.host)
        try:
            with ambient(dtype, device):
                instance.surround(Surroundings().tower, DeepstackTower(levels))
                instance.accompany(RecordingModel(hidden, dtype, device))
                type(instance).__init__(instance, **self.arguments(config))
        except Exception as error:
            raise self.refusal(error, ".__init__") from error
        return DrivenBuffer(instance, main_features=self.model_class not in _WITHOUT_MAIN_FEATURES)

    def rehearse(self) -> None:
        """Refuse what would otherwise look like a fault of the class in the middle of a run.

        Raises `UsageError` when its methods need what only the whole vLLM has.
        """
        buffer = self(4, 5, 2, dtype=torch.float32, device=torch.device("cpu"))
        if not buffer.capacity:
            raise UsageError(f"{self.filename}: {self.model_class} keeps no list of rows per level")
        try:
            buffer.get(4)
            buffer.begin_step(3, profile=False)
            buffer.get(4)
            buffer.set(torch.ones(2, 3, 5))
            buffer.get(3)
        except Exception as error:
            # Anything else is the class's own fault, and for the run to report.
            if _is_ours(error):
                raise self.refusal(error) from error


def drive(source: Source, model: str | Model = "qwen3_vl") -> DrivenClass:
    """Cut what sets, reads and clears the buffer of `model` (a key of `DRIVEN`) out of `source`.

    Raises `UsageError` that says what is missing when this source has no such
    class, or one that cannot be run without vLLM; `MachineError` when the source
    cannot be fetched.
    """
    chosen = _chosen(model)
    try:
        driven = _driven(source, source.read(chosen.member), chosen)
    except (NoSuchMember, NoBuffer) as error:
        raise UsageError(
            f"{error}; {chosen.class_name} has its buffer from vLLM {chosen.since} on"
        ) from error
    driven.rehearse()
    return driven


def _driven(source: Source, file: SourceFile, model: Model) -> DrivenClass:
    """Cut one class, and before it the class in another file that it has its methods from."""
    base = _base(source, file, model)
    host = base.host if base else DrivenHost
    helpers = Helpers(source, {**_STAND_INS, **({base.model_class: host} if base else {})})
    done = cut(
        file,
        model.class_name,
        host=host,
        given=DrivenHost.GIVEN,
        stand_ins=helpers.importable(file),
        inherited=base.inherited() if base else None,
        verbs=_OWN_METHODS,
    )
    show_in_tracebacks(file)
    supplied = helpers.supply(model.member, file, done.replaced)
    return DrivenClass(source, model, done, define(done, supplied, host))


def _base(source: Source, file: SourceFile, model: Model) -> DrivenClass | None:
    """The first base class from another file that can be driven, for a class that lacks a method."""
    tree = parse(file.text, file.filename)
    definition = class_named(tree, model.class_name, file.filename)
    if members_of(definition, tree).keys() >= set(_OWN_METHODS.values()):
        return None
    origins = imports(file, model.member)
    for name in (base.id for base in definition.bases if isinstance(base, ast.Name) and base.id in origins):
        module, real_name = origins[name]
        member = f"{module.replace('.', '/')}.py"
        with suppress(NoSuchMember, NoBuffer):
            return _driven(source, source.read(member), replace(model, member=member, class_name=real_name))
    return None


def _chosen(model: str | Model) -> Model:
    if isinstance(model, Model):
        return model
    if model not in DRIVEN:
        raise UsageError(f"unknown model '{model}'; known are {', '.join(DRIVEN)}")
    return DRIVEN[model]


def _config(
    model: Model, capacity: int, hidden: int, levels: int, dtype: torch.dtype, device: torch.device
) -> Settings:
    """The engine's settings, with what embedding and Granite's layout ask for.

    Granite adds a level before each layer in `deepstack_layer_map` (pairs of a
    layer of the tower and one of the decoder), then in `spatial_target_layers`:
    here level i goes to layer i, the last one being spatial.
    """
    last = levels - 1
    return vllm_config(
        capacity,
        hidden,
        levels,
        nested=model.nested,
        dtype=dtype,
        device=device,
        deepstack_layer_map=[[level, level] for level in range(last)],
        spatial_target_layers=[last],
        **TOKEN_IDS,
    )


def _is_ours(error: Exception) -> bool:
    """Whether cut code missed something that only the whole vLLM would have."""
    stand_ins = (Host, Settings, VisionTower, RecordingModel, FirstRank)
    return (
        isinstance(error, UsageError)
        or type(error) is NameError
        or (isinstance(error, AttributeError) and isinstance(error.obj, stand_ins))
    )
