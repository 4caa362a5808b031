"""The correct engine, which calls a buffer and a decoder: one get, one decode, one clear for each step.

`caller_of` makes the engine that a case names, here called its caller: one of ours, of another package, or a
class of the user's own as MODULE:CLASS.

`SequenceParallel` is an engine whose ranks share each step: rank r has the hidden states and the payload of
its own rows. Every rank plays the whole case with a full buffer of its own, and reads all P rows of it.
Only attention needs all tokens: they are gathered before it and cut again after it. Norms, feed-forward,
experts and the additions of the payload work on own rows (vLLM's sequence parallelism, `enable_sp`, up to
0.31).
"""

import copy
from collections.abc import Sequence
from dataclasses import replace
from itertools import chain
from typing import ClassVar, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn
from typing_extensions import TypeIs, override

from deepstack_harness.catalogue.registry import CALLERS
from deepstack_harness.contract.case import Case
from deepstack_harness.contract.names import imported
from deepstack_harness.contract.protocols import Buffer, BufferFactory, Inputs, Lane, Profile
from deepstack_harness.contract.trace import Step
from deepstack_harness.errors import NotMeasured, StepUnavailable, UsageError


class Engine:
    """The correct engine: one get, one decode and one clear for each step.

    A subclass overrides the method that it gets wrong, or does in another way; a subclass that states whether
    it is `faulty` is a caller by its name (`deepstack_harness.catalogue.registry.CALLERS`). The reference
    lane is always run by this class itself. Where `ranks` share a step, the object is `rank` of them.

    >>> from dataclasses import replace
    >>> class ForgetsToClear(Engine):
    ...     def forward(self, lane, inputs, step):
    ...         return lane.run(replace(inputs, payload=lane.get(step.tokens)))
    """

    faulty: ClassVar[bool] = False
    ranks: int = 1
    rank: int = 0
    _wrapper: ClassVar[type[nn.Module] | None] = None
    """The module around the decoder that the arm runs, made with the decoder."""

    def buffer(self, make: BufferFactory, sizes: Profile) -> Buffer:
        """Make the buffer for hidden states of these sizes, in their dtype and on their device."""
        return make(sizes.capacity, sizes.hidden, sizes.levels, dtype=sizes.dtype, device=sizes.device)

    def decoder(self, decoder: nn.Module) -> nn.Module:
        """Return the module that the arm runs; the reference lane runs `decoder` itself."""
        return decoder if self._wrapper is None else self._wrapper(decoder)

    def inputs(self, step: Step, inputs: Inputs) -> Inputs:
        """Return the true inputs of a step, for both lanes: hidden (P, h), positions (3, P) int64."""
        return inputs

    def parts(self, tokens: int) -> Sequence[slice]:
        """Return the token ranges of a step that are sequences of their own: micro-batches."""
        return (slice(0, tokens),)

    def owns(self, tokens: int) -> tuple[tuple[int, int], ...] | None:
        """Return this rank's rows of a step as half-open ranges; None for the contiguous share."""
        return None

    def set(self, buffer: Buffer, payload: Tensor) -> None:
        """Set a payload (levels, N, hidden)."""
        buffer.set(payload)

    def forward(self, lane: Lane, inputs: Inputs, step: Step) -> Tensor:
        """Run the outer forward over P tokens, hidden (P, h) -> (P, h)."""
        out = lane.run(self._with_payload(lane, inputs, step.tokens))
        lane.clear(step.tokens)
        return out

    def _with_payload(self, lane: Lane, inputs: Inputs, tokens: int) -> Inputs:
        """Return what the decoder is given for P tokens: hidden (P, h), and (P, h) per level or None."""
        return replace(inputs, payload=lane.get(tokens))


_FAILED = -1
"""The count that a rank sends in place of its rows where it raised."""


class KnownToAllRanks(Exception):
    """An error that every rank of the step has noticed in the same exchange."""


class PeerFailed(KnownToAllRanks):
    """Error of a rank whose peer raised, so that the peer's rows will not come."""


class UnequalRows(KnownToAllRanks):
    """Error of ranks that bring different numbers of rows, which no all-gather can join."""


class CollectiveTimeout(NotMeasured):
    """Error of a collective that timed out: a rank hangs or is dead."""


