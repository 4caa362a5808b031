"""Splitters of training engines, called for one rank after the other in one process."""

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn

from deepstack_harness.engines.bind import DefinedClass, PayloadSplitter
from deepstack_harness.engines.bound_class import misses_package, rehearsing
from deepstack_harness.engines.discover import FoundClass, SplitFiles
from deepstack_harness.engines.engine import KnownEngine
from deepstack_harness.engines.load import LoadedSource, loaded_of
from deepstack_harness.engines.loaded_class import derive_class
from deepstack_harness.engines.model_class import ModelClass, reason_at
from deepstack_harness.errors import SourceError, UsageError, reason_of
from deepstack_harness.sources.source import Source

_METHOD = "_deepstack_process"


class MegatronSplitter:
    """`split_deepstack_embs` of mbridge and Megatron-Bridge, under tensor parallelism; see `PayloadSplitter`.

    Its engine pads a step to a multiple of the ranks before it makes the mask.
    """

    def __init__(self, loaded: LoadedSource, found: FoundClass, _: SplitFiles) -> None:
        """Import the function; raise `UsageError` where it cannot be made."""
        self._split = loaded.supplied(found.member, found.class_name, {})
        self.filename = loaded.read(found.member).filename

    def rows(
        self, rank: int, ranks: int, marks: Tensor | None, levels: Sequence[Tensor], tokens: int
    ) -> tuple[Tensor, ...]:
        """Return the rows (P / ranks, hidden) of a rank, for marks (N,) and levels (n, hidden) each."""
        padded, rows = None, None  # in a step of text no tower runs, and there is no mask
        if marks is not None:
            padded, rows = torch.zeros(1, tokens, dtype=torch.bool), list(levels)
            padded[0, : marks.size(0)] = marks
        # A default of False, with which nothing is split, is the caller's to change (Megatron-Bridge).
        wanted = inspect.signature(self._split).parameters
        named = {"sequence_parallel": True} if "sequence_parallel" in wanted else {}
        own_marks, parts = self._split(padded, rows, tp_size=ranks, tp_rank=rank, **named)
        if own_marks is None or parts is None:
            return ()
        added = [part.new_zeros(tokens // ranks, part.size(1)) for part in parts]
        for own, part in zip(added, parts, strict=True):
            own[own_marks[0]] += part  # as text models add it
        return tuple(added)


class _Parallel(nn.Module):
    """The base class of `SequenceParallel`, whose ranks are numbers instead of a process group."""

    causal_mask_func = None
    extra_kwargs: dict[str, object]
    model_dtype = None
    rp_rank = -1
    rp_world_size = 1
    sp_rank = 0
    sp_world_size = 1
    tokenizer = None
    world_size = 1


class SwiftSplitter:
    """The patched `_deepstack_process` of ms-swift, under sequence parallelism; see `PayloadSplitter`.

    It pads the tokens of a step itself, and runs its tower on a dummy image in a step of text.  Ring
    attention, whose partition is another one, is left out.
    """

    def __init__(self, loaded: LoadedSource, found: FoundClass, files: SplitFiles) -> None:
        """Import class and function; raise `UsageError` for what cannot be made."""
        assert isinstance(found.methods, ModelClass)
        _, made = derive_class(loaded, found.methods, files.called, _Parallel, {})
        self._parallel: Any = made.__new__(made)
        names = {"sequence_parallel": self._parallel}
        self._patch = loaded.supplied(found.member, found.class_name, names)
        self.filename = loaded.read(found.member).filename

    def rows(
        self, rank: int, ranks: int, marks: Tensor | None, levels: Sequence[Tensor], tokens: int
    ) -> tuple[Tensor, ...]:
        """Return the rows (P / ranks, hidden) of a rank, for marks (N,) and levels (n, hidden) each."""
        parallel = self._parallel
        parallel.world_size = parallel.sp_world_size = ranks
        parallel.sp_rank = rank
        unsplit = tokens if marks is None else marks.size(0)
        parallel.extra_kwargs = {
            "input_ids": torch.zeros(1, unsplit, dtype=torch.int64),
            "text_position_ids": None,
        }
        model = SimpleNamespace()
        self._patch(model)  # which sets the method
        add: Any = getattr(model, _METHOD)
        mask = None if marks is None else marks.unsqueeze(0)
        states = (level.new_zeros(1, tokens // ranks, level.size(1)) for level in levels)
        return tuple(add(own, mask, level)[0] for own, level in zip(states, levels, strict=True))


@dataclass(frozen=True)
class SplitterCalls:
    """Definition of the splitters of one engine; see `EngineCalls`."""

    make: Callable[[LoadedSource, FoundClass, SplitFiles], PayloadSplitter]

    def define(self, source: Source, found: FoundClass, engine: KnownEngine) -> DefinedClass:
        """Import a splitter, and split one payload with it."""
        assert isinstance(engine.payload, SplitFiles)
        try:
            loaded = loaded_of(source)
            splitter = self.make(loaded, found, engine.payload)

            def refusal(error: Exception) -> UsageError:
                text = f"the splitter cannot be run without its package: {error}"
                return SourceError(reason_at(error, splitter.filename, text))

            with loaded.without_stubs(), rehearsing(refusal, _misses):
                splitter.rows(0, 2, torch.ones(4, dtype=torch.bool), [torch.ones(4, 5)], 4)
        except UsageError as error:
            return DefinedClass(source, found, refusals=(reason_of(error),))
        return DefinedClass(source, found, splits=splitter)


SWIFT_CALLS = SplitterCalls(SwiftSplitter)
MEGATRON_CALLS = SplitterCalls(MegatronSplitter)


def _misses(error: Exception) -> bool:
    of_base = isinstance(error, AttributeError) and isinstance(error.obj, _Parallel)
    return of_base or misses_package(error)
