"""The class of a family in a source, by calls of its own `embed_input_ids` and `forward`."""

from dataclasses import replace

from deepstack_harness.engines.bound_class import ForwardClass
from deepstack_harness.engines.known import engine_of
from deepstack_harness.engines.load import loaded_of
from deepstack_harness.engines.loaded_class import define_by_forward
from deepstack_harness.engines.model_class import BY_FORWARD, ModelClass
from deepstack_harness.sources.source import Source


def bind_forward(source: Source, model: ModelClass) -> ForwardClass:
    """Import the package of a source, and define one of its classes."""
    return define_by_forward(loaded_of(source), model, BY_FORWARD)


def forward_of(source: Source, family: str = "qwen3_vl") -> ForwardClass:
    """Bind the class of a family as `audit` does it for all of them."""
    engine = engine_of(source)
    return bind_forward(source, replace(engine.by_forward[family], parts=engine.files.parts))
