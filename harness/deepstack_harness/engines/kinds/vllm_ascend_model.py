"""vLLM's classes as vllm-ascend wraps them, on one rank or on each rank of a group in turn."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import NoReturn

from deepstack_harness.engines.bind import DrivenClass
from deepstack_harness.engines.bound_class import ForwardClass, MethodsClass, misses_package
from deepstack_harness.engines.cut_model import CannotSupply, define_function
from deepstack_harness.engines.discover import DeepstackCut
from deepstack_harness.errors import Reason, SourceError, UsageError, reason_of


@dataclass
class _Group:
    """The tensor-parallel group of this process: its own rank, and how many there are."""

    rank: int = 0
    ranks: int = 1


_GROUP = _Group()


class _ForwardContext:
    """The context of a step (vllm_ascend/ascend_forward_context.py)."""

    @property
    def flash_comm_v1_enabled(self) -> bool:
        """True where ranks share a step."""
        return _GROUP.ranks > 1

    @property
    def sp_enabled(self) -> bool:
        """The name of the same flag in 0.13."""
        return _GROUP.ranks > 1

    def __getattr__(self, name: str) -> NoReturn:
        """Raise `CannotSupply`: a wrap that catches `AttributeError` would give every rank all rows."""
        raise CannotSupply(f"the context of a step has no {name} here: it cannot be supplied")


STAND_INS: Mapping[str, object] = {
    "_EXTRA_CTX": _ForwardContext(),
    # It asks the configuration of the step that runs (vllm_ascend/utils.py).
    "enable_sp": lambda *_: _GROUP.ranks > 1,
    "get_forward_context": lambda: STAND_INS["_EXTRA_CTX"],
    "get_tensor_model_parallel_rank": lambda: _GROUP.rank,
    "get_tensor_model_parallel_world_size": lambda: _GROUP.ranks,
}


@contextmanager
def as_rank(rank: int, ranks: int) -> Iterator[None]:
    """Be one rank of a group under sequence parallelism for a while."""
    _GROUP.rank, _GROUP.ranks = rank, ranks
    try:
        yield
    finally:
        _GROUP.rank, _GROUP.ranks = 0, 1


def define_wrapped(driven: DrivenClass) -> DrivenClass:
    """Wrap a class of the base, and rehearse it again in both ways."""
    try:
        for bound in (driven.methods, driven.forward):
            if isinstance(bound, MethodsClass | ForwardClass):
                _wrap(driven.cut, bound)
    except UsageError as error:
        return replace(driven, methods=None, forward=None, refusals=(reason_of(error),))
    return driven


def _wrap(class_cut: DeepstackCut, bound: MethodsClass | ForwardClass) -> None:
    assert class_cut.patch is not None
    apply = define_function(class_cut.patch.apply, STAND_INS)
    try:
        apply(bound.host)
    except Exception as error:
        raises = f"the patch of {class_cut.model_class} raises {type(error).__name__}: {error}"
        text = str(error) if misses_package(error) else raises
        raise SourceError(Reason(text, class_cut.patch.apply.file.filename)) from error
    bound.rehearse()