@torch.library.custom_op("deepstack_harness::gather_rows", mutates_args=())
def gather_rows(rows: Tensor, ranks: int) -> Tensor:
    """Gather the rows (n, ..) of all `ranks` in their order: (ranks * n, ..), on every rank.

    This is a real collective of the default process group, which needs a backend for CPU tensors besides
    that of the rows. It is inside a custom op, which the compiler cannot look into, as vLLM's own
    `torch.ops.vllm.all_gather` is. Before any row moves, each rank sends how many it brings, or that it
    failed: otherwise the others would wait until their timeout for a rank that raised.

    Raises `PeerFailed` or `UnequalRows` on all ranks that come here, `CollectiveTimeout` if a rank neither
    comes nor fails.
    """
    counts = _exchange(rows.size(0), ranks)
    if _FAILED in counts:
        raise PeerFailed(f"rank {counts.index(_FAILED)} of {ranks} failed")
    if len(set(counts)) > 1:
        raise UnequalRows(f"the ranks bring {', '.join(map(str, counts))} rows, and must bring equally many")
    gathered = rows.new_empty((ranks * rows.size(0), *rows.shape[1:]))
    if gathered.numel():
        _all_gather(list(gathered.chunk(ranks)), rows.contiguous())
    return gathered


@gather_rows.register_fake
def _(rows: Tensor, ranks: int) -> Tensor:
    return rows.new_empty((ranks * rows.size(0), *rows.shape[1:]))


def announce_failure(ranks: int) -> None:
    """Take part in the next exchange of the other ranks, and announce that this rank raised."""
    _exchange(_FAILED, ranks)


def _exchange(count: int, ranks: int) -> list[int]:
    """Return for each rank how many rows it brings, or that it failed."""
    counts = torch.empty(ranks, dtype=torch.int64, device="cpu")
    _all_gather(list(counts.chunk(ranks)), torch.tensor([count], device="cpu"))
    by_rank: list[int] = counts.tolist()
    return by_rank


def _all_gather(into: list[Tensor], own: Tensor) -> None:
    try:
        # Not all_gather_into_tensor: torch 2.13 deprecates it for a name that 2.12 does not have.
        dist.all_gather(into, own)
    except RuntimeError as error:
        waiting = f"rank {dist.get_rank()} of {len(into)} waited in vain for the others"
        raise CollectiveTimeout(f"{waiting}: {str(error).splitlines()[0]}") from error


ModuleT = TypeVar("ModuleT", bound=nn.Module)


def shared_copy(module: ModuleT) -> ModuleT:
    """Return new modules around the same parameters and buffers, so that they can be rebuilt."""
    return copy.deepcopy(
        module, {id(tensor): tensor for tensor in chain(module.parameters(), module.buffers())}
    )


def layers_of(decoder: nn.Module) -> nn.ModuleList:
    """Return the layers of a decoder; raises `UsageError` for one without a list of `layers`."""
    layers = getattr(decoder, "layers", None)
    if not isinstance(layers, nn.ModuleList):
        raise UsageError(
            f"{type(decoder).__name__} has no torch.nn.ModuleList 'layers' to split or to rebuild"
        )
    return layers


Payload = tuple[Tensor, ...]


class WrapsDecoder(nn.Module):
    """Decoder that runs another one, `decoder`, on what `levels` makes of its payload."""

    def __init__(self, decoder: nn.Module) -> None:
        """Wrap a `deepstack_harness.contract.protocols.Decoder`."""
        super().__init__()
        self.decoder = decoder

    @override
    def forward(self, hidden: Tensor, positions: Tensor, payload: Payload | None) -> Tensor:
        """Decode hidden (n, h), positions (3, n) int64, one (n, h) per level or None -> (n, h)."""
        out: Tensor = self.decoder(hidden, positions, self.levels(hidden, payload))
        return out

    def levels(self, hidden: Tensor, payload: Payload | None) -> Payload | None:
        """Return what the decoder gets for hidden (n, h) and one (n, h) per level or None."""
        return payload


