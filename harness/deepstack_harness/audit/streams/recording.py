"""Run a projection over recording streams, and note what each operation reads, writes and waits for.

Torch functions run at once, on the CPU, in the order of the host's calls; each is noted with the memory that
it reads and writes, its stream and its vector clock, from which `contract.oracles.neighbours` finds pairs
that nothing orders.  Not seen: values that the host reads (`item`), and memory inside one function.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from functools import reduce
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from typing_extensions import override

from deepstack_harness.audit.streams.device import Device, Event, Lanes, Memory, Project, sequential
from deepstack_harness.contract.facts import Operation, Recording
from deepstack_harness.errors import NotMeasured, UsageError

_INTEGERS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def different_bits(left: Tensor, right: Tensor) -> int:
    """Count the elements whose bits differ; all of them where shape or dtype differ."""
    if left.shape != right.shape or left.dtype != right.dtype:
        return max(left.numel(), right.numel())
    integer = _INTEGERS[left.element_size()]
    return int((left.contiguous().view(integer) != right.contiguous().view(integer)).sum())


_IN_PLACE = frozenset(
    f"__{name}__"
    for name in ("setitem", "iadd", "isub", "imul", "imatmul", "itruediv", "ifloordiv", "imod", "ipow",
                 "iand", "ior", "ixor", "ilshift", "irshift")
)  # fmt: skip


class Recorder(TorchFunctionMode):
    """Recorder of torch functions while it is entered; `roles` are tensors of any shape.

    An operation that reads one of them has the name of its role.
    """

    def __init__(self, device: Device, roles: Mapping[str, Tensor]) -> None:
        super().__init__()
        self.operations: list[Operation] = []
        self.memory = Memory()
        self._device = device
        self._roles = {self.memory.block_of(tensor).name: role for role, tensor in roles.items()}
        self._names: list[str] = []

    @contextmanager
    def naming(self, name: str) -> Iterator[None]:
        """Name what is done inside; names are joined, outermost first."""
        self._names.append(name)
        try:
            yield
        finally:
            self._names.pop()

    @override
    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: object,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        reads = [self.memory.block_of(tensor) for tensor in _tensors((args, kwargs))]
        changed = [self.memory.block_of(tensor) for tensor in _changed(func, args, kwargs)]
        before = set(self.memory.live.values())
        result = func(*args, **kwargs)
        made = [self.memory.block_of(tensor, self._device.current.index) for tensor in _tensors(result)]
        written = [*(block for block in made if block not in before), *changed]
        if written:  # else another view of the same memory, or a question about it
            self._note(func, [block.name for block in reads], [block.name for block in written])
        return result

    def _note(self, func: Callable[..., Any], reads: Sequence[str], writes: Sequence[str]) -> None:
        stream, clock = self._device.launch()
        roles = [self._roles[name] for name in reads if name in self._roles]
        name = ": ".join([*self._names, *(roles or [func.__name__])])
        used = tuple(dict.fromkeys(reads)), tuple(dict.fromkeys(writes))
        self.operations.append(Operation(len(self.operations), name, stream.name, *used, clock))


def _changed(func: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Iterator[Tensor]:
    """Yield what a call writes into, by torch's convention: `add_`, `x += ..`, `x[..] = ..` and `out=`."""
    name = func.__name__
    in_place = name in _IN_PLACE or (name.endswith("_") and not name.endswith("__"))
    yield from _tensors(args[0]) if in_place else ()
    yield from _tensors(kwargs.get("out"))


def _tensors(value: object) -> Iterator[Tensor]:
    """Yield every tensor in nested tuples, lists and dicts."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, tuple | list | dict):
        for item in value.values() if isinstance(value, dict) else value:
            yield from _tensors(item)


LAYERS = 2
"""A race between two layers needs two."""
TOKENS, HIDDEN = 3, 4

Naming = Callable[[str], AbstractContextManager[None]]


@dataclass(frozen=True)
class Setting:
    """Way to run a projection: streams next to the main one, as `make` makes them for a device."""

    name: str
    others: int
    make: Callable[[Device], Project]


def rehearse(setting: Setting, seed: int = 0) -> Recording:
    """Record `setting` over two layers, a projection for each stream and at least two.

    Raises `NotMeasured` when nothing was recorded, and `UsageError` where a helper of a source met what is
    not there.
    """
    device = Device(setting.others)
    x, weights = _integers(setting.others + 1 if setting.others else 2, seed)
    recorder = Recorder(device, {f"projection {name}": w for name, w in zip("ABCDEF", weights, strict=False)})
    done = tuple(Event(device) for _ in device.aux)
    lanes = Lanes(Event(device), done, device.aux, device.use_stream, recorder.memory.keep)
    project, raised, equal = setting.make(device), "", False
    with torch.no_grad():
        right = run_layers(sequential, lanes, x, weights)
        try:
            with recorder:
                output = run_layers(project, lanes, x, weights, recorder.naming)
            equal = not different_bits(output, right)
        except UsageError:
            raise
        except Exception as error:  # noqa: BLE001  # what a helper raises is a fact
            raised = f"{type(error).__name__}: {error}"
    if not (recorder.operations or raised):
        raise NotMeasured(f"{setting.name}: no operation was recorded")
    names = tuple(stream.name for stream in device.streams)
    return Recording(setting.name, names, tuple(recorder.operations), device.early_waits, equal, raised)


def run_layers(
    project: Project,
    lanes: Lanes,
    x: Tensor,
    weights: tuple[Tensor, ...],
    naming: Naming = lambda _: nullcontext(),
    layers: int = LAYERS,
) -> Tensor:
    """Run layers in turn: each makes its input, projects it, and uses all results; all (n, hidden)."""
    for number in range(1, layers + 1):
        with naming(f"layer {number}"):
            x = _layer(project, lanes, x, weights, naming)
    return x


def _layer(project: Project, lanes: Lanes, x: Tensor, weights: tuple[Tensor, ...], naming: Naming) -> Tensor:
    """Run one layer; when it returns, the host lets go of its tensors, and their memory is used again."""
    with naming("input"):
        hidden = x + 1
    results = project(hidden, weights, lanes)
    with naming("use of the results"):
        return reduce(torch.add, results)


def _integers(projections: int, seed: int) -> tuple[Tensor, tuple[Tensor, ...]]:
    """Return x (3, 4) and weights (4, 4) of small whole numbers: sums are exact in whatever order."""
    generator = torch.Generator().manual_seed(seed)
    drawn = [torch.randint(-2, 3, (HIDDEN, HIDDEN), generator=generator).float() for _ in range(projections)]
    return torch.randint(-2, 3, (TOKENS, HIDDEN), generator=generator).float(), tuple(drawn)
