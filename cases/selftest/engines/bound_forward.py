"""The class of a family in a source, driven through its own `embed_input_ids` and `forward`."""

from contextlib import suppress

from deepstack_harness.engines.bound_class import ForwardClass
from deepstack_harness.engines.cut_model import BY_FORWARD, ModelClass, ModelCut, cut_known, define_model
from deepstack_harness.engines.known import engine_of
from deepstack_harness.engines.stand_ins import FORWARD_STAND_INS, ForwardHost
from deepstack_harness.errors import UsageError
from deepstack_harness.sources.source import Source


def bind_forward(source: Source, model: ModelClass) -> ForwardClass:
    """Cut one class out of a source, whose package must not be imported in this process, and define it."""
    cut = cut_known(source, model, BY_FORWARD)
    try:
        return _define(cut)
    except UsageError:
        with suppress(UsageError):
            if cut.fallback is not None:
                return _define(cut.fallback)
        raise


def _define(cut: ModelCut) -> ForwardClass:
    stand_ins = {**FORWARD_STAND_INS, **cut.model.parts.stand_ins}
    return ForwardClass(cut, define_model(cut, ForwardHost, stand_ins)).rehearse()


def forward_of(source: Source, family: str = "qwen3_vl") -> ForwardClass:
    """Bind the class of a family as `audit` does it for all of them."""
    return bind_forward(source, engine_of(source).by_forward[family])
