"""vLLM's classes as vllm-ascend wraps them, on one rank or on each rank of a group in turn."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import NoReturn

from typing_extensions import override

from deepstack_harness.engines.bind import DefinedClass
from deepstack_harness.engines.calls import BufferCalls, model_of
from deepstack_harness.engines.discover import FoundClass
from deepstack_harness.engines.engine import KnownEngine
from deepstack_harness.engines.load import loaded_of
from deepstack_harness.engines.model_class import CannotSupply
from deepstack_harness.errors import UsageError, reason_of
from deepstack_harness.sources.source import Source


class _Group:
    """The tensor-parallel group of this process: its own rank, and how many there are."""

    rank = 0
    ranks = 1


_GROUP = _Group()


class _ForwardContext:
    """The context of a step (vllm_ascend/ascend_forward_context.py)."""

    @property
    def flash_comm_v1_enabled(self) -> bool:
        """True where ranks share a step."""
        return _GROUP.ranks > 1

    sp_enabled = flash_comm_v1_enabled  # its name in 0.13

    def __getattr__(self, name: str) -> NoReturn:
        """Raise `CannotSupply`: a wrap that catches `AttributeError` would give every rank all rows."""
        raise CannotSupply(f"the context of a step has no {name} here: it cannot be supplied")


STAND_INS: Mapping[str, object] = {
    "_EXTRA_CTX": _ForwardContext(),
    # It reads the configuration of the step that runs (vllm_ascend/utils.py).
    "enable_sp": lambda *_: _GROUP.ranks > 1,
    "get_forward_context": lambda: STAND_INS["_EXTRA_CTX"],
    "get_tensor_model_parallel_rank": lambda: _GROUP.rank,
    "get_tensor_model_parallel_world_size": lambda: _GROUP.ranks,
}


class AscendCalls(BufferCalls):
    """Definition of vLLM's classes with the plugin's wrap, on one rank or on each of a group."""

    @override
    def define(self, source: Source, found: FoundClass, engine: KnownEngine) -> DefinedClass:
        """Import the file that wraps, and define the class as vLLM's are."""
        assert found.patch is not None
        member, loaded = found.patch.declared.member, loaded_of(source)
        try:
            loaded.module(member)
        except UsageError as error:
            return DefinedClass(source, found, refusals=(reason_of(error),))
        if raised := tuple(loaded.raised({member}, frozenset({found.class_name}))):
            return DefinedClass(source, found, refusals=raised)
        model = model_of(found, engine)
        model = replace(model, parts=replace(model.parts, stand_ins=STAND_INS))
        return self.define_as(source, found, model, engine.files.forward)

    @contextmanager
    def as_rank(self, rank: int, ranks: int) -> Iterator[None]:
        """Be one rank of a group under sequence parallelism for a while."""
        _GROUP.rank, _GROUP.ranks = rank, ranks
        try:
            yield
        finally:
            _GROUP.rank, _GROUP.ranks = 0, 1


CALLS = AscendCalls()