class GatheredAttention(nn.Module):
    """Attention of a decoder layer over the tokens of all ranks, cut to the rank's own rows."""

    def __init__(self, attention: nn.Module, rank: int, ranks: int) -> None:
        """Wrap `attention`, which takes (P, h) and the rotary angles of P tokens."""
        super().__init__()
        self.attention = attention
        self.rank = rank
        self.ranks = ranks

    @override
    def forward(self, own: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """Attend from own rows (P / ranks, h), with cos and sin (P, 1, D) each -> (P / ranks, h)."""
        rows = own.size(0)
        out: Tensor = self.attention(gather_rows(own, self.ranks), cos, sin)
        return out[self.rank * rows : (self.rank + 1) * rows]


class SharedDecoder(nn.Module):
    """Decoder of one rank, which has its own rows of hidden states and payload, and all positions."""

    def __init__(self, decoder: nn.Module, rank: int, ranks: int) -> None:
        """Rebuild a copy of `decoder`, which has `layers`, each with `self_attn`."""
        super().__init__()
        self.decoder = shared_copy(decoder)
        self.ranks = ranks
        for layer in layers_of(self.decoder):
            layer.self_attn = GatheredAttention(layer.get_submodule("self_attn"), rank, ranks)

    @override
    def forward(self, hidden: Tensor, positions: Tensor, payload: Payload | None) -> Tensor:
        """Run all layers: hidden and each level (P / ranks, h), positions (3, P) int64 -> (P, h)."""
        out: Tensor = gather_rows(self.decoder(hidden, positions, payload), self.ranks)
        return out


class SequenceParallel(Engine):
    """Engine on one of the ranks; with a single rank it is the unsharded engine."""

    def __init__(self, ranks: int = 1) -> None:
        """Look up in the default process group which rank this process is.

        Raises `NotMeasured` if the group does not have `ranks` ranks.
        """
        size = dist.get_world_size() if dist.is_initialized() else 1
        if size != ranks:
            raise NotMeasured(f"{ranks} ranks should share each step, but the process group has {size}")
        self.ranks = ranks
        self.rank = dist.get_rank() if ranks > 1 else 0

    @override
    def decoder(self, decoder: nn.Module) -> nn.Module:
        """Return the decoder with its attention over all ranks."""
        return decoder if self.ranks == 1 else SharedDecoder(decoder, self.rank, self.ranks)

    @override
    def forward(self, lane: Lane, inputs: Inputs, step: Step) -> Tensor:
        """Get, decode own rows and clear, hidden (P, h) -> the rows of all ranks (P, h)."""
        if self.ranks == 1:
            return super().forward(lane, inputs, step)
        own = self._rows(step.tokens, self.rank)
        try:
            payload = lane.get(step.tokens)
            rows = None if payload is None else self.payload_rows(payload, own)
            out = lane.run(replace(inputs, hidden=inputs.hidden[own], payload=rows))
        except Exception as error:
            # A lane wraps what its decoder raises.
            if not any(isinstance(raised, KnownToAllRanks) for raised in (error, error.__cause__)):
                announce_failure(self.ranks)
            raise
        lane.clear(step.tokens)
        return out

    def payload_rows(self, payload: Payload, own: slice) -> Payload:
        """Cut each level (P, h) to this rank's rows (P / ranks, h); faulty callers cut others."""
        return tuple(level[own] for level in payload)

    def _rows(self, tokens: int, rank: int) -> slice:
        """Return the rows of a rank; raises `StepUnavailable` for a step that cannot be shared equally."""
        rows, rest = divmod(tokens, self.ranks)
        if rest:
            raise StepUnavailable(
                f"{tokens} tokens cannot be shared by {self.ranks} ranks: pad the step to "
                f"{(rows + 1) * self.ranks}"
            )
        return slice(rank * rows, (rank + 1) * rows)


_WANTED = "a class built on deepstack_harness.models.engine:Engine"


def caller_of(case: Case) -> Engine:
    """Make the caller of a case.

    Under an arm whose ranks share a step, this process must be one of the ranks. Raises
    `UsageError` for an unknown name, and for a caller that cannot share steps under such an arm.
    """
    name, ranks = case.caller, case.arm.ranks
    if ":" in name:
        try:
            caller = imported(name)
        except (ImportError, AttributeError, ValueError) as error:
            raise UsageError(f"caller '{name}' cannot be imported: {error}") from None
        if not _is_caller(caller):
            raise UsageError(f"caller '{name}' is not {_WANTED}")
    else:
        caller = CALLERS.load(name, _is_caller, _WANTED)
    if issubclass(caller, SequenceParallel):
        return caller(ranks)
    if ranks > 1 and caller is Engine:
        return SequenceParallel(ranks)
    if ranks > 1:
        raise UsageError(
            f"caller '{name}' cannot share a step among ranks: under arm {case.arm.name} take engine, "
            "or a caller built on deepstack_harness.models.engine:SequenceParallel"
        )
    return caller()


def _is_caller(loaded: object) -> TypeIs[type[Engine]]:
    return isinstance(loaded, type) and issubclass(loaded, Engine)
