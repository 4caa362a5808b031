"""The class of a family in a source, driven through its own `embed_input_ids` and `forward`."""

from deepstack_harness.engines.bound_class import ForwardClass, define_forward
from deepstack_harness.engines.cut_model import BY_FORWARD, ModelClass, cut_known
from deepstack_harness.engines.known import engine_of
from deepstack_harness.sources.source import Source


def bind_forward(source: Source, model: ModelClass) -> ForwardClass:
    """Cut one class out of a source and define it."""
    return define_forward(cut_known(source, model, BY_FORWARD))


def forward_of(source: Source, family: str = "qwen3_vl") -> ForwardClass:
    """Bind the class of a family as `audit` does it for all of them."""
    return bind_forward(source, engine_of(source).by_forward[family])
